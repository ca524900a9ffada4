// Translate: as you type, with alternatives for each word.

import { AlternativesMenu } from "./alternatives.js";
import { post } from "./client.js";
import { announce, copyText, debounce, fillSelect, make, makeButton } from "./dom.js";
import { Runner } from "./runner.js";
import { TranslationView } from "./translation_view.js";
import { Sentence } from "./words.js";

const DETAILED = 2000;  // characters of a text with attention weights in its response
const N_BEST = 4;
const names = new Intl.DisplayNames(["en"], { type: "language" });
const unique = (values) => [...new Set(values)];

export function startTranslate(panel, save) {
  const part = (id) => panel.querySelector(id);
  const [field, source, target, detected, forced] = ["#text", "#source", "#target", "#detected", "#forced"].map(part);
  const [copy, swap, others, inside] = ["#copy", "#swap", "#others", "#inside"].map(part);
  const choice = panel.querySelector("[name=model]");
  const chosen = panel.querySelector("[name=chosen]");  // "INDEX:PREFIX" of sentences, for the URL
  const runner = new Runner(panel);
  const menu = new AlternativesMenu(part("#alternatives"));
  const view = new TranslationView(panel, openMenu);
  let models = [];
  let result = null;  // the last response, with its sentences as objects
  let translation = "";

  // ---- languages ------------------------------------------------------------------------

  const pairs = () => models.map((model) => model.languages).filter(Boolean);
  const sourceLanguage = () => (source.value === "auto" ? result?.source : source.value);

  function fillLanguages() {
    const options = (codes) => codes.map((code) => [code, names.of(code)]);
    fillSelect(source, [["auto", "Detect"], ...options(unique(pairs().map(([from]) => from)))]);
    fillTargets();
  }

  function fillTargets() {
    const usable = pairs().filter(([from]) => source.value === "auto" || source.value === from);
    fillSelect(target, unique(usable.map(([, to]) => to)).map((code) => [code, names.of(code)]));
    const own = models.filter((model) => model.languages?.[1] === target.value
      && (source.value === "auto" || model.languages[0] === source.value));
    fillSelect(choice, own.map(({ name }) => [name, name]));
    choice.closest(".model-choice").hidden = own.length < 2;
    updateSwap();
    fillHeads();
  }

  function updateSwap() {
    const from = sourceLanguage();
    const possible = pairs().some(([a, b]) => a === target.value && b === from);
    swap.disabled = !possible;
    swap.title = possible ? "Switch languages"
      : from ? `No model translates from ${names.of(target.value)} to ${names.of(from)}`
        : "The language of the text is not known yet";
  }

  function fillHeads() {
    const model = models.find(({ name }) => name === choice.value);
    const options = (count) => [["mean", "all"],
      ...Array.from({ length: count ?? 0 }, (_, i) => [String(i + 1), String(i + 1)])];
    fillSelect(part("#layer"), options(model?.layers.decoder));
    fillSelect(part("#head"), options(model?.heads));
  }

  function swapLanguages() {
    const from = sourceLanguage();
    source.value = target.value;
    fillTargets();
    target.value = from;
    field.value = translation || field.value;
    onInput();
    save();
  }

  // ---- translation ----------------------------------------------------------------------

  function request(text, more = {}) {
    return {
      text, source: source.value, target: target.value || null,
      model: choice.options.length > 1 ? choice.value : null,
      attention: [...text].length <= DETAILED, ...more,
    };
  }

  async function fetchTranslation(body, options) {
    try {
      return await post("api/translate", body, options);
    } catch (error) {
      if (error.status !== 413 || !body.attention) throw error;
      return post("api/translate", { ...body, attention: false }, options);
    }
  }

  async function run() {
    view.reset();
    updateCount();
    const text = field.value;
    if (!text.trim()) {
      runner.cancel();
      clear();
      return;
    }
    const answer = await runner.run((options) => fetchTranslation(request(text), options));
    if (!answer) return;
    result = answer;
    result.sentences = answer.sentences.map((each) => new Sentence(each, answer.source, answer.target));
    translation = answer.translation;
    detected.textContent = answer.detected ? `Detected: ${names.of(answer.detected.language)}` : "";
    updateSwap();
    const choices = chosen.value.split("\n").filter(Boolean);
    show();
    for (const line of choices) {
      const at = line.indexOf(":");
      const sentence = result.sentences[Number(line.slice(0, at))];
      if (sentence && !await force(sentence, [line.slice(at + 1)], false)) return;
    }
    if (others.open) listOthers();
  }

  function show() {
    view.show(result.sentences, translation, result.target);
    copy.disabled = false;
    inside.hidden = false;
    announce(translation);
    chosen.value = result.sentences.map(({ forced: prefixes }, i) => prefixes.length && `${i}:${prefixes.at(-1)}`)
      .filter(Boolean).join("\n");
    save();
    const count = result.sentences.reduce((all, sentence) => all + sentence.forced.length, 0);
    forced.replaceChildren();
    if (count) {
      forced.append(count === 1 ? "1 change by you " : `${count} changes by you `,
        makeButton("Undo", { class: "quiet", id: "undo" }, undo));
    }
  }

  function clear() {
    result = null;
    translation = "";
    view.clear();
    copy.disabled = true;
    inside.hidden = true;
    for (const element of [forced, detected, part("#n-best")]) element.replaceChildren();
    updateSwap();
  }

  function updateCount() {
    const size = [...field.value].length;
    part("#count").textContent = size ? `${size} characters` : "";
  }

  function restart() {
    chosen.value = "";
    run();
  }

  const later = debounce(250, restart);
  function onInput() {
    runner.cancel();
    view.reset();
    updateCount();
    later();
  }

  // ---- alternatives ---------------------------------------------------------------------

  const languagesOf = () => ({ source: result.source, target: result.target });

  function openMenu(sentence, word, element) {
    const { text, model } = request(sentence.text);
    menu.open(element, { text, model, ...languagesOf(), prefix: sentence.prefix(word) },
      (chosen) => force(sentence, [...sentence.forced, chosen.prefix]));
  }

  // Translate a sentence again so that it begins with the last of the prefixes.
  // Returns whether it was translated: a newer request aborts this one.
  async function force(sentence, prefixes, focus = true) {
    const prefix = prefixes.at(-1) ?? "";
    const body = { ...request(sentence.text), ...languagesOf(), prefix };
    const answer = await runner.run((options) => fetchTranslation(body, options));
    if (!answer?.sentences.length) return false;
    const made = new Sentence(answer.sentences[0], answer.source, answer.target);
    made.forced = prefixes;
    replace(sentence, made);
    show();
    if (focus) focusEnd(made, prefix);
    return true;
  }

  // Put a sentence in the place of another one.
  function replace(before, after) {
    const characters = [...translation];
    const size = [...before.translation].length;
    after.start = before.start;
    after.translationStart = before.translationStart;
    characters.splice(before.translationStart, size, ...after.translation);
    translation = characters.join("");
    const at = result.sentences.indexOf(before);
    result.sentences[at] = after;
    for (const later of result.sentences.slice(at + 1)) {
      later.translationStart += [...after.translation].length - size;
    }
  }

  // Focus the last word of the prefix, so that the keyboard continues there.
  function focusEnd(sentence, prefix) {
    const size = [...prefix].length;
    const index = Math.max(0, sentence.targetWords.findLastIndex(({ end }) => end <= size));
    for (const [element, place] of view.elements) {
      if (place.side === "target" && place.sentence === sentence && place.index === index) view.makeCurrent(element);
    }
  }

  function undo() {
    const sentence = result.sentences.findLast(({ forced: prefixes }) => prefixes.length);
    force(sentence, sentence.forced.slice(0, -1));
  }

  async function listOthers() {
    const list = part("#n-best");
    if (!result) return;
    const body = { ...request(field.value), attention: false, n_best: N_BEST };
    const answer = await runner.run((options) => post("api/translate", body, options));
    if (!answer) return;
    list.replaceChildren(...answer.sentences.map((each, i) => make("ul", { class: "n-best" },
      ...each.n_best.map(({ translation: text, score }) => {
        const button = makeButton(text, { title: "Use this translation" }, () => force(result.sentences[i], [text]));
        button.append(make("small", { title: "Score: log-probability with length penalty" }, score.toFixed(2).replace("-", "−")));
        return make("li", {}, button);
      }))));
  }

  field.addEventListener("input", onInput);
  source.addEventListener("change", () => { fillTargets(); restart(); });
  target.addEventListener("change", () => { fillTargets(); restart(); });
  choice.addEventListener("change", () => { fillHeads(); restart(); });
  for (const id of ["#layer", "#head"]) part(id).addEventListener("change", () => view.refresh());
  swap.addEventListener("click", swapLanguages);
  copy.addEventListener("click", () => copyText(translation, copy));
  others.addEventListener("toggle", () => { if (others.open) listOthers(); });
  return {
    setModels(own) { models = own; fillLanguages(); },
    restored(values) {
      fillTargets();
      for (const name of ["target", "model", "layer", "head"]) {
        const select = panel.querySelector(`[name=${name}]`);
        if ([...select.options].some(({ value }) => value === values.get(name))) select.value = values.get(name);
      }
    },
    run,
  };
}
