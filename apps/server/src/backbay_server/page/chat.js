// The conversation: its turns, the answer in progress, stop and regenerate.

import { AnswerView, newAnswer } from "./answer_view.js";
import { answer, transcript } from "./answers.js";
import { pictureOf, playerOf } from "./attachments.js";
import { compare, comparisonView } from "./comparison.js";
import { newConversation } from "./conversations.js";
import { button, make } from "./elements.js";

const KEEP = 1000; // milliseconds after which a growing answer is kept again
const COMPARED = { temperature: 0, logprobs: true, top_logprobs: 5 };

export class Chat {
  constructor(place, options, keep) {
    this.place = place;
    this.options = options; // () => the models, the key, the system message, and the fields of a request
    this.keep = keep;
    this.changed = () => {};
    this.backends = async () => ({}); // of the models, by their names
    this.running = null;
    this.show(newConversation());
  }

  show(conversation) {
    this.stop();
    this.conversation = conversation;
    for (const article of this.place.querySelectorAll("article")) article.remove();
    this.place.querySelector("#welcome").hidden = conversation.turns.length > 0;
    this.place.append(...conversation.turns.map((turn) => (turn.role === "user" ? question(turn) : this.answers(turn))));
    this.scroll(true);
  }

  stop() {
    this.running?.abort();
    this.running = null;
    this.place.setAttribute("aria-busy", "false");
    this.changed();
  }

  async ask(text, { pictures, sounds }) {
    const turn = { role: "user", text, pictures, sounds }, { conversation } = this;
    this.place.querySelector("#welcome").hidden = true;
    conversation.name ||= text.slice(0, 80) || (sounds.length ? "Sounds" : "Pictures");
    conversation.turns.push(turn);
    this.place.append(question(turn));
    await this.reply();
  }

  async regenerate() {
    if (this.running) return;
    this.conversation.turns.pop();
    this.place.querySelector("article:last-of-type").remove();
    await this.reply();
  }

  async reply() {
    if (this.running) return;
    const { models, key, system, transcribes, ...fields } = this.options(), { conversation } = this, stopper = new AbortController();
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...messagesOf(conversation.turns)];
    const body = { ...fields, ...(models.length > 1 ? COMPARED : {}), messages };
    const asked = conversation.turns.findLast(({ role }) => role === "user");
    const events = (model) => (transcribes ? transcript(model, asked, key, stopper.signal) : answer({ ...body, model }, key, stopper.signal));
    const turn = { role: "assistant", answers: [] }, article = this.answers(turn);
    conversation.turns.push(turn);
    conversation.asked = true;
    this.running = stopper;
    this.place.setAttribute("aria-busy", "true"); // screen readers read the whole answer, not each piece
    this.place.append(article);
    this.changed();
    this.scroll(true);
    const views = [];
    for (const model of models) { // in turn: neither takes the other's cores
      if (!stopper.signal.aborted) views.push(await this.stream(article, turn, model, events(model)));
    }
    if (views.length > 1) {
      if (!transcribes) turn.comparison = compareViews(views);
      const backends = await this.backends();
      for (const each of turn.answers) each.backend = backends[each.model] ?? "";
      article.finish();
    }
    this.keep(conversation);
    if (this.running === stopper) this.stop();
  }

  async stream(article, turn, model, events) {
    const given = newAnswer(model), view = new AnswerView(given), { conversation } = this;
    let kept = performance.now();
    turn.answers.push(given);
    view.element.classList.add("busy");
    article.grow(view);
    this.keep(conversation);
    try {
      for await (const event of events) {
        view.take(event);
        this.scroll(false);
        if (performance.now() - kept > KEEP) {
          kept = performance.now();
          this.keep(conversation);
        }
      }
      view.end();
    } catch (error) {
      view.end(error.name === "AbortError" ? { stopped: true } : { fault: error.message });
    }
    view.element.classList.remove("busy");
    article.finish();
    this.scroll(false);
    return view;
  }

  // The article of an assistant's turn.
  answers(turn) {
    const article = make("article", "assistant"), pair = make("div", "answers");
    article.append(pair);
    const name = () => turn.answers.forEach((each, n) => heading(pair.children[n], labelOf(each)));
    article.grow = (view) => {
      pair.append(view.element);
      pair.classList.toggle("pair", turn.answers.length > 1);
      if (turn.answers.length > 1) name();
    };
    article.finish = () => {
      article.querySelector(".comparison")?.remove();
      article.querySelector(".again")?.remove();
      if (turn.comparison) article.append(comparisonView(turn.comparison, turn.answers.map(labelOf)));
      const single = turn.answers.length === 1;
      if (!single) name();
      (single ? article.querySelector(".under") : article).append(this.actions(turn));
    };
    for (const each of turn.answers) {
      const view = new AnswerView(each);
      view.draw();
      article.grow(view);
    }
    if (turn.answers.length) article.finish();
    return article;
  }

  actions(turn) {
    const called = turn.answers[0].calls.length > 0;
    const again = make("div", "again", button("Regenerate", () => this.regenerate()));
    if (called) again.append(button("Send results", () => this.reply()));
    return again;
  }

  scroll(always) {
    const { scrollHeight, scrollTop, clientHeight } = this.place;
    if (always || scrollHeight - scrollTop - clientHeight < 120) this.place.scrollTop = scrollHeight;
  }
}

function compareViews(views) {
  return compare(views.map((view) => view.tokens), views.map((view) => view.reason !== "length" && !view.stopped));
}

function heading(element, label) {
  element?.querySelector("h3.model")?.remove();
  element?.prepend(make("h3", "model", label));
}

// The model, and its backend unless the name has it.
function labelOf({ model, backend }) {
  return !backend || model.endsWith(`@${backend}`) ? model : `${model} (${backend})`;
}

function question({ text, pictures, sounds = [] }) {
  const shown = [...pictures.map((url) => pictureOf(url, "A picture of yours")), ...sounds.map((url) => playerOf(url, "A sound of yours"))];
  return make("article", "user", ...shown, ...(text ? [make("div", "text", text)] : []));
}

// -- turns as the messages of a request

export const messagesOf = (turns) => turns.flatMap((turn) => (turn.role === "user" ? [asked(turn)] : answered(turn.answers[0])));

function asked({ text, pictures, sounds = [] }) {
  const media = [...pictures.map((url) => ({ type: "image_url", image_url: { url } })), ...sounds.map(heard)];
  return { role: "user", content: media.length ? [...media, ...(text ? [{ type: "text", text }] : [])] : text };
}

function heard(url) {
  const [, kind, data] = /^data:audio\/([\w.-]+).*?,(.*)/s.exec(url);
  return { type: "input_audio", input_audio: { data, format: kind === "mpeg" ? "mp3" : kind.replace("x-", "") } };
}

function isJson(words) {
  try {
    return JSON.parse(words || "{}") !== undefined;
  } catch {
    return false;
  }
}

function answered(given) {
  if (!given || !(given.text || given.calls.length)) return [];
  const whole = given.calls.filter(({ arguments: words }) => isJson(words)); // an answer may end in the midst of a call
  if (!whole.length) return given.text ? [{ role: "assistant", content: given.text }] : [];
  const calls = whole.map(({ id, name, arguments: words }) => ({ id, type: "function", function: { name, arguments: words } }));
  const results = whole.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result }));
  return [{ role: "assistant", content: given.text, tool_calls: calls }, ...results];
}
