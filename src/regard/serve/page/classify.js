// Classify: the probabilities of the labels of each line.

import { post } from "./client.js";
import { announce, debounce, linesOf, make, makeBar } from "./dom.js";
import { Runner } from "./runner.js";

export function startClassify(panel) {
  const runner = new Runner(panel);
  const results = panel.querySelector("#classes");
  const value = (name) => panel.querySelector(`[name=${name}]`).value;

  async function run() {
    const texts = linesOf(value("text"));
    if (!texts.length) {
      runner.cancel();
      results.replaceChildren();
      return;
    }
    const answer = await runner.run((options) => (
      post("api/classify", { texts, model: value("model") || null }, options)));
    if (!answer) return;
    results.replaceChildren(...answer.results.map(({ label, probabilities }, i) => {
      const ranked = Object.entries(probabilities).sort((a, b) => b[1] - a[1]);
      return make("section", { class: "card" },
        make("h2", { class: "quoted" }, texts[i]),
        make("ul", { class: "bars" }, ...ranked.map(([name, share]) => (
          makeBar(name, share, { class: name === label ? "bar best" : "bar" })))));
    }));
    announce(answer.results.map(({ label }) => label).join(", "));
  }

  panel.addEventListener("input", debounce(250, run));
  return { run };
}
