// What goes with the next message, chosen, pasted, dropped or recorded: pictures, of which large ones are made smaller, and sounds.

import { make } from "./elements.js";
import { asWav } from "./recorder.js";

const LARGEST = 1536;
const SERVED = /^audio\/(wave?|x-wav|vnd\.wave|flac|x-flac|ogg|mpeg|mp3)\b/; // what the server reads

export class Attachments {
  constructor(place, changed, warn) {
    Object.assign(this, { place, changed, warn, pictures: [], sounds: [] });
    this.images = this.hears = false; // what the model takes
  }

  async add(files) {
    for (const file of files) {
      try {
        if (this.images && file.type.startsWith("image/")) this.pictures.push(await pictureUrl(file));
        if (this.hears && file.type.startsWith("audio/")) this.sounds.push(await soundUrl(file));
      } catch {
        this.warn(`${file.name} cannot be read.`);
      }
    }
    this.show();
  }

  take() {
    const { pictures, sounds } = this;
    this.pictures = [];
    this.sounds = [];
    this.show();
    return { pictures, sounds };
  }

  show() {
    this.place.replaceChildren(...this.pictures.map((url, n) => this.figure(this.pictures, n, pictureOf(url, `Picture ${n + 1}`))));
    this.place.append(...this.sounds.map((url, n) => this.figure(this.sounds, n, playerOf(url, `Sound ${n + 1}`))));
    this.changed();
  }

  figure(urls, number, shown) {
    const remove = make("button", "", "×");
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove ${shown.ariaLabel.toLowerCase()}`);
    remove.addEventListener("click", () => { urls.splice(number, 1); this.show(); });
    return make("figure", "", shown, remove);
  }
}

export function pictureOf(url, name) {
  return Object.assign(make("img"), { src: url, alt: name, ariaLabel: name });
}

export function playerOf(url, name) {
  return Object.assign(make("audio"), { src: url, controls: true, ariaLabel: name });
}

async function soundUrl(file) {
  const blob = SERVED.test(file.type) ? file : await asWav(file), reader = new FileReader();
  await new Promise((resolve, reject) => {
    Object.assign(reader, { onload: resolve, onerror: reject });
    reader.readAsDataURL(blob);
  });
  return reader.result;
}

async function pictureUrl(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, LARGEST / Math.max(bitmap.width, bitmap.height));
  const canvas = make("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL(file.type === "image/png" ? "image/png" : "image/jpeg", 0.92);
}
