// The two panes of the translation: words that respond to the pointer, and marks that show attention.
//
// The source is a text field. An element behind it, the mirror, has the same text and shows marks.

import { make, percent } from "./dom.js";

const LISTED = 5;

export class TranslationView {
  // `onWord(sentence, word, element)` is called when a word of the translation is activated.
  constructor(panel, onWord) {
    const part = (id) => panel.querySelector(id);
    [this.field, this.mirror] = ["#text", "#mirror"].map(part);
    [this.output, this.aligned] = ["#translation", "#aligned"].map(part);
    this.hint = this.aligned.textContent;
    this.selection = () => [part("#layer").value, part("#head").value];
    this.sentences = [];
    this.elements = new Map();  // element of a word: { side, sentence, index }
    this.output.addEventListener("pointerover", (event) => this.point(event.target.closest(".word")));
    this.output.addEventListener("pointerleave", () => this.point(null));
    this.output.addEventListener("focusin", (event) => this.point(event.target.closest(".word")));
    this.output.addEventListener("focusout", () => this.point(null));
    this.output.addEventListener("keydown", (event) => this.onKey(event, onWord));
    this.output.addEventListener("click", (event) => this.activate(event.target.closest(".word"), onWord));
    this.field.addEventListener("pointermove", (event) => {
      const below = document.elementsFromPoint(event.clientX, event.clientY);
      this.point(below.find((element) => this.elements.get(element)?.side === "source") ?? null);
    });
    this.field.addEventListener("pointerleave", () => this.point(null));
    for (const kind of ["keyup", "click"]) {
      this.field.addEventListener(kind, () => this.point(this.atCaret()));
    }
    this.field.addEventListener("blur", () => this.point(null));
  }

  // Forget the words of the source: its text has changed.
  reset() {
    this.mirror.replaceChildren(this.field.value, "\u200b");
    for (const [element, { side }] of this.elements) if (side === "source") this.elements.delete(element);
  }

  clear() {
    this.sentences = [];
    this.elements.clear();
    this.reset();
    this.output.replaceChildren();
    this.point(null);
  }

  // Show sentences, with the text between them. `translation` is the whole translation.
  show(sentences, translation, language) {
    this.sentences = sentences;
    this.elements.clear();
    this.output.lang = language;
    this.fill(this.mirror, "source", this.field.value, (each) => (
      [each.start, each.text, each.sourceSegments]));
    this.fill(this.output, "target", translation, (each) => (
      [each.translationStart, each.translation, each.targetSegments]));
    this.mirror.append("\u200b");  // the height of an empty last line
    const first = this.output.querySelector(".word");
    if (first) first.tabIndex = 0;
    this.point(null);
  }

  fill(parent, side, text, describe) {
    const characters = [...text];
    let end = 0;
    parent.replaceChildren();
    for (const sentence of this.sentences) {
      const [start, own, segments] = describe(sentence);
      parent.append(characters.slice(end, start).join(""));
      let index = 0;
      for (const segment of segments) {
        parent.append(segment.space ? segment.text : this.makeWord(side, sentence, segment, index++));
      }
      end = start + [...own].length;
    }
    parent.append(characters.slice(end).join(""));
  }

  makeWord(side, sentence, segment, index) {
    const element = make("span", { class: "word" }, segment.text);
    if (side === "target") {
      const [prefix] = sentence.forced.slice(-1);
      element.setAttribute("role", "button");
      element.setAttribute("aria-haspopup", "menu");
      element.tabIndex = -1;
      const size = prefix ? [...prefix].length : 0;
      element.classList.toggle("forced", segment.end === size);
    }
    this.elements.set(element, { side, sentence, index });
    return element;
  }

  // ---- events ---------------------------------------------------------------------------

  activate(element, onWord) {
    if (!element) return;
    const { sentence, index } = this.elements.get(element);
    this.makeCurrent(element);
    onWord(sentence, sentence.targetWords[index], element);
  }

  makeCurrent(element) {
    this.output.querySelectorAll(".word[tabindex='0']").forEach((word) => { word.tabIndex = -1; });
    element.tabIndex = 0;
    element.focus({ preventScroll: true });
  }

  // Focus the last word of a sentence that ends within `size` characters.
  focusWord(sentence, size) {
    const index = Math.max(0, sentence.targetWords.findLastIndex(({ end }) => end <= size));
    for (const [element, place] of this.elements) {
      const own = place.side === "target" && place.sentence === sentence;
      if (own && place.index === index) this.makeCurrent(element);
    }
  }

  onKey(event, onWord) {
    const words = [...this.output.querySelectorAll(".word")];
    const at = words.indexOf(event.target);
    if (at < 0) return;
    const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: words.length - 1 };
    if (event.key in moves) {
      event.preventDefault();
      const next = words[moves[event.key]];
      if (next) this.makeCurrent(next);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.activate(event.target, onWord);
    }
  }

  atCaret() {
    const at = [...this.field.value.slice(0, this.field.selectionStart)].length;
    for (const [element, { side, sentence, index }] of this.elements) {
      if (side !== "source") continue;
      const { start, end } = sentence.sourceWords[index];
      if (sentence.start + start <= at && at < sentence.start + end) return element;
    }
    return null;
  }

  // Mark the words of the other side by their attention weights; null removes the marks.
  point(element) {
    const place = this.elements.get(element);
    if (this.pointed === element && place) return;
    this.pointed = element;
    for (const each of this.elements.keys()) {
      each.style.setProperty("--weight", 0);
      each.classList.toggle("pointed", each === element);
    }
    const matrix = place?.sentence.weights(...this.selection());
    if (!matrix) {
      this.aligned.textContent = this.hint;
      return;
    }
    const { side, sentence, index } = place;
    const fromTarget = side === "target";
    const weights = fromTarget ? matrix[index] : matrix.map((row) => row[index]);
    const others = fromTarget ? sentence.sourceWords : sentence.targetWords;
    const most = Math.max(...weights, 1e-6);
    for (const [each, other] of this.elements) {
      if (other.sentence === sentence && other.side !== side) {
        each.style.setProperty("--weight", (weights[other.index] / most).toFixed(3));
      }
    }
    const ranked = weights.map((weight, i) => [weight, others[i].text]).sort((a, b) => b[0] - a[0]);
    const list = ranked.slice(0, LISTED).map(([weight, text]) => `${text} ${percent(weight)}`).join(" · ");
    this.aligned.replaceChildren(make("strong", {}, element.textContent),
      fromTarget ? " attends to: " : " is attended to by: ", list);
  }

  // Show the marks again, after the layer or the head has changed.
  refresh() {
    const element = this.pointed;
    this.pointed = null;
    this.point(element);
  }
}
