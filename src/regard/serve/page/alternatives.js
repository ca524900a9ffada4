// The menu with alternatives for a word of the translation.

import { post } from "./client.js";
import { make, makeButton, percent } from "./dom.js";

const COUNT = 6;
const LEAST = 200, MOST = 420;  // pixels of the height

export class AlternativesMenu {
  constructor(element) {
    this.element = element;
    element.addEventListener("keydown", (event) => this.onKey(event));
    element.addEventListener("toggle", (event) => {
      if (event.newState === "closed" && !this.isOpen) this.controller?.abort();
    });
  }

  get isOpen() {
    return this.element.matches(":popover-open");
  }

  // Show alternatives for a word, which comes after `request.prefix`; calls `onChoice(alternative)`.
  async open(anchor, request, onChoice) {
    this.anchor = anchor;
    this.controller?.abort();
    const controller = this.controller = new AbortController();
    this.element.replaceChildren(make("p", {}, "Searching…"));
    if (!this.isOpen) this.element.showPopover();
    this.place();
    let alternatives;
    try {
      const body = { ...request, count: COUNT };
      ({ alternatives } = await post("api/alternatives", body, { signal: controller.signal }));
    } catch (error) {
      if (!controller.signal.aborted) this.element.replaceChildren(make("p", {}, error.message));
      return;
    }
    if (controller.signal.aborted) return;
    const items = alternatives.map((each) => this.makeItem(each, request.prefix, onChoice));
    this.element.replaceChildren(...items);
    if (!alternatives.length) this.element.replaceChildren(make("p", {}, "There are no alternatives."));
    this.place();
    this.element.querySelector("button")?.focus();
  }

  makeItem(alternative, prefix, onChoice) {
    const { word, translation, logprob } = alternative;
    const current = word === this.anchor.textContent;
    const attributes = { role: "menuitem", tabindex: "-1", "aria-current": current && "true" };
    const button = makeButton("", attributes, () => {
      this.close();
      onChoice(alternative);
    });
    const known = translation.startsWith(prefix);
    button.append(make("span", {}, word), make("small", {}, percent(Math.exp(logprob))),
      make("span", { class: "rest" }, known ? `…${translation.slice(prefix.length)}` : translation));
    return button;
  }

  close() {
    this.element.hidePopover();
    this.anchor?.focus({ preventScroll: true });
  }

  // Below the word if there is room, otherwise above it; long lists scroll.
  place() {
    const { style } = this.element;
    const word = this.anchor.getBoundingClientRect();
    const room = window.innerHeight - word.bottom - 16;
    const below = room >= LEAST || room >= word.top;
    style.maxHeight = `${Math.min(MOST, below ? room : word.top - 16)}px`;
    const { width, height } = this.element.getBoundingClientRect();
    style.left = `${Math.max(12, Math.min(word.left, document.documentElement.clientWidth - width - 12))}px`;
    style.top = `${below ? word.bottom + 8 : word.top - height - 8}px`;
  }

  onKey(event) {
    const items = [...this.element.querySelectorAll("button")];
    const at = items.indexOf(document.activeElement);
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1 + items.length, Home: 0, End: items.length - 1 };
    if (event.key in moves) {
      event.preventDefault();
      items[moves[event.key] % items.length]?.focus();
    } else if (event.key === "Escape" || event.key === "Tab") {
      event.preventDefault();
      this.close();
    }
  }
}
