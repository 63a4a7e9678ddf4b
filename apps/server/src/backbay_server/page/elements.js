// Elements made one by one: no text is ever read as HTML.

export function make(tag, kind = "", ...children) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  element.append(...children);
  return element;
}

export function button(name, act) {
  const element = make("button", "", name);
  element.type = "button";
  element.addEventListener("click", () => act(element));
  return element;
}

// The button asks once more before it acts.
export function cautiousButton(name, act) {
  let sure = false;
  const element = button(name, () => {
    if (sure) return act();
    sure = true;
    element.textContent = `${name}?`;
  });
  element.addEventListener("blur", () => { sure = false; element.textContent = name; });
  return element;
}

export const copyButton = (text) => button("Copy", (element) => copy(element, text()));

async function copy(element, text) {
  try {
    await navigator.clipboard.writeText(text);
    element.textContent = "Copied";
  } catch {
    element.textContent = "Not allowed";
  }
  setTimeout(() => { element.textContent = "Copy"; }, 1200);
}
