// The choice of languages, of a model if several translate between them, and of its heads.

import { fillSelect } from "./dom.js";

const names = new Intl.DisplayNames(["en"], { type: "language" });
const unique = (values) => [...new Set(values)];
const named = (codes) => unique(codes).map((code) => [code, names.of(code)]);

export class LanguageChoice {
  // `onChange()` is called when a language or the model has changed.
  constructor(panel, onChange) {
    const part = (name) => panel.querySelector(`[name=${name}]`);
    [this.source, this.target, this.choice] = ["source", "target", "model"].map(part);
    [this.layer, this.head] = ["layer", "head"].map(part);
    this.swap = panel.querySelector("#swap");
    this.models = [];
    this.detected = null;  // the language of the text, if source is "auto"
    for (const field of [this.source, this.target, this.choice]) {
      field.addEventListener("change", () => { this.update(); onChange(); });
    }
  }

  get pairs() {
    return this.models.map((model) => model.languages).filter(Boolean);
  }

  // The language of the text; null if it is not known yet.
  get from() {
    return this.source.value === "auto" ? this.detected : this.source.value;
  }

  // The fields of a request.
  get request() {
    const several = this.choice.options.length > 1;
    return {
      source: this.source.value, target: this.target.value || null,
      model: several ? this.choice.value : null,
    };
  }

  setModels(models) {
    this.models = models;
    fillSelect(this.source, [["auto", "Detect"], ...named(this.pairs.map(([from]) => from))]);
    this.update();
  }

  // Offer what is possible with the current source language.
  update() {
    const { value } = this.source;
    const usable = this.models.filter(({ languages }) => languages && ["auto", languages[0]].includes(value));
    fillSelect(this.target, named(usable.map(({ languages }) => languages[1])));
    const own = usable.filter(({ languages }) => languages[1] === this.target.value);
    fillSelect(this.choice, own.map(({ name }) => [name, name]));
    this.choice.closest(".model-choice").hidden = own.length < 2;
    this.updateSwap();
    const model = own.find(({ name }) => name === this.choice.value);
    const numbers = (count) => [["mean", "all"],
      ...Array.from({ length: count ?? 0 }, (_, i) => [String(i + 1), String(i + 1)])];
    fillSelect(this.layer, numbers(model?.layers.decoder));
    fillSelect(this.head, numbers(model?.heads));
  }

  updateSwap() {
    const { from, swap } = this;
    const to = this.target.value;
    const possible = this.pairs.some((pair) => pair[0] === to && pair[1] === from);
    swap.disabled = !possible;
    if (possible) swap.title = "Switch languages";
    else if (!from) swap.title = "The language of the text is not known yet";
    else if (from === to) swap.title = `The text is in ${names.of(to)} already`;
    else swap.title = `No model translates from ${names.of(to)} to ${names.of(from)}`;
  }

  switch() {
    const { from } = this;
    this.source.value = this.target.value;
    this.update();
    this.target.value = from;
    this.update();
  }

  // Restore fields whose options depend on the source language.
  restore(values) {
    for (const field of [this.target, this.choice, this.layer, this.head]) {
      this.update();
      const value = values.get(field.name);
      if ([...field.options].some((option) => option.value === value)) field.value = value;
    }
    this.updateSwap();
  }

  // Note the languages of a response, and describe them.
  describe({ detected, source, target }) {
    this.detected = source;
    this.updateSwap();
    if (!detected) return "";
    const name = names.of(detected.language);
    if (source === target) return `Detected: ${name}, not translated`;
    if (detected.language === source) return `Detected: ${name}`;
    return `Detected: ${name}, translated as ${names.of(source)}`;
  }

  forget() {
    this.detected = null;
    this.updateSwap();
  }
}
