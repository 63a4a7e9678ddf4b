// Conversations, kept by the browser in IndexedDB; the server has none.

import { button, cautiousButton, make } from "./elements.js";

const STORE = "conversations", LISTED = "listed";

// `changed` is the time of the last save; 0: never saved.
export const newConversation = () => ({ id: newId(), name: "", changed: 0, turns: [] });
const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-");

export class Conversations {
  constructor() {
    this.database = new Promise((resolve, reject) => {
      const opening = indexedDB.open("backbay", 1);
      opening.onupgradeneeded = () => {
        opening.result.createObjectStore(STORE, { keyPath: "id" }).createIndex(LISTED, ["changed", "name"]);
      };
      opening.onsuccess = () => resolve(opening.result);
      opening.onerror = () => reject(opening.error);
    });
    this.database.catch(() => {}); // whoever asks for something is told
    this.tabs = new BroadcastChannel("backbay");
  }

  // What `act` gives back, when its transaction is over.
  async transact(mode, act) {
    const transaction = (await this.database).transaction(STORE, mode);
    const over = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
    });
    const found = await act(transaction.objectStore(STORE));
    await over;
    return found;
  }

  get(id) {
    return this.transact("readonly", (store) => result(store.get(id)));
  }

  // Call `listed` when another tab has added, renamed or removed a conversation.
  watch(listed) {
    this.tabs.onmessage = listed;
  }

  async remove(id) {
    await this.transact("readwrite", (store) => result(store.delete(id)));
    this.tabs.postMessage("removed");
  }

  // If another tab has gone on with the conversation, this one becomes a conversation of its own. One that is deleted stays so,
  // unless it has a new question since: `asked`.
  async save(conversation) {
    const { asked, ...shown } = conversation;
    conversation.asked = false;
    const facts = await this.transact("readwrite", async (store) => {
      const kept = await result(store.get(shown.id));
      if (!kept && shown.changed && !asked) return {};
      const changed = Math.max(Date.now(), shown.changed + 1), own = (kept?.changed ?? 0) !== shown.changed;
      const saved = { ...shown, changed, id: own ? newId() : shown.id, name: own || !kept ? shown.name : kept.name };
      await result(store.put(saved));
      return { id: saved.id, name: saved.name, changed };
    });
    if (facts.id && (facts.id !== shown.id || !shown.changed)) this.tabs.postMessage("added");
    Object.assign(conversation, facts); // not before all is kept
  }

  async rename(id, name) {
    await this.transact("readwrite", async (store) => {
      const kept = await result(store.get(id));
      if (kept) await result(store.put({ ...kept, name })); // another tab may have deleted it
    });
    this.tabs.postMessage("renamed");
  }

  // Ids and names, the last one first; without what was said.
  list() {
    return this.transact("readonly", (store) => new Promise((resolve, reject) => {
      const found = [], walking = store.index(LISTED).openKeyCursor(null, "prev");
      walking.onerror = () => reject(walking.error);
      walking.onsuccess = () => {
        const at = walking.result;
        if (!at) return resolve(found);
        found.push({ id: at.primaryKey, name: at.key[1] });
        at.continue();
      };
    }));
  }
}

function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

// -- the list. `acts` has open, rename, remove and export, each for an id.

export function conversationItem({ id, name }, current, acts) {
  const opener = button(name || "No name", () => acts.open(id)), item = make("li", "", opener);
  if (id === current) opener.setAttribute("aria-current", "true");
  item.append(make("div", "under",
    button("Rename", () => renaming(item, opener, name, (to) => acts.rename(id, to))),
    button("Export", () => acts.export(id)),
    cautiousButton("Delete", () => acts.remove(id))));
  return item;
}

function renaming(item, opener, name, rename) {
  const field = make("input");
  Object.assign(field, { value: name, maxLength: 80 });
  field.setAttribute("aria-label", "Name");
  let over = false;
  const end = (to) => {
    if (over) return;
    over = true; // to leave the page's tree is a blur, too
    field.replaceWith(opener);
    if (to && to !== name) rename(to);
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") end(field.value.trim());
    if (event.key === "Escape") end("");
    event.stopPropagation();
  });
  field.addEventListener("blur", () => end(field.value.trim()));
  opener.replaceWith(field);
  field.select();
}

export function download(name, value) {
  const link = make("a"), url = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2)], { type: "application/json" }));
  Object.assign(link, { href: url, download: `${name.replace(/[^\p{L}\p{N} _-]/gu, "").trim() || "conversation"}.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}
