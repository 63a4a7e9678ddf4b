// Pictures that go with the next message: chosen, pasted or dropped; large ones are made smaller here.

import { make } from "./elements.js";

const LARGEST = 1536;

export class Pictures {
  constructor(place, changed) {
    this.place = place;
    this.changed = changed;
    this.urls = [];
  }

  async add(files) {
    for (const file of files) {
      if (!file.type.startsWith("image/")) continue;
      try {
        this.urls.push(await asUrl(file));
      } catch { /* no picture that the browser can read */ }
    }
    this.show();
  }

  take() {
    const taken = this.urls;
    this.urls = [];
    this.show();
    return taken;
  }

  show() {
    this.place.replaceChildren(...this.urls.map((url, number) => {
      const figure = make("figure"), image = make("img"), remove = make("button");
      image.src = url;
      image.alt = `Picture ${number + 1}`;
      remove.type = "button";
      remove.textContent = "×";
      remove.setAttribute("aria-label", `Remove picture ${number + 1}`);
      remove.addEventListener("click", () => { this.urls.splice(number, 1); this.show(); });
      figure.append(image, remove);
      return figure;
    }));
    this.changed();
  }
}

async function asUrl(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, LARGEST / Math.max(bitmap.width, bitmap.height));
  const canvas = make("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL(file.type === "image/png" ? "image/png" : "image/jpeg", 0.92);
}
