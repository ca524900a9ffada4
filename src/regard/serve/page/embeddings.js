// Embeddings: the similarity of every two lines.

import { post } from "./client.js";
import { announce, debounce, linesOf, make } from "./dom.js";
import { makeMatrix } from "./matrix.js";
import { Runner } from "./runner.js";

const MOST = 40;  // lines

export function startEmbeddings(panel) {
  const runner = new Runner(panel);
  const results = panel.querySelector("#similarity");
  const { text, model } = panel.querySelector("form").elements;

  async function run() {
    const texts = linesOf(text.value);
    if (!texts.length || texts.length > MOST) {
      runner.cancel();
      results.replaceChildren();
      if (texts.length) runner.show(`The table has room for ${MOST} sentences: remove some.`, "error");
      return;
    }
    const answer = await runner.run((options) => (
      post("api/embed", { texts, model: model.value || null }, options)));
    if (!answer) return;
    const least = Math.min(...answer.similarity.flat(), 0.9);
    const numbers = texts.map((_, i) => String(i + 1));
    const table = makeMatrix({
      rows: texts.map((line, i) => `${i + 1}  ${line}`), columns: numbers, values: answer.similarity,
      format: (value) => value.toFixed(2), shade: (value) => (value - least) / (1 - least),
      caption: "Cosine similarity of the sentences",
    });
    const size = answer.vectors[0].length;
    const hint = `Cosine similarity of vectors with ${size} numbers: 1 is the same direction.`;
    results.replaceChildren(make("section", { class: "card" }, table, make("p", { class: "hint" }, hint)));
    announce("The table of similarities is complete.");
  }

  panel.addEventListener("input", debounce(250, run));
  return { run };
}
