// Two answers to one prompt: how far their tokens are the same, and the first one at which they differ.

import { make } from "./elements.js";

// `tokens` are two lists with log-probabilities, `ended` says of each whether the model itself ended it there.
// The place of the first difference, and what each model says there; without `sides` there is none so far.
export function compare(tokens, ended) {
  const [left, right] = tokens, shorter = Math.min(left.length, right.length);
  let same = 0;
  while (same < shorter && equal(left[same], right[same])) same += 1;
  const differ = same < shorter || (left.length !== right.length && ended[left.length < right.length ? 0 : 1]);
  if (!differ) return { same, whole: left.length === right.length && ended.every(Boolean) };
  const before = left.slice(Math.max(0, same - 8), same).map((each) => each.token).join("");
  return { same, before, sides: [side(left[same], right[same]), side(right[same], left[same])] };
}

const equal = (one, other) => one.bytes.join() === other.bytes.join();

// A model's token, its chance, and the chance that the other model's token had here; no token: the end.
function side(own, other) {
  const there = other && own?.top_logprobs.find((each) => equal(each, other));
  return { token: own?.token ?? null, chance: own ? Math.exp(own.logprob) : null, other: there ? Math.exp(there.logprob) : null };
}

export function comparisonView({ same, whole, before, sides }, models) {
  const box = make("div", "comparison"), count = `${same} token${same === 1 ? "" : "s"}`;
  if (!sides) {
    box.append(make("p", "", whole ? `Both answers are the same: ${count}.` : `The same for ${count}, as far as both go.`));
    return box;
  }
  box.append(make("p", "", same ? `The same for ${count}; they differ at token ${same + 1}, after ` : "They differ at the first token."));
  if (same) box.lastChild.append(make("code", "", before), ":");
  const list = make("ul");
  sides.forEach((each, n) => list.append(make("li", "", `${models[n]}: `, ...described(each, sides[1 - n]))));
  box.append(list);
  return box;
}

function described({ token, chance, other }, { token: others }) {
  if (token === null) return ["ends here"];
  const parts = [make("mark", "", visible(token)), ` ${percent(chance)}`];
  if (others !== null) parts.push(other === null ? `, ${visible(others)} is not among its first five` : `, ${visible(others)} ${percent(other)}`);
  return parts;
}

const percent = (chance) => `${(100 * chance).toFixed(1)}\u00a0%`;
const visible = (token) => token.replaceAll(" ", "␣").replaceAll("\n", "⏎") || "∅";
