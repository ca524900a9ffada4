// Search: the lines of a text that are nearest in meaning to a query.

import { post } from "./client.js";
import { announce, debounce, linesOf, make } from "./dom.js";
import { Runner } from "./runner.js";

const LARGEST = 1_000_000;  // bytes of a file

export function startSearch(panel) {
  const runner = new Runner(panel);
  const results = panel.querySelector("#hits");
  const { query, documents, top, model } = panel.querySelector("form").elements;
  const stored = { text: null, model: null, id: null };  // documents that the service knows

  async function fetchHits(options) {
    const body = { queries: [query.value], top: Number(top.value), model: model.value || null };
    if (stored.text === documents.value && stored.model === model.value) {
      try {
        return await post("api/search", { ...body, documents_id: stored.id }, options);
      } catch (error) {
        if (error.status !== 404) throw error;  // the service has forgotten the documents
      }
    }
    const [text, name] = [documents.value, model.value];
    const answer = await post("api/search", { ...body, documents: linesOf(text) }, options);
    Object.assign(stored, { text, model: name, id: answer.documents_id });
    return answer;
  }

  async function run() {
    if (!query.value.trim() || !documents.value.trim() || !top.checkValidity()) {
      runner.cancel();
      results.replaceChildren();
      return;
    }
    const answer = await runner.run(fetchHits);
    if (!answer) return;
    const [hits] = answer.results;
    results.replaceChildren(...hits.map(({ text, score }, i) => make("li", { class: "card" },
      make("span", { class: "rank" }, String(i + 1)),
      make("span", { class: "text" }, text),
      make("span", { class: "score", title: "Cosine similarity" }, score.toFixed(3)))));
    announce(hits.length ? `${hits.length} results, the first one: ${hits[0].text}` : "No results");
  }

  panel.querySelector("#file").addEventListener("change", async ({ target }) => {
    const [file] = target.files;
    target.value = "";
    if (!file) return;
    if (file.size > LARGEST) {
      runner.show(`The file has ${file.size} bytes, but at most ${LARGEST} can be searched.`, "error");
      return;
    }
    documents.value = await file.text();
    documents.dispatchEvent(new Event("input", { bubbles: true }));
  });
  panel.addEventListener("input", debounce(250, run));
  return { run };
}
