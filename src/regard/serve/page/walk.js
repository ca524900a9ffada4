// Walk: a sentence in a small Transformer, step by step.

import { post } from "./client.js";
import { announce, debounce, make } from "./dom.js";
import { makeMatrix } from "./matrix.js";
import { Runner } from "./runner.js";

const format = (value, digits) => (value === null ? "−∞" : value.toFixed(digits).replace("-", "−"));

function makeTable({ caption, picture, rows, columns, values, answers }) {
  const known = values.flat().filter((value) => value !== null);
  const low = Math.min(...known), high = Math.max(...known);
  const plain = picture === "ids" || low === high;
  const named = rows.length === values.length ? rows : values.map((_, i) => rows[i] ?? "");
  const labels = answers.length === named.length
    ? named.map((row, i) => (answers[i] === null ? row : `${row} (correct: ${answers[i]})`)) : named;
  return makeMatrix({
    rows: labels, columns, values, caption,
    format: (value) => format(value, picture === "ids" ? 0 : 2),
    shade: (value) => (plain || value === null ? 0 : (value - low) / (high - low)),
  });
}

function makeStep({ title, section, text, tables }, i) {
  const captions = tables.map(({ caption }) => caption);
  return make("section", { class: "card step" },
    make("h3", {}, `${i + 1}. ${title}`, make("span", { class: "shape" }, captions.join(", "))),
    make("p", {}, section ? `${text} (Section ${section} of the paper.)` : text),
    ...tables.map(makeTable));
}

export function startWalk(panel) {
  const runner = new Runner(panel);
  const results = panel.querySelector("#steps");
  const { text, target, style } = panel.querySelector("form").elements;

  async function run() {
    const both = style.value === "encoder-decoder";
    panel.querySelector("#walk-target").hidden = !both;
    if (!text.value) {
      runner.cancel();
      results.replaceChildren();
      return;
    }
    const body = { text: text.value, target: (both && target.value) || null, style: style.value };
    const answer = await runner.run((options) => post("api/walk", body, options));
    if (!answer) return;
    let part = "";
    results.replaceChildren(...answer.steps.flatMap((step, i) => {
      const heading = step.part === part ? [] : [make("h2", { class: "step-part" }, step.part)];
      part = step.part;
      return [...heading, makeStep(step, i)];
    }));
    announce(`${answer.steps.length} steps`);
  }

  panel.addEventListener("input", debounce(250, run));
  return { run };
}
