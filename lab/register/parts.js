// What all views share: the data, elements, the words of states, engines that a search names.
"use strict";

const { entries, levels, faults, changes } = REGISTER;
const newest = entries.filter((entry) => entry.newest);
const [PROFILE, NAME, DTYPE, STATE, PASSED, FAILED, UNSUPPORTED, WORST, PRECISIONS] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
const MARKS = { full: "✓", composite: "◇", part: "◐", unsupported: "–", failing: "✗", untried: "·" };
const WORDS = {
  full: "right, by a kernel of the engine's plugin",
  composite: "right, by core's composite of other ops",
  part: "right where it is supported; some dtypes or calls are not",
  unsupported: "declared unsupported",
  failing: "wrong results, or a claim that does not hold",
  untried: "not tried",
};
const SHORT = { full: "right", composite: "right, by core's composite", part: "in part", unsupported: "unsupported", failing: "wrong", untried: "not tried" };
const KIND = { full: "full", composite: "composite", partial: "part", unsupported: "unsupported", failing: "failing", "over-claimed": "failing", "under-claimed": "failing" };

/** An element with attributes and children; texts are never markup. */
function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

const fullName = (entry) => `${entry.title} ${entry.version === "unknown" ? "(version not recorded)" : entry.version}`;
const count = (number) => number.toLocaleString("en");
const linesOf = new Map(entries.map((entry) => [entry.id, new Map(entry.lines.map((line) => [line.slice(0, 3).join("/"), line]))]));
const lineOf = (entry, profile, name, dtype) => linesOf.get(entry.id).get(`${profile}/${name}/${dtype}`);

function badge(entry) {
  const kind = { none: "unsupported", reads: "composite", "keeps the contract": "full", proven: "part" }[entry.level];
  return el("span", { class: `badge ${kind}`, title: levels[entry.level] }, entry.level === "none" ? "no level" : entry.level);
}

function suiteOf(entry) {
  if (entry.current) return el("small", {}, `suite ${entry.suite}`);
  return el("small", { class: "older", title: "Judged by an older suite than the present one: other calls or bounds" }, `⚠ older suite ${entry.suite}${entry.digest ? `, ${entry.digest.slice(0, 6)}` : ""}`);
}

function head(entry, ...more) {
  const version = entry.version === "unknown" ? "version not recorded" : entry.version;
  const few = entry.flags.includes("--few-shapes") && el("small", { class: "older" }, "few shapes");
  const size = entry.size !== "default" && entry.size !== "nightly" && el("small", { class: "older" }, `${entry.size} run: few calls`);
  return el("th", { scope: "col" }, entry.title, el("small", {}, version), suiteOf(entry), few || "", size || "", ...more);
}

/** A table that scrolls by itself, which the keyboard reaches. */
function tableOf(label, heads, body, kind = "") {
  const table = el("table", { class: kind }, el("thead", {}, el("tr", {}, ...heads)), ...body);
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
}

function selectOf(label, options, chosen, onchange) {
  const made = options.map(([value, text]) => el("option", { value, selected: value === chosen }, text));
  return el("label", {}, `${label} `, el("select", { onchange: (event) => onchange(event.target.value) }, ...made));
}

function copyButton(text) {
  const button = el("button", { class: "copy", type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text).catch(() => selectText(button.parentElement.querySelector("pre")));
    button.textContent = "Copied";
    button.classList.add("copied");
  });
  return button;
}

function selectText(element) {
  const range = document.createRange();
  range.selectNodeContents(element);
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  document.execCommand("copy");
}

const file = (entry, name) => el("a", { href: `entries/${entry.folder}/${name}` }, name);
const FILLERS = new Set("a all an and any are at by call calls compute computed computes computing correct correctly do does dtype dtypes engine engines fail failing fails fault faults flush flushed flushes flushing for from has have how in is it mended n+1 new newly not of on op ops or refused right subnormal subnormals denormal denormals support supported supports that the to unsupported version versions what where which who with wrong".split(" "));

const SYNONYMS = { fp16: "f16", float16: "f16", half: "f16", fp32: "f32", float32: "f32", bfloat16: "bf16", int32: "i32", int64: "i64" };

/** The words of a search that name something: a question may be asked as a sentence. */
const words = (text) => text.toLowerCase().split(/[\s,?!·:]+/).filter((word) => word && !FILLERS.has(word)).map((word) => SYNONYMS[word] ?? word);

/** The faults of an engine's own code that name an op: its plugin may go round them. */
const faultsOf = (entry, name) => faults.filter((fault) => entry.projects.includes(fault.project) && new RegExp(`\\b${name}\\b`, "i").test(`${fault.fault} ${fault.effect}`));

/** Whether nothing goes round the engine's faults: a library as it is, or a provider op by op. */
const isAlone = (entry) => entry.flags.some((flag) => flag === "avoid=nothing" || flag.startsWith("ep="));

function aloneNote(entry, name) {
  const own = faultsOf(entry, name);
  const told = isAlone(entry) ? " Faults with scripts: " : " The engine without its plugin: ";
  return own.length ? [told, ...own.flatMap((fault, n) => [n ? "; " : "", el("a", { href: `#faults/${fault.id}` }, `${fault.fault} (${fault.shown})`)]), "."] : [];
}

/** What an answer by this entry must be read with. */
const caveat = (entry) => `${entry.size === "smoke" ? " By a smoke run." : ""}${entry.current ? "" : " By an older suite."}`;

function includesAll(text, query) {
  const lower = text.toLowerCase();
  const dense = lower.replace(/[\s_-]/g, "");
  return words(query).every((word) => lower.includes(word) || dense.includes(word.replace(/[_-]/g, "")));
}
