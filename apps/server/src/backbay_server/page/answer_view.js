// One model's answer as it grows: thinking and calls of tools in folds, the text, and its figures.

import { copyButton, make } from "./elements.js";
import { Markdown, coloured } from "./markdown.js";

const FRAME = 16; // milliseconds

// What is kept of an answer. `unfinished` while it grows, and if the page was left meanwhile.
export const newAnswer = (model) => ({ model, text: "", thoughts: "", calls: [], note: "", fault: "", unfinished: true });

export class AnswerView {
  constructor(answer) {
    this.answer = answer;
    this.tokens = []; // with their log-probabilities, if they were asked for
    this.begun = performance.now();
    this.first = this.drawing = this.cost = 0;
    this.thoughts = fold("Thinking", "thoughts");
    this.calls = make("div", "calls");
    this.text = make("div", "text");
    this.markdown = new Markdown(this.text);
    this.under = make("div", "under");
    this.element = make("section", "answer", this.thoughts, this.text, this.calls, this.under);
  }

  // -- as it grows

  take(event) {
    const choice = event.choices[0], delta = choice?.delta ?? {}, { answer } = this;
    if (delta.content || delta.reasoning_content || delta.tool_calls) this.first ||= performance.now();
    answer.text += delta.content ?? "";
    answer.thoughts += delta.reasoning_content ?? "";
    for (const call of delta.tool_calls ?? []) this.call(call);
    this.tokens.push(...(choice?.logprobs?.content ?? []));
    this.reason = choice?.finish_reason ?? this.reason;
    this.timings = event.timings ?? this.timings;
    this.drawing ||= setTimeout(() => this.draw(false), Math.max(FRAME, 4 * this.cost)); // however fast the tokens come
  }

  call({ index, id, function: piece }) {
    const call = (this.answer.calls[index] ??= { id, name: piece.name, arguments: "", result: "" });
    call.arguments += piece.arguments ?? "";
  }

  end({ stopped = false, fault = "" } = {}) {
    clearTimeout(this.drawing);
    this.stopped = stopped || Boolean(fault);
    Object.assign(this.answer, { fault, note: this.figures(stopped), unfinished: false });
    this.draw();
    return this;
  }

  figures(stopped) {
    const parts = [], { timings } = this, wait = (this.first - this.begun) / 1000;
    if (timings) parts.push(`${timings.predicted_n} tokens`);
    if (timings?.predicted_n > 1) parts.push(`${timings.predicted_per_second.toFixed(1)} a second`);
    if (timings?.prompt_n > 1) parts.push(`prompt ${timings.prompt_per_second.toFixed(0)} a second`);
    if (this.first) parts.push(`first after ${wait.toFixed(2)} s`);
    else if (timings) parts.push("an empty answer");
    if (this.reason === "length") parts.push("ended at the limit");
    if (this.reason === "silence") parts.push("nothing is said");
    if (stopped) parts.push("stopped");
    return parts.join(" · ");
  }

  // -- as it looks

  draw(whole = true) {
    const begun = performance.now();
    const { text, thoughts, calls, unfinished } = this.answer, thinking = unfinished && !text && !calls.length;
    this.thoughts.hidden = !thoughts;
    if (this.thinking !== thinking) this.thoughts.open = this.thinking = thinking; // afterwards it is the reader's
    this.thoughts.lastElementChild.textContent = thoughts.trim();
    this.markdown.show(text, whole);
    calls.forEach((call, n) => this.drawCall(call, n));
    if (whole) this.finish();
    this.drawing = 0;
    this.cost = performance.now() - begun;
  }

  drawCall(call, n) {
    this.calls.append(...(this.calls.children[n] ? [] : [callFold(call)]));
    this.calls.children[n].querySelector("code").replaceChildren(...coloured(readable(call.arguments), "json"));
  }

  // The answer when it is whole, or as it was kept.
  finish() {
    const { text, note, fault, unfinished } = this.answer;
    this.element.querySelector(".fault")?.remove();
    if (fault) {
      const box = make("div", "fault", fault);
      box.setAttribute("role", "alert");
      this.under.before(box);
    }
    this.under.replaceChildren(copyButton(() => text), make("span", "", unfinished ? "interrupted" : note));
  }
}

function callFold(call) {
  const result = make("textarea"), element = fold(`Call of ${call.name}`, "call", make("pre", "", make("code")), result);
  Object.assign(result, { rows: 2, value: call.result, placeholder: "What the tool gives back" });
  result.setAttribute("aria-label", `Result of ${call.name}`);
  result.addEventListener("input", () => { call.result = result.value; });
  return element;
}

function fold(name, kind, ...children) {
  return make("details", kind, make("summary", "", name), make("div", "", ...children));
}

function readable(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // it grows still
  }
}
