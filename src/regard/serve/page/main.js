// The frame of the page: tabs, state in the URL, models of the service, and the API key.

import { startAnswer } from "./answer.js";
import { startAttention } from "./attention.js";
import { startClassify } from "./classify.js";
import { get, setKey } from "./client.js";
import { copyText, fillSelect, make, makeButton } from "./dom.js";
import { startEmbeddings } from "./embeddings.js";
import { startFill } from "./fill.js";
import { startGenerate } from "./generate.js";
import { startSearch } from "./search.js";
import { readFragment, restore, saveState } from "./state.js";
import { startTranslate } from "./translate.js";
import { startWalk } from "./walk.js";

const POLL = 500;  // milliseconds between two requests for the models while they are loaded
const STARTS = {
  translate: startTranslate, generate: startGenerate, classify: startClassify, fill: startFill,
  answer: startAnswer, search: startSearch, embeddings: startEmbeddings, attention: startAttention,
  walk: startWalk,
};
const names = Object.keys(STARTS);
const tabOf = (name) => document.querySelector(`#tab-${name}`);
const panelOf = (name) => document.querySelector(`#panel-${name}`);
const loading = document.querySelector("#loading");
const keyForm = document.querySelector("#key");

let active = "";
const tabs = {};

// ---- tabs -------------------------------------------------------------------------------

function select(name) {
  active = name;
  for (const each of names) {
    const chosen = each === name;
    tabOf(each).setAttribute("aria-selected", chosen);
    tabOf(each).tabIndex = chosen ? 0 : -1;
    panelOf(each).hidden = !chosen;
  }
  tabOf(name).scrollIntoView({ block: "nearest", inline: "center" });
  document.title = `${tabOf(name).textContent} – regard`;
}

function open(name) {
  if (name === active) return;
  select(name);
  saveState(name, panelOf(name));
}

function onKey(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const at = names.indexOf(active);
  const ends = { Home: 0, End: names.length - 1 };
  const next = step ? (at + step + names.length) % names.length : ends[event.key];
  if (next === undefined) return;
  event.preventDefault();
  open(names[next]);
  tabOf(names[next]).focus();
}

// A button that fills the empty fields of a panel with an example.
function addExample(name) {
  const panel = panelOf(name);
  const fields = [...panel.querySelectorAll("[data-example]")];
  if (!fields.length) return;
  const button = makeButton("Use an example", { class: "quiet example" }, () => {
    for (const field of fields) {
      if (!field.value) field.value = field.dataset.example;
      field.dispatchEvent(new Event("input", { bubbles: true }));
    }
    fields[0].focus();
  });
  const update = () => { button.hidden = fields.every((field) => field.value); };
  panel.addEventListener("input", update);
  panel.addEventListener("state", update);
  const rows = panel.querySelectorAll(".languages, form, form .row");
  rows[rows.length - 1].append(button);
}

// ---- models -----------------------------------------------------------------------------

function modelsFor(task, models) {
  return task === "*" ? models : models.filter((model) => model.task === task);
}

function setModels(models) {
  for (const name of names) {
    const panel = panelOf(name);
    const { task } = panel.dataset;
    const own = modelsFor(task, models);
    if (task && !own.length) {
      showMissing(panel, task);
      continue;
    }
    const choice = panel.querySelector("select[name=model]");
    if (choice) {
      fillSelect(choice, own.map((model) => [model.name, model.name]));
      const label = choice.closest(".model-choice");
      if (label) label.hidden = own.length < 2;
    }
    tabs[name].setModels?.(own);
  }
}

function showMissing(panel, task) {
  const what = task === "*" ? "any task" : `the task “${task}”`;
  panel.replaceChildren(make("p", { class: "missing" },
    `This service has no model for ${what}: serve one with `,
    make("code", {}, "regard serve -m MODEL"), "."));
  panel.dataset.missing = "";
}

async function loadModels() {
  const notice = setTimeout(() => { loading.textContent = "The models are being loaded…"; }, POLL);
  for (;;) {
    let answer;
    try {
      answer = await get("api/models");
    } catch (error) {
      loading.textContent = error.message;
      loading.dataset.kind = "error";
      clearTimeout(notice);
      if (error.status === 401 || error.status === 403) return false;
    }
    if (answer?.ready) {
      clearTimeout(notice);
      loading.textContent = "";
      delete loading.dataset.kind;
      setModels(answer.models);
      return true;
    }
    if (answer) {
      loading.textContent = "The models are being loaded…";
      delete loading.dataset.kind;
    }
    await new Promise((resolve) => { setTimeout(resolve, POLL); });
  }
}

// ---- state ------------------------------------------------------------------------------

// Restore the state in the URL and compute its results.
function restoreState() {
  const values = readFragment();
  const name = names.includes(values.get("tab")) ? values.get("tab") : names[0];
  select(name);
  const panel = panelOf(name);
  if ("missing" in panel.dataset) return;
  restore(panel, values);
  tabs[name].restored?.(values);
  panel.dispatchEvent(new Event("state"));
  tabs[name].run();
}

async function begin() {
  if (await loadModels()) {
    document.body.dataset.ready = "";
    restoreState();
  }
}

for (const [name, start] of Object.entries(STARTS)) {
  const panel = panelOf(name);
  const save = () => saveState(name, panel);
  tabs[name] = start(panel, save);
  panel.addEventListener("input", save);
  panel.addEventListener("submit", (event) => event.preventDefault());
  tabOf(name).addEventListener("click", () => open(name));
  addExample(name);
}
document.querySelector("[role=tablist]").addEventListener("keydown", onKey);
document.querySelector("#share").addEventListener("click", ({ target }) => copyText(location.href, target));
document.querySelector("[data-skip]").addEventListener("click", (event) => {
  event.preventDefault();  // the fragment is the state of the page
  document.querySelector("#main").focus();
});
document.addEventListener("key-needed", () => { keyForm.hidden = false; });
keyForm.addEventListener("submit", (event) => {
  event.preventDefault();
  const field = document.querySelector("#key-field");
  setKey(field.value);
  field.value = "";
  keyForm.hidden = true;
  begin();
});
window.addEventListener("hashchange", restoreState);
select(names.includes(readFragment().get("tab")) ? readFragment().get("tab") : names[0]);
begin();
