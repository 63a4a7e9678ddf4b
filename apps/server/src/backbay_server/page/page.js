// The page: model choice, settings, the message box, and the panels.

import { get } from "./answers.js";
import { Attachments } from "./attachments.js";
import { Chat, messagesOf } from "./chat.js";
import { Conversations, conversationItem, download, newConversation } from "./conversations.js";
import { Recorder, canRecord } from "./recorder.js";
import { StateView } from "./state.js";

const find = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const [box, prompt, send, stop, select, rival, status] = ["composer", "prompt", "send", "stop", "model", "rival", "status"].map(find);

const store = new Conversations();
const chat = new Chat(find("messages"), options, keep);

function options() {
  const tools = toolsOf();
  return {
    models: [select.value, ...(compares() ? [rival.value] : [])],
    key: find("key").value,
    system: find("system").value.trim(),
    transcribes,
    ...(tools?.length ? { tools } : {}),
    ...Object.fromEntries(NUMBERS.filter((id) => find(id).value !== "").map((id) => [id, Number(find(id).value)])),
  };
}

const compares = () => rival.value && rival.value !== select.value;

// The list of tools; null if it is none.
function toolsOf() {
  try {
    const tools = JSON.parse(find("tools").value.trim() || "[]");
    return Array.isArray(tools) ? tools : null;
  } catch {
    return null;
  }
}

let transcribes = false; // whether the model writes transcripts, and nothing else
const attachments = new Attachments(find("attachments"), () => refresh(), warn);
const view = new StateView(find("state"));

// -- sending -----------------------------------------------------------------------------------------------

function refresh() {
  const busy = Boolean(chat.running);
  send.hidden = busy;
  stop.hidden = !busy;
  send.disabled = !select.value || !isMessage(prompt.value.trim());
  prompt.placeholder = transcribes ? "Attach or record a sound" : compares() ? "Write to both models" : "Write a message";
}

function grow() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

function isMessage(text) {
  const { pictures, sounds } = attachments;
  return Boolean(sounds.length || (!transcribes && (text || pictures.length)));
}

function submit(text) {
  if (chat.running || !select.value) return;
  if (text && !isMessage(text)) return warn("This model writes down what is said: attach a sound, or record one.");
  if (!isMessage(text)) return;
  if (!toolsOf()) return warn("The tools are no JSON list: see Settings.");
  warned = false;
  prompt.value = "";
  grow();
  chat.ask(text, attachments.take());
}

chat.changed = refresh;
chat.backends = async () => {
  const { models } = await get("/state", find("key").value).catch(() => ({ models: [] }));
  return Object.fromEntries(models.map(({ name, backend }) => [name, backend]));
};
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
find("new").addEventListener("click", () => { show(newConversation()); prompt.focus(); });
for (const idea of document.querySelectorAll(".ideas button")) idea.addEventListener("click", () => submit(idea.textContent));

// -- pictures and sounds -----------------------------------------------------------------------------------

const attach = find("attach"), file = find("file"), record = find("record");
const recorder = new Recorder((recording) => attachments.add([recording]), () => record.setAttribute("aria-pressed", String(Boolean(recorder.running))));
record.addEventListener("click", () => recorder.toggle().catch((error) => warn(`The microphone cannot be used: ${error.message}`)));

function offerAttachments({ images = false, sounds = false, transcribes: writes = false } = {}) {
  Object.assign(attachments, { images: images && !writes, hears: sounds });
  transcribes = writes;
  document.querySelector(".ideas").hidden = writes; // they are for models that talk
  attach.hidden = !(images || sounds);
  attach.title = attach.ariaLabel = images ? "Add a picture" : "Add a sound";
  file.accept = [...(images ? ["image/*"] : []), ...(sounds ? ["audio/*"] : [])].join();
  record.hidden = !(sounds && canRecord());
  refresh();
}

attach.addEventListener("click", () => file.click());
file.addEventListener("change", () => { attachments.add(file.files).then(() => { file.value = ""; }); });
prompt.addEventListener("paste", (event) => { if (!attach.hidden) attachments.add(event.clipboardData.files); });
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  if (!attach.hidden) attachments.add(event.dataTransfer.files);
});

// -- conversations -----------------------------------------------------------------------------------------

function show(conversation) {
  chat.show(conversation);
  sessionStorage.setItem("conversation", conversation.id);
  list();
}

let keeping = Promise.resolve();
const gone = new Set();

// One save after the other, and the list when it has changed.
function keep(conversation) {
  keeping = keeping.then(async () => {
    if (gone.has(conversation.id)) return;
    await store.save(conversation);
    if (conversation === chat.conversation) sessionStorage.setItem("conversation", conversation.id);
    await list();
  }).catch((error) => warn(`This chat is not kept: ${error.message}`));
}

// What a tool gives back is typed under the call, and kept before it is sent.
let pause;
find("messages").addEventListener("input", () => {
  const { conversation } = chat;
  clearTimeout(pause);
  pause = setTimeout(() => keep(conversation), 200);
});

const acts = {
  open: act(async (id) => {
    const found = await store.get(id);
    if (found) show(found);
    if (NARROW.matches) toggle("chats", false);
  }),
  rename: act(async (id, name) => {
    await store.rename(id, name);
    if (id === chat.conversation.id) chat.conversation.name = name;
  }),
  remove: act(async (id) => {
    gone.add(id); // before, as an answer that runs is saved in between
    await store.remove(id).catch((error) => {
      gone.delete(id);
      throw error;
    });
    if (id === chat.conversation.id) show(newConversation());
  }),
  export: act(async (id) => {
    const found = await store.get(id); // another tab may have deleted it
    if (found) download(found.name, { name: found.name, messages: messagesOf(found.turns) });
  }),
};

// What a button of the list does, after the saves before it; the list is drawn anew.
function act(change) {
  return async (...words) => {
    try {
      await keeping;
      await change(...words);
      await list();
    } catch (error) {
      warn(error.message);
    }
  };
}

let listed = "";

// Drawn anew only where something differs: who is about to press a button keeps it.
async function list() {
  const found = await store.list(), shown = JSON.stringify([found, chat.conversation.id]);
  if (shown === listed || find("conversations").querySelector("input")) return;
  listed = shown;
  find("conversations").replaceChildren(...found.map((each) => conversationItem(each, chat.conversation.id, acts)));
}

store.watch(() => list().catch((error) => warn(error.message)));

async function restore() {
  try {
    const found = await store.get(sessionStorage.getItem("conversation") ?? "");
    if (found && !chat.conversation.turns.length) show(found);
    else await list();
  } catch {
    warn("This browser keeps no chats.");
  }
}

// -- settings ----------------------------------------------------------------------------------------------

for (const range of document.querySelectorAll("input[type=range]")) {
  const show = () => { range.nextElementSibling.textContent = Number(range.value).toFixed(2); };
  range.addEventListener("input", show);
  show();
}
for (const id of [...NUMBERS, "system", "tools", "key"]) {
  const kept = sessionStorage.getItem(id);
  if (kept !== null) {
    find(id).value = kept;
    find(id).dispatchEvent(new Event("input"));
  }
  find(id).addEventListener("change", () => sessionStorage.setItem(id, find(id).value));
}
find("key").addEventListener("change", () => connect());
for (const each of [select, rival]) {
  each.addEventListener("change", () => {
    sessionStorage.setItem(each.id, each.value);
    showRival();
    poll();
  });
}

function showRival() {
  find("compared").hidden = !compares();
  refresh();
}

// Panels: one on the left, and that of the server; one at a time where each takes the whole width.
const NARROW = matchMedia("(max-width: 860px)"), PANELS = ["chats", "settings", "state"];

function toggle(id, open) {
  find(id).hidden = !open;
  find(`show-${id}`).setAttribute("aria-expanded", String(open));
}

for (const id of PANELS) {
  find(`show-${id}`).addEventListener("click", () => {
    const open = find(id).hidden;
    for (const other of PANELS) {
      if (open && other !== id && (NARROW.matches || ![id, other].includes("state"))) toggle(other, false);
    }
    toggle(id, open);
    if (id === "state") poll();
  });
}

// -- the server --------------------------------------------------------------------------------------------

function tell(text, bad = false) {
  status.textContent = text;
  status.classList.toggle("bad", bad);
}

let warned = false;

// What stays until the next message.
function warn(text) {
  warned = true;
  tell(text, true);
}

async function connect() {
  try {
    const { data } = await get("/v1/models", find("key").value);
    offer(select, data.map(({ id }) => id));
    offer(rival, ["", ...data.map(({ id }) => id)]);
    rival.parentElement.hidden = data.length < 2;
    showRival();
    tell(data.length ? "" : "The server has no models.");
  } catch (error) {
    tell(error.status === 401 ? "This server wants an API key: see Settings." : error.message, true);
  }
  refresh();
  poll();
}

function offer(place, names) {
  const chosen = place.value || sessionStorage.getItem(place.id);
  place.replaceChildren(...names.map((name) => new Option(name || "no other model", name, false, name === chosen)));
}

async function poll() {
  try {
    const state = await get("/state", find("key").value);
    view.take(state);
    const mine = state.models.find((model) => model.name === select.value);
    offerAttachments(mine);
    if (select.value && !warned) tell(state.draining ? "The server is about to end." : mine && !mine.slots ? `${mine.status} ${Math.round(100 * mine.progress)} %` : "");
  } catch (error) {
    if (error.status !== 401) tell("The server does not answer.", true);
  }
}

setInterval(() => { if (!document.hidden) poll(); }, 1000);
restore();
connect();
