// Translate: translations as you type, with alternatives for each word.

import { AlternativesMenu } from "./alternatives.js";
import { post } from "./client.js";
import { announce, copyText, debounce, make, makeButton } from "./dom.js";
import { LanguageChoice } from "./languages.js";
import { Runner } from "./runner.js";
import { TranslationView } from "./translation_view.js";
import { Sentence } from "./words.js";

const DETAILED = 2000;  // characters of a text with attention weights in its response
const N_BEST = 4;

export function startTranslate(panel, save) {
  const part = (id) => panel.querySelector(id);
  const [field, detected, forced, nBest] = ["#text", "#detected", "#forced", "#n-best"].map(part);
  const [copy, swap, others, inside] = ["#copy", "#swap", "#others", "#inside"].map(part);
  const chosen = part("[name=chosen]");  // "INDEX:PREFIX" of sentences, for the URL
  const runner = new Runner(panel);
  const menu = new AlternativesMenu(part("#alternatives"));
  const view = new TranslationView(panel, openMenu);
  const languages = new LanguageChoice(panel, restart);
  let result = null;  // the last response, with its sentences as objects
  let translation = "";

  // ---- translation ----------------------------------------------------------------------

  function request(text) {
    return { text, ...languages.request, attention: [...text].length <= DETAILED };
  }

  async function fetchTranslation(body, options) {
    try {
      return await post("api/translate", body, options);
    } catch (error) {
      if (error.status !== 413 || !body.attention) throw error;  // too many weights
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
    const { source, target } = answer;
    result = { ...answer, sentences: answer.sentences.map((each) => new Sentence(each, source, target)) };
    translation = answer.translation;
    detected.textContent = languages.describe(answer);
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
    inside.hidden = !result.sentences.length;
    announce(translation);
    const changes = result.sentences.flatMap((sentence) => sentence.forced);
    chosen.value = result.sentences
      .map((sentence, i) => [i, sentence.forced.at(-1)]).filter(([, prefix]) => prefix)
      .map(([i, prefix]) => `${i}:${prefix}`).join("\n");
    save();
    forced.replaceChildren();
    if (changes.length) {
      forced.append(changes.length === 1 ? "1 manual change " : `${changes.length} manual changes `,
        makeButton("Undo", { class: "quiet", id: "undo" }, undo));
    }
  }

  function clear() {
    result = null;
    translation = "";
    view.clear();
    copy.disabled = true;
    inside.hidden = true;
    for (const element of [forced, detected, nBest]) element.replaceChildren();
    languages.forget();
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

  function onSwap() {
    languages.switch();
    field.value = translation || field.value;
    save();
    restart();
  }

  // ---- alternatives ---------------------------------------------------------------------

  // The request for one sentence of the last result.
  function sentenceRequest(sentence, prefix) {
    const { text, model } = request(sentence.text);
    return { text, model, source: result.source, target: result.target, prefix };
  }

  function openMenu(sentence, word, element) {
    menu.open(element, sentenceRequest(sentence, sentence.prefix(word)),
      ({ prefix }) => force(sentence, [...sentence.forced, prefix]));
  }

  // Translate a sentence again so that it begins with the last of the prefixes.
  // Returns whether it was translated: a newer request aborts this one.
  async function force(sentence, prefixes, focus = true) {
    const prefix = prefixes.at(-1) ?? "";
    const body = { ...sentenceRequest(sentence, prefix), attention: Boolean(sentence.attention) };
    const answer = await runner.run((options) => fetchTranslation(body, options));
    if (!answer?.sentences.length) return false;
    const made = new Sentence(answer.sentences[0], answer.source, answer.target);
    made.forced = prefixes;
    replace(sentence, made);
    show();
    if (focus) view.focusWord(made, [...prefix].length);
    return true;
  }

  // Replace a sentence by its new translation.
  function replace(before, after) {
    const characters = [...translation];
    const size = [...before.translation].length;
    after.start = before.start;
    after.translationStart = before.translationStart;
    characters.splice(before.translationStart, size, ...after.translation);
    translation = characters.join("");
    const at = result.sentences.indexOf(before);
    result.sentences[at] = after;
    for (const following of result.sentences.slice(at + 1)) {
      following.translationStart += [...after.translation].length - size;
    }
  }

  function undo() {
    const sentence = result.sentences.findLast((each) => each.forced.length);
    force(sentence, sentence.forced.slice(0, -1));
  }

  async function listOthers() {
    if (!result) return;
    const body = { ...request(field.value), attention: false, n_best: N_BEST };
    const answer = await runner.run((options) => post("api/translate", body, options));
    if (!answer) return;
    nBest.replaceChildren(...answer.sentences.map((sentence, i) => make("ul", { class: "n-best" },
      ...sentence.n_best.map((each) => make("li", {}, makeOther(each, i))))));
  }

  function makeOther({ translation: text, score }, i) {
    const use = () => force(result.sentences[i], [text]);
    const button = makeButton(text, { title: "Use this translation" }, use);
    const title = "Score: log-probability with length penalty";
    button.append(make("small", { title }, score.toFixed(2).replace("-", "−")));
    return button;
  }

  field.addEventListener("input", onInput);
  for (const id of ["#layer", "#head"]) part(id).addEventListener("change", () => view.refresh());
  swap.addEventListener("click", onSwap);
  copy.addEventListener("click", () => copyText(translation, copy));
  others.addEventListener("toggle", () => { if (others.open) listOthers(); });
  return {
    setModels: (models) => languages.setModels(models),
    restored: (values) => languages.restore(values),
    run,
  };
}
