// Small helpers. Text from users and models enters the page as text nodes only, never as markup.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);  // append turns strings into text nodes
  return element;
}

export function makeButton(text, attributes, onClick) {
  const button = make("button", { type: "button", ...attributes }, text);
  button.addEventListener("click", onClick);
  return button;
}

export function debounce(milliseconds, call) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(call, milliseconds, ...values);
  };
}

export const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}\u00a0%`;
export const linesOf = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

// A message for screen readers.
export function announce(text) {
  document.querySelector("#announcement").textContent = text;
}

// A bar with a label and a share of 1.
export function makeBar(label, share, attributes = {}) {
  const fill = make("span", { class: "bar-fill" });
  fill.style.width = `${100 * Math.max(0, Math.min(1, share))}%`;
  return make("li", { class: "bar", ...attributes },
    make("span", { class: "bar-label" }, label),
    make("span", { class: "bar-track", "aria-hidden": "true" }, fill),
    make("span", { class: "bar-value" }, percent(share)));
}

// Fill a select element with [value, text] pairs; the current value is kept if it is among them.
export function fillSelect(select, pairs, initial = pairs[0]?.[0]) {
  const before = select.value;
  select.replaceChildren(...pairs.map(([value, text]) => {
    const option = make("option", { value }, text);
    option.defaultSelected = value === String(initial);
    return option;
  }));
  const known = pairs.some(([value]) => value === before);
  select.value = known ? before : initial;
}

// Copy a text, with a short confirmation on the button. Without TLS there is no clipboard object,
// except on localhost: then the text is copied from a field.
export async function copyText(text, button) {
  const label = button.textContent;
  let copied = true;
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text).catch(() => { copied = false; });
  } else {
    const field = make("textarea", { class: "hidden", "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    copied = document.execCommand("copy");
    field.remove();
    button.focus();
  }
  button.textContent = copied ? "Copied" : "Copying failed";
  announce(button.textContent);
  setTimeout(() => { button.textContent = label; }, 1500);
}

// Weights are base64 of little-endian 16-bit integers; 65535 is 1.
export function decodeWeights(packed) {
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 2 }, (_, i) => view.getUint16(2 * i, true) / 65535);
}
