// Markdown as elements. markdown-it gives tokens and highlight.js scopes, elements come from the lists below, and text becomes
// text nodes: an answer brings no HTML, script or picture of its own, and no link but to http, https and mail.

import { copyButton, make } from "./elements.js";
import highlight from "./libraries/highlight.js";
import markdownit from "./libraries/markdown-it.js";

const TAGS = new Set("p ul ol li blockquote table thead tbody tr th td strong em s".split(" "));
const HEADINGS = { h1: "h3", h2: "h4", h3: "h5" }; // the page has an h1 and h2 of its own
const LINKS = new Set(["http:", "https:", "mailto:"]);
const MOST_COLOURED = 50000; // characters of code
const DEEPEST = 20; // scopes in scopes
const PARSER = markdownit({ html: false, linkify: true, breaks: true });
PARSER.linkify.set({ fuzzyLink: false, fuzzyEmail: false }); // page.py is no address

// Markdown that grows: blocks whose source stays the same keep their elements, and what is selected in them.
export class Markdown {
  constructor(place) {
    this.place = place;
    this.sources = [];
  }

  show(text, whole = true) {
    const found = {}, blocks = blocksOf(PARSER.parse(text, found)), lines = text.split(/\r\n?|\n/);
    const sources = blocks.map(([{ type, map }]) => `${type} ${lines.slice(...map).join("\n")}`);
    let same = 0;
    while (same < sources.length && sources[same] === this.sources[same]) same += 1;
    if (whole && found.references) same = 0; // a reference may give earlier blocks their links
    while (this.place.children.length > same) this.place.lastElementChild.remove();
    for (const block of blocks.slice(same)) build(block, this.place);
    this.sources = sources;
  }
}

export function render(text) {
  const place = make("div");
  new Markdown(place).show(text);
  return place;
}

function blocksOf(tokens) {
  const blocks = [];
  let depth = 0;
  for (const token of tokens) {
    if (!depth) blocks.push([]);
    blocks.at(-1).push(token);
    depth += token.nesting;
  }
  return blocks;
}

function build(tokens, place) {
  const places = [place];
  for (const token of tokens) {
    if (token.nesting < 0) places.pop();
    else if (token.nesting) places.push(token.hidden ? places.at(-1) : begin(token, places.at(-1)));
    else if (token.type === "inline") build(withoutBox(token, places.at(-1)), places.at(-1));
    else places.at(-1).append(leaf(token));
  }
}

function begin(token, place) {
  const element = token.tag === "a" ? link(token.attrGet("href")) : make(tagOf(token.tag));
  if (token.tag === "ol" && token.attrGet("start") !== null) element.start = token.attrGet("start");
  const align = /^text-align:(left|center|right)$/.exec(token.attrGet("style"));
  if (align) element.style.textAlign = align[1];
  place.append(element);
  return element;
}

const tagOf = (tag) => (/^h\d$/.test(tag) ? HEADINGS[tag] ?? "h6" : TAGS.has(tag) ? tag : "span");

function leaf(token) {
  switch (token.type) {
    case "fence":
    case "code_block": return code(token.content, token.info.trim().split(/\s/)[0]);
    case "code_inline": return make("code", "", token.content);
    case "softbreak":
    case "hardbreak": return make("br");
    case "hr": return make("hr");
    case "image": return picture(token);
    default: return token.content;
  }
}

// A link to where the address says, without telling that place where it comes from.
function link(address) {
  const url = URL.canParse(address) ? new URL(address) : null;
  if (!url || !LINKS.has(url.protocol)) return make("span");
  const element = make("a");
  Object.assign(element, { href: url.href, title: url.href, target: "_blank", rel: "noopener noreferrer nofollow" });
  return element;
}

// A picture is a link: to fetch it would tell its address, and what a model writes into it, to somebody else.
function picture(token) {
  const element = link(token.attrGet("src"));
  element.append(token.content || "picture");
  return element;
}

// The tokens of a text; those after the box if it is a task of a list.
function withoutBox({ children }, place) {
  const item = place.tagName === "P" ? place.parentElement : place, first = children[0];
  const mark = first?.type === "text" && /^\[([ xX])\](?:\s+|$)/.exec(first.content);
  if (!mark || item.tagName !== "LI" || item.textContent || (children.length === 1 && mark[0] === first.content)) return children;
  const box = make("input");
  Object.assign(box, { type: "checkbox", disabled: true, checked: mark[1] !== " " });
  box.setAttribute("aria-label", box.checked ? "done" : "to do");
  item.classList.add("task");
  place.append(box);
  first.content = first.content.slice(mark[0].length);
  return children;
}

function code(content, language) {
  const text = content.replace(/\n$/, ""), head = make("div", "", make("span", "", language || "text"), copyButton(() => text));
  return make("div", "block", head, make("pre", "", make("code", "", ...coloured(text, language))));
}

// Code as texts and spans, by the scopes of its language.
export function coloured(text, language) {
  if (!highlight.getLanguage(language) || text.length > MOST_COLOURED) return [text];
  const result = highlight.highlight(text, { language, ignoreIllegals: true }), whole = make("code");
  if (result.errorRaised) return [text];
  const work = [[result._emitter.root, whole, 0]]; // no recursion: scopes may be as deep as the code is long
  while (work.length) {
    const [node, place, depth] = work.pop();
    if (typeof node === "string") place.append(node);
    else {
      const inner = depth && depth < DEEPEST ? make("span", `code-${(node.scope ?? "").split(/[.:]/)[0]}`) : place;
      if (inner !== place) place.append(inner);
      for (const child of node.children.toReversed()) work.push([child, inner, depth + 1]);
    }
  }
  return [...whole.childNodes];
}
