// The page: model choice, settings, the message box, and the panels.

import { get } from "./answers.js";
import { Chat } from "./chat.js";
import { make } from "./markdown.js";
import { Pictures } from "./pictures.js";
import { StateView } from "./state.js";

const find = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const [box, prompt, send, stop, select, status] = ["composer", "prompt", "send", "stop", "model", "status"].map(find);

const chat = new Chat(find("messages"), () => ({
  model: select.value,
  key: find("key").value,
  system: find("system").value.trim(),
  ...Object.fromEntries(NUMBERS.filter((id) => find(id).value !== "").map((id) => [id, Number(find(id).value)])),
}));
const pictures = new Pictures(find("pictures"), () => refresh());
const view = new StateView(find("state"));

// -- sending -----------------------------------------------------------------------------------------------

function refresh() {
  const busy = Boolean(chat.running);
  send.hidden = busy;
  stop.hidden = !busy;
  send.disabled = !select.value || !(prompt.value.trim() || pictures.urls.length);
}

function grow() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

function submit(text) {
  if (chat.running || !select.value || !(text || pictures.urls.length)) return;
  prompt.value = "";
  grow();
  chat.ask(text, pictures.take());
}

chat.changed = refresh;
box.addEventListener("submit", (event) => {
  event.preventDefault();
  submit(prompt.value.trim());
});
prompt.addEventListener("input", () => { grow(); refresh(); });
prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit(prompt.value.trim());
  }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") chat.stop(); });
stop.addEventListener("click", () => chat.stop());
find("new").addEventListener("click", () => { chat.clear(); prompt.focus(); });
for (const idea of document.querySelectorAll(".ideas button")) idea.addEventListener("click", () => submit(idea.textContent));

// -- pictures ----------------------------------------------------------------------------------------------

const attach = find("attach"), file = find("file");
attach.addEventListener("click", () => file.click());
file.addEventListener("change", () => { pictures.add(file.files).then(() => { file.value = ""; }); });
prompt.addEventListener("paste", (event) => { if (!attach.hidden) pictures.add(event.clipboardData.files); });
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  if (!attach.hidden) pictures.add(event.dataTransfer.files);
});

// -- settings ----------------------------------------------------------------------------------------------

for (const range of document.querySelectorAll("input[type=range]")) {
  const show = () => { range.nextElementSibling.textContent = Number(range.value).toFixed(2); };
  range.addEventListener("input", show);
  show();
}
for (const id of [...NUMBERS, "system", "key"]) {
  const kept = sessionStorage.getItem(id);
  if (kept !== null) {
    find(id).value = kept;
    find(id).dispatchEvent(new Event("input"));
  }
  find(id).addEventListener("change", () => sessionStorage.setItem(id, find(id).value));
}
find("key").addEventListener("change", () => connect());
select.addEventListener("change", () => { sessionStorage.setItem("model", select.value); poll(); });

for (const id of ["settings", "state"]) {
  const button = find(`show-${id}`);
  button.addEventListener("click", () => {
    find(id).hidden = !find(id).hidden;
    button.setAttribute("aria-expanded", String(!find(id).hidden));
    if (id === "state") poll();
  });
}

// -- the server --------------------------------------------------------------------------------------------

function tell(text, bad = false) {
  status.textContent = text;
  status.classList.toggle("bad", bad);
}

async function connect() {
  try {
    const { data } = await get("/v1/models", find("key").value);
    const chosen = select.value || sessionStorage.getItem("model");
    select.replaceChildren(...data.map(({ id }) => {
      const option = make("option");
      option.value = option.textContent = id;
      option.selected = id === chosen;
      return option;
    }));
    tell(data.length ? "" : "The server has no models.");
  } catch (error) {
    tell(error.status === 401 ? "This server wants an API key: see Settings." : error.message, true);
  }
  refresh();
  poll();
}

async function poll() {
  try {
    const state = await get("/state", find("key").value);
    view.take(state);
    const mine = state.models.find((model) => model.name === select.value);
    attach.hidden = !mine?.images;
    if (select.value) tell(state.draining ? "The server is about to end." : mine && !mine.slots ? `${mine.status} ${Math.round(100 * mine.progress)} %` : "");
  } catch (error) {
    if (error.status !== 401) tell("The server does not answer.", true);
  }
}

setInterval(() => { if (!document.hidden) poll(); }, 1000);
connect();
