// The conversation: messages, the answer in progress, stop and regenerate.

import { answer } from "./answers.js";
import { copied, make, render } from "./markdown.js";

export class Chat {
  constructor(place, options) {
    this.place = place;
    this.options = options; // () => the model, the key, and the fields of a request
    this.turns = [];
    this.running = null;
    this.changed = () => {};
  }

  clear() {
    this.stop();
    this.turns = [];
    for (const article of this.place.querySelectorAll("article")) article.remove();
    this.place.querySelector("#welcome").hidden = false;
  }

  stop() {
    this.running?.abort();
  }

  async ask(text, pictures) {
    this.place.querySelector("#welcome").hidden = true;
    const images = pictures.map((url) => ({ type: "image_url", image_url: { url } }));
    this.turns.push({ role: "user", content: images.length ? [...images, { type: "text", text }] : text });
    this.place.append(asked(text, pictures));
    await this.reply();
  }

  async regenerate() {
    if (this.running) return;
    while (this.turns.at(-1)?.role === "assistant") this.turns.pop();
    this.place.querySelector("article:last-of-type.assistant")?.remove();
    await this.reply();
  }

  async reply() {
    const shown = new Reply(this), stopper = new AbortController(), { key, system, ...fields } = this.options();
    this.running = stopper;
    this.place.append(shown.article);
    this.changed();
    this.scroll(true);
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...this.turns];
    try {
      for await (const event of answer({ ...fields, messages }, key, stopper.signal)) {
        shown.take(event);
        this.scroll(false);
      }
      shown.end();
    } catch (error) {
      shown.end(error.name === "AbortError" ? "stopped" : "", error.name === "AbortError" ? "" : error.message);
    }
    if (shown.text) this.turns.push({ role: "assistant", content: shown.text });
    this.running = null;
    this.changed();
    this.scroll(false);
  }

  scroll(always) {
    const { scrollHeight, scrollTop, clientHeight } = this.place;
    if (always || scrollHeight - scrollTop - clientHeight < 120) this.place.scrollTop = scrollHeight;
  }
}

class Reply {
  constructor(chat) {
    this.chat = chat;
    this.text = "";
    this.thoughts = "";
    this.begun = performance.now();
    this.first = 0;
    this.count = 0;
    this.article = make("article", "assistant busy");
    this.thought = make("div", "thought");
    this.thought.hidden = true;
    this.shown = make("div", "text");
    this.under = make("div", "under");
    this.article.append(this.thought, this.shown, this.under);
    this.drawing = 0;
  }

  take(event) {
    const delta = event.choices[0]?.delta ?? {};
    const piece = delta.content ?? "", thought = delta.reasoning_content ?? "";
    if (piece || thought) this.first ||= performance.now();
    this.text += piece;
    this.thoughts += thought;
    this.reason = event.choices[0]?.finish_reason ?? this.reason;
    this.usage = event.usage ?? this.usage;
    this.drawing ||= requestAnimationFrame(() => this.draw()); // once a frame, however fast the tokens come
  }

  draw() {
    this.drawing = 0;
    this.thought.hidden = !this.thoughts;
    this.thought.textContent = this.thoughts.trim();
    this.shown.replaceChildren(render(this.text));
  }

  end(reason = this.reason, fault = "") {
    cancelAnimationFrame(this.drawing);
    this.draw();
    this.article.classList.remove("busy");
    if (fault) {
      const box = make("div", "fault");
      box.setAttribute("role", "alert");
      box.textContent = fault;
      this.shown.after(box);
    }
    this.under.append(this.button("Copy", (button) => copied(button, this.text)), this.button("Regenerate", () => this.chat.regenerate()), this.told(reason));
  }

  told(reason) {
    const seconds = (performance.now() - this.first) / 1000, tokens = this.usage?.completion_tokens;
    const parts = [];
    if (tokens) parts.push(`${tokens} tokens`);
    if (tokens > 1 && this.first) parts.push(`${((tokens - 1) / seconds).toFixed(1)} a second`);
    if (this.first) parts.push(`first after ${((this.first - this.begun) / 1000).toFixed(2)} s`);
    if (this.first === 0 && tokens) parts.push("an empty answer");
    if (reason === "length") parts.push("ended at the limit");
    if (reason === "stopped") parts.push("stopped");
    const span = make("span");
    span.textContent = parts.join(" · ");
    return span;
  }

  button(name, act) {
    const button = make("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", () => act(button));
    return button;
  }
}

function asked(text, pictures) {
  const article = make("article", "user"), shown = make("div", "text");
  for (const url of pictures) {
    const image = make("img");
    image.src = url;
    image.alt = "A picture of yours";
    article.append(image);
  }
  shown.textContent = text;
  article.append(shown);
  return article;
}
