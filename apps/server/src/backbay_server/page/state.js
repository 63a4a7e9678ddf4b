// The server's state: slots, queue, tokens per second, and memory by device and layer as a picture.

import { make } from "./elements.js";

const KEPT = 120;
const PARTS = ["weights", "cache", "graph", "input", "host"];
const SVG = "http://www.w3.org/2000/svg";

export class StateView {
  constructor(root) {
    this.find = (id) => root.querySelector(`#${id}`);
    this.rates = [];
    this.last = null;
  }

  take(state) {
    const now = performance.now(), total = state.generated_tokens;
    if (this.last) {
      const rate = Math.max(0, (total - this.last.total) / ((now - this.last.now) / 1000));
      this.rates = [...this.rates, rate].slice(-KEPT);
    }
    this.last = { now, total };
    const waiting = state.models.reduce((sum, model) => sum + (model.waiting ?? model.requests), 0);
    this.find("rate").textContent = (this.rates.at(-1) ?? 0).toFixed(1);
    this.find("running").textContent = state.models.reduce((sum, model) => sum + busy(model), 0);
    this.find("waiting").textContent = waiting;
    drawHistory(this.find("history"), this.rates);
    this.find("models").replaceChildren(...(state.models.length ? state.models.map(held) : [nothing()]));
  }
}

const busy = (model) => (model.slots ?? []).filter((slot) => slot.busy).length;

function nothing() {
  const text = make("p", "note");
  text.textContent = "No model is in memory; the first request loads one.";
  return text;
}

function drawHistory(svg, rates) {
  const most = Math.max(1, ...rates), step = 300 / (KEPT - 1), begin = KEPT - rates.length;
  const points = rates.map((rate, n) => `${((begin + n) * step).toFixed(1)} ${(53 - (rate / most) * 48).toFixed(1)}`);
  if (points.length < 2) return;
  const line = element("path", { class: "line", d: `M${points.join("L")}` });
  const area = element("path", { class: "area", d: `M${points.join("L")}L300 56L${(begin * step).toFixed(1)} 56Z` });
  svg.replaceChildren(area, line);
}

function held(model) {
  const card = make("section", "held"), title = make("h3"), badge = make("span", `badge ${model.status}`), name = make("span");
  name.textContent = model.name;
  badge.textContent = model.status;
  title.append(name, badge);
  card.append(title);
  if (!model.slots) {
    const bar = make("progress");
    bar.value = model.progress;
    card.append(bar);
    return card;
  }
  const facts = make("div", "facts");
  facts.textContent = `${model.backend ?? "a backend"} · ${busy(model)} of ${model.slots.length} slots busy · ${model.waiting} waiting · context ${model.context.toLocaleString()}`;
  card.append(facts, slots(model), ...model.memory.map(device));
  return card;
}

function slots(model) {
  const row = make("div", "slots");
  row.append(...model.slots.map((slot, n) => {
    const bar = make("i", slot.busy ? "busy" : "");
    bar.style.setProperty("--full", `${Math.min(100, (100 * slot.tokens) / model.context)}%`);
    bar.title = `slot ${n}: ${slot.busy ? "busy" : "free"}, ${slot.tokens} of ${model.context} tokens held`;
    return bar;
  }));
  return row;
}

function device(memory) {
  const totals = { weights: sum(memory.weights), cache: sum(memory.cache), graph: memory.graph, input: memory.input, host: memory.host };
  const part = make("div", "device"), title = make("h4"), name = make("span"), total = make("span");
  name.textContent = memory.name === memory.id ? memory.id : `${memory.name} (${memory.id})`;
  total.textContent = human(sum(Object.values(totals)));
  title.append(name, total);
  part.append(title, share(totals), layers(memory), legend(totals));
  return part;
}

function share(totals) {
  const svg = element("svg", { viewBox: "0 0 320 12", role: "img", "aria-label": "Memory by use" }), whole = sum(Object.values(totals)) || 1;
  let at = 0;
  for (const kind of PARTS) {
    const width = (320 * totals[kind]) / whole;
    svg.append(block(kind, at, 0, Math.max(0, width - 1), 9, `${kind}: ${human(totals[kind])}`));
    at += width;
  }
  return svg;
}

function layers(memory) {
  const count = Math.max(memory.weights.length, memory.cache.length), high = 78;
  const svg = element("svg", { viewBox: `0 0 320 ${high + 12}`, role: "img", "aria-label": "Memory of each layer" });
  if (!count) return svg;
  const of = (n) => [memory.weights[n] ?? 0, memory.cache[n] ?? 0];
  const most = Math.max(1, ...Array.from({ length: count }, (_, n) => sum(of(n)))), wide = 320 / count;
  const gap = Math.min(2, wide * 0.2);
  for (let n = 0; n < count; n += 1) {
    const [weights, cache] = of(n), name = n === count - 1 ? "output layer" : `layer ${n}`;
    const tall = (weights / most) * high, above = (cache / most) * high;
    svg.append(block("weights", n * wide, high - tall, wide - gap, tall, `${name}: weights ${human(weights)}`));
    svg.append(block("cache", n * wide, high - tall - above, wide - gap, above, `${name}: cache ${human(cache)}`));
  }
  for (const [x, anchor, text] of [[0, "start", "layer 0"], [320, "end", "output"]]) {
    const label = element("text", { x, y: high + 10, class: "axis", "text-anchor": anchor });
    label.textContent = text;
    svg.append(label);
  }
  return svg;
}

function legend(totals) {
  const list = make("ul", "legend");
  for (const kind of PARTS) {
    if (!totals[kind]) continue;
    const item = make("li"), mark = make("i", kind);
    item.append(mark, `${kind} ${human(totals[kind])}`);
    list.append(item);
  }
  return list;
}

function block(kind, x, y, width, height, title) {
  const rect = element("rect", { class: kind, x, y, width, height, rx: 1.2 }), told = element("title", {});
  told.textContent = title;
  rect.append(told);
  return rect;
}

function element(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);

export function human(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    unit += 1;
  }
  return unit ? `${bytes.toFixed(1)} ${units[unit]}` : `${bytes} B`;
}
