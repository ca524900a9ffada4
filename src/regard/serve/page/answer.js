// Answer: a question about a context.

import { post } from "./client.js";
import { announce, make } from "./dom.js";
import { Runner } from "./runner.js";

export function startAnswer(panel) {
  const runner = new Runner(panel);
  const results = panel.querySelector("#answers");
  const form = panel.querySelector("form");

  // The context, with the answer marked where it occurs.
  function makeContext(context, answer) {
    const at = answer ? context.toLowerCase().indexOf(answer.toLowerCase()) : -1;
    if (at < 0) return make("p", { class: "context" }, context);
    const end = at + answer.length;
    return make("p", { class: "context" }, context.slice(0, at),
      make("mark", {}, context.slice(at, end)), context.slice(end));
  }

  async function run() {
    const value = (name) => form.elements[name].value;
    const [question, context, model] = ["question", "context", "model"].map(value);
    if (!question.trim() || !context.trim()) return;
    const body = { question, context, model: model || null };
    const answer = await runner.run((options) => post("api/answer", body, options));
    if (!answer) return;
    const [{ answer: text }] = answer.results;
    results.replaceChildren(make("section", { class: "card" },
      make("p", { class: "answer" }, text || "The model has no answer."), makeContext(context, text)));
    announce(text);
  }

  form.addEventListener("submit", run);
  return { run };
}
