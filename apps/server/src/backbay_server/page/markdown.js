// Markdown as elements. Text becomes text nodes only: an answer cannot bring elements, scripts or links of its own.

const FENCE = /^\s*(```|~~~)\s*([\w+#.-]*)/;

export function render(source) {
  const lines = source.split("\n"), found = document.createDocumentFragment();
  let at = 0;
  while (at < lines.length) {
    const [element, next] = blockAt(lines, at);
    if (element) found.append(element);
    at = next;
  }
  return found;
}

function blockAt(lines, at) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  if (FENCE.test(line)) return code(lines, at);
  const heading = /^(#{1,6})\s+(.*)/.exec(line);
  if (heading) return [inline(make("h3"), heading[2]), at + 1];
  if (/^\s*([-*+]|\d+[.)])\s+/.test(line)) return list(lines, at);
  if (/^\s*>/.test(line)) return quote(lines, at);
  if (line.includes("|") && /^\s*\|?\s*:?-{2,}/.test(lines[at + 1] ?? "")) return table(lines, at);
  return paragraph(lines, at);
}

function code(lines, at) {
  const [, fence, language] = FENCE.exec(lines[at]);
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(fence)) end += 1;
  const text = lines.slice(at + 1, end).join("\n");
  const block = make("div", "block"), head = make("div"), copy = make("button");
  copy.type = "button";
  copy.textContent = "Copy";
  copy.addEventListener("click", () => copied(copy, text));
  head.append(language || "text", copy);
  const pre = make("pre"), inner = make("code");
  inner.textContent = text;
  pre.append(inner);
  block.append(head, pre);
  return [block, end + 1];
}

function list(lines, at) {
  const ordered = /^\s*\d/.test(lines[at]), found = make(ordered ? "ol" : "ul");
  if (ordered) found.start = parseInt(lines[at], 10);
  while (at < lines.length) {
    const item = /^\s*(?:[-*+]|\d+[.)])\s+(.*)/.exec(lines[at]);
    if (!item) break;
    let text = item[1];
    at += 1;
    while (at < lines.length && /^\s+\S/.test(lines[at]) && !/^\s*([-*+]|\d+[.)])\s/.test(lines[at])) {
      text += " " + lines[at].trim();
      at += 1;
    }
    found.append(inline(make("li"), text));
  }
  return [found, at];
}

function quote(lines, at) {
  const inner = [];
  while (at < lines.length && /^\s*>/.test(lines[at])) {
    inner.push(lines[at].replace(/^\s*>\s?/, ""));
    at += 1;
  }
  return [inline(make("blockquote"), inner.join(" ")), at];
}

function table(lines, at) {
  const found = make("table"), head = row(lines[at], "th");
  found.append(head);
  at += 2;
  while (at < lines.length && lines[at].includes("|")) {
    found.append(row(lines[at], "td"));
    at += 1;
  }
  return [found, at];
}

function row(line, kind) {
  const found = make("tr");
  for (const cell of line.trim().replace(/^\||\|$/g, "").split("|")) found.append(inline(make(kind), cell.trim()));
  return found;
}

function paragraph(lines, at) {
  const found = make("p");
  const begin = at;
  while (at < lines.length && lines[at].trim() && (at === begin || !startsBlock(lines[at]))) {
    if (at > begin) found.append(make("br"));
    inline(found, lines[at]);
    at += 1;
  }
  return [found, at];
}

function startsBlock(line) {
  return FENCE.test(line) || /^(#{1,6}\s|\s*([-*+]|\d+[.)])\s|\s*>)/.test(line);
}

function inline(into, text) {
  const marks = /(`+)([\s\S]+?)\1|\*\*([^*]+)\*\*|__([^_]+)__|(?<!\w)\*([^*\s][^*]*)\*(?!\w)/g;
  let last = 0;
  for (const found of text.matchAll(marks)) {
    into.append(text.slice(last, found.index));
    const [whole, , literal, strong, alsoStrong, emphasis] = found;
    const element = make(literal !== undefined ? "code" : emphasis !== undefined ? "em" : "strong");
    element.textContent = literal ?? strong ?? alsoStrong ?? emphasis;
    into.append(element);
    last = found.index + whole.length;
  }
  into.append(text.slice(last));
  return into;
}

export function make(tag, kind = "") {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  return element;
}

export async function copied(button, text) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => { button.textContent = before; }, 1200);
}
