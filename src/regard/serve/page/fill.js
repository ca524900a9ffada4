// Fill: ranked words for each <mask>.

import { post } from "./client.js";
import { announce, debounce, make, makeBar, makeButton } from "./dom.js";
import { Runner } from "./runner.js";

const MASK = "<mask>";

export function startFill(panel) {
  const runner = new Runner(panel);
  const results = panel.querySelector("#gaps");
  const { text: field, model, top } = panel.querySelector("form").elements;

  function insertMask() {
    field.setRangeText(MASK, field.selectionStart, field.selectionEnd, "end");
    field.focus();
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }

  // Replace a mask by a word.
  function replaceMask(index, word) {
    const parts = field.value.split(MASK);
    const before = parts.slice(0, index + 1).join(MASK);
    const own = /\s$/.test(before) || !before ? word.trimStart() : word;
    field.value = before + own + parts.slice(index + 1).join(MASK);
    field.dispatchEvent(new Event("input", { bubbles: true }));
    field.focus();
  }

  // The text with the best words, which are marked.
  function makeFilled(text, gaps) {
    const parts = text.split(MASK);
    const line = make("p", { class: "card filled" }, parts[0]);
    gaps.forEach((gap, i) => {
      line.append(make("mark", {}, gap.candidates[0].word.trim()), parts[i + 1]);
    });
    return line;
  }

  async function run() {
    const text = field.value;
    const masks = text.split(MASK).length - 1;
    if (!masks || !top.checkValidity()) {
      runner.cancel();
      results.replaceChildren();
      if (text.trim() && !masks) runner.show(`Write ${MASK} where a word is missing.`);
      return;
    }
    const body = { texts: [text], top: Number(top.value), model: model.value || null };
    const answer = await runner.run((options) => post("api/fill", body, options));
    if (!answer) return;
    const [{ gaps }] = answer.results;
    const lists = gaps.map(({ candidates }, i) => (
      make("section", { class: "card" },
        make("h2", { class: "quoted" }, gaps.length > 1 ? `Mask ${i + 1}` : "Words"),
        make("ul", { class: "bars" }, ...candidates.map(({ word, probability }, rank) => makeBar(
          makeButton(word.trim(), { title: "Use this word" }, () => replaceMask(i, word)),
          probability, { class: rank ? "bar" : "bar best" }))))));
    results.replaceChildren(makeFilled(text, gaps), make("div", { class: "results columns" }, ...lists));
    announce(results.querySelector(".filled").textContent);
  }

  panel.querySelector("#mask").addEventListener("click", insertMask);
  panel.addEventListener("input", debounce(250, run));
  return { run };
}
