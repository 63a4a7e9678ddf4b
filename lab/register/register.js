// The page: its views by address, the search, and an answer in words.
"use strict";

const VIEWS = {
  ops: ["Ops", matrixView],
  engines: ["Engines", enginesView],
  pair: ["Side by side", pairView],
  errors: ["Worst errors", errorsView],
  speed: ["Speed", speedView],
  refused: ["Refused, failing", refusedView],
  versions: ["Versions", versionsView],
  faults: ["Faults", faultsView],
};
const view = document.getElementById("view");
const query = document.getElementById("query");
const tabs = document.getElementById("tabs");
const answer = document.getElementById("answer");

for (const [name, [title]] of Object.entries(VIEWS)) tabs.append(el("li", {}, el("a", { href: `#${name}`, id: `tab-${name}` }, title)));

/** The view, its part and the search that the address names. */
function place() {
  const [, hash, asked = ""] = /^(.*?)(?:(?:\?|^)q=(.*))?$/.exec(location.hash.slice(1)).map((part) => part && decodeURIComponent(part));
  if (hash.startsWith("engine-")) return ["engines", hash, asked];
  const [name, ...rest] = hash.split("/");
  return [name in VIEWS ? name : (firstView(asked) ?? "ops"), rest.join("/"), asked];
}

/** The address of a view with a search. */
const address = (name, text) => `#${name}${text ? `?q=${encodeURIComponent(text)}` : ""}`;

function draw() {
  const [name, part, text] = place();
  if (query.value.trim() !== text) query.value = text;
  for (const link of tabs.querySelectorAll("a")) {
    link.removeAttribute("aria-current");
    link.href = address(link.id.slice(4), text);
  }
  const tab = document.getElementById(`tab-${name}`);
  tab.setAttribute("aria-current", "page");
  tabs.scrollLeft = tab.offsetLeft - tabs.clientWidth / 2;
  view.replaceChildren(...VIEWS[name][1](text, part).filter(Boolean));
  showAnswer(text);
  if (part) document.getElementById(part)?.scrollIntoView();
}

/** A search in words: an op with a dtype, subnormals, or faults that are new. */
function showAnswer(text) {
  const found = text ? (aboutSubnormals(text) ?? aboutOps(text)) : null;
  answer.hidden = !found;
  answer.replaceChildren(...(found ?? []));
}

function aboutSubnormals(text) {
  if (!/subnormal|denormal|flush/i.test(text)) return null;
  const flush = newest.filter((entry) => entry.flushed.length);
  const keep = newest.filter((entry) => !entry.flushed.length);
  return [el("h2", {}, "Which engines flush subnormals?"),
    el("ul", {}, ...flush.map((entry) => el("li", {}, el("strong", {}, fullName(entry)), ` declares to flush them in ${entry.flushed.length} ops, on ${entry.device}.${caveat(entry)}`)),
      el("li", {}, `No flushing declared: ${keep.map(fullName).join(", ") || "none"}. Whoever flushes without a declaration fails where the suite's data are subnormal.`))];
}

function aboutOps(text) {
  const { rows, dtypes, known } = matching(rowsOf(false), text);
  const { engines } = readQuery(text);
  if (!known.length || rows.length > 3 || !rows.length) return null;
  const shown = engines.length ? entries.filter((entry) => engines.includes(entry)) : newest;
  return rows.flatMap((row) => {
    const name = `${row.name}${row.profile === "core" ? "" : ` (${row.profile})`}`;
    if (!dtypes.length) return [el("h2", {}, `${name}: is it right?`), el("ul", {}, ...shown.map((entry) => overview(entry, row)))];
    return [el("h2", {}, `${name} in ${dtypes.join(", ")}: is it right?`), el("ul", {}, ...shown.flatMap((entry) => dtypes.map((dtype) => sentence(entry, row, dtype))))];
  });
}

const ANSWERS = { full: "right", composite: "right by core's composite", part: "right where supported", unsupported: "unsupported", failing: "wrong" };

/** The dtypes of an op, by how an engine computes them. */
function overview(entry, row) {
  const { kind, lines } = summary(entry, row);
  const told = Object.entries(ANSWERS).flatMap(([each, word]) => {
    const own = lines.filter((line) => KIND[line[STATE]] === each).map((line) => line[DTYPE]).sort(byDtype);
    return own.length ? [`${word} in ${own.join(", ")}`] : [];
  });
  return el("li", {}, el("span", { class: `mark ${kind}`, "aria-hidden": "true" }, MARKS[kind]), " ", el("strong", {}, fullName(entry)), `: ${told.join("; ") || "not tried"}.${caveat(entry)}`, ...aloneNote(entry, row.name));
}

function sentence(entry, row, dtype) {
  const line = lineOf(entry, row.profile, row.name, dtype);
  const name = el("strong", {}, `${fullName(entry)}${dtype ? `, ${dtype}` : ""}`);
  if (!line) return el("li", {}, el("span", { class: "mark untried", "aria-hidden": "true" }, MARKS.untried), " ", name, `: not tried${entry.flags.includes("--few-shapes") ? ", in a run of few shapes" : ""}.`);
  const kind = KIND[line[STATE]];
  const yes = { full: "Yes", composite: "Yes, by core's composite", part: "Yes, where supported", unsupported: "Not supported", failing: "No" }[kind];
  const calls = kind === "failing" ? `${line[FAILED]} of ${line[FAILED] + line[PASSED]} calls are wrong` : kind === "unsupported" ? "it says so itself" : `${line[PASSED]} calls right, the worst at ${line[WORST]} of its error bound, computed in ${[...new Set(line[PRECISIONS])].join(", ")}, on ${entry.device}`;
  return el("li", {}, el("span", { class: `mark ${kind}`, "aria-hidden": "true" }, MARKS[kind]), " ", name, `: ${yes}; ${calls}.${caveat(entry)}`, ...aloneNote(entry, row.name));
}

const FIRST_VIEW = [[/subnormal|denormal|flush/i, "engines"], [/\b(new|newly|mended|version)\b|n\+1/i, "versions"], [/unsupported|refused|fails?\b/i, "refused"]];

const firstView = (text) => FIRST_VIEW.find(([pattern]) => pattern.test(text))?.[1];

const WITHOUT_OPS = new Set(["engines", "versions", "faults"]);

/** The search goes into the address; another view is shown if the search names what only that one shows. */
function search(text) {
  const [now] = place();
  const wanted = firstView(text) ?? (WITHOUT_OPS.has(now) && aboutOps(text) ? "ops" : now);
  history[wanted === now ? "replaceState" : "pushState"](null, "", address(wanted, text.trim()));
  draw();
}

let waiting = 0;
query.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => search(query.value), 120);
});
addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== query && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    query.focus();
  }
});
addEventListener("hashchange", draw);
draw();
