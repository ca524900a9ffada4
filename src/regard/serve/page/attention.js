// Attention: the heads of all layers of any model for any text.

import { post } from "./client.js";
import { announce, debounce, decodeWeights, fillSelect, make, makeButton, percent } from "./dom.js";
import { drawLarge, drawSmall } from "./heatmap.js";
import { Runner } from "./runner.js";

const LISTED = 5;
const STACKS = { encoder: "Encoder", decoder: "Decoder", cross: "Cross-attention" };
const HINT = "Point at a cell, or move with the arrow keys: each row has the weights of one token "
  + "and sums to 1.";
const numbers = (count) => Array.from({ length: count }, (_, i) => [String(i + 1), String(i + 1)]);

export function startAttention(panel, save) {
  const runner = new Runner(panel);
  const part = (id) => panel.querySelector(id);
  const select = (name) => panel.querySelector(`[name=${name}]`);
  const [text, target, model] = ["text", "target", "model"].map(select);
  const [stackField, layer, head] = ["stack", "layer", "head"].map(select);
  const [heads, maps, canvas, details] = ["#heads", "#maps", "#map", "#map-details"].map(part);
  let models = [];
  let stacks = [];
  let pending = new URLSearchParams();  // values of the URL for fields that need a result first
  let cell = null;
  let place = { left: 0, top: 0, size: 1 };

  const stack = () => stacks.find(({ name }) => name === stackField.value);

  function headWeights(layerNumber, headNumber) {
    const { weights, heads: count, rows, columns } = stack();
    const size = rows.length * columns.length;
    const start = ((layerNumber - 1) * count + headNumber - 1) * size;
    return weights.subarray(start, start + size);
  }

  // The selected weights, row by row.
  function selected() {
    const { rollout, heads: count, rows, columns } = stack();
    const size = rows.length * columns.length;
    const at = Number(layer.value);
    if (head.value === "rollout") return rollout.subarray((at - 1) * size, at * size);
    if (head.value !== "mean") return headWeights(at, Number(head.value));
    const mean = new Float32Array(size);
    for (let h = 1; h <= count; h++) {
      headWeights(at, h).forEach((weight, i) => { mean[i] += weight / count; });
    }
    return mean;
  }

  async function run() {
    const style = models.find(({ name }) => name === model.value)?.style;
    part("#target-field").hidden = style !== "encoder-decoder";
    if (!text.value.trim()) {
      runner.cancel();
      heads.hidden = true;
      return;
    }
    const writes = style === "encoder-decoder" && target.value;
    const body = { text: text.value, target: writes || null, model: model.value };
    const answer = await runner.run((options) => post("api/attention", body, options));
    if (!answer) return;
    stacks = answer.stacks.map((each) => ({
      ...each, weights: decodeWeights(each.weights), rollout: decodeWeights(each.rollout),
    }));
    heads.hidden = false;
    const cross = stacks.some(({ name }) => name === "cross");
    fillSelect(stackField, stacks.map(({ name }) => [name, STACKS[name]]), cross ? "cross" : stacks[0].name);
    restoreField(stackField);
    fillStack();
  }

  function restoreField(field) {
    const value = pending.get(field.name);
    if ([...field.options].some((option) => option.value === value)) field.value = value;
    pending.delete(field.name);
  }

  function fillStack() {
    const { layers, heads: count } = stack();
    fillSelect(layer, numbers(layers), String(layers));
    fillSelect(head, [...numbers(count).map(([value]) => [value, `head ${value}`]),
      ["mean", "all heads (mean)"], ["rollout", "all layers (rollout)"]]);
    restoreField(layer);
    restoreField(head);
    cell = null;
    maps.style.gridTemplateColumns = `auto repeat(${count}, max-content)`;
    const names = numbers(count).map(([h]) => make("span", {}, `head ${h}`));
    const lines = numbers(layers).flatMap(([l]) => (
      [make("span", {}, `layer ${l}`), ...numbers(count).map(([h]) => makeMap(l, h))]));
    maps.replaceChildren(make("span"), ...names, ...lines);
    show();
  }

  function makeMap(l, h) {
    const small = make("canvas");
    const attributes = { "aria-label": `layer ${l}, head ${h}`, "data-layer": l, "data-head": h };
    const button = makeButton(small, attributes, () => {
      layer.value = l;
      head.value = h;
      show();
      save();
    });
    drawSmall(small, headWeights(Number(l), Number(h)), stack().rows.length, stack().columns.length);
    return button;
  }

  function title() {
    const what = { mean: "mean of all heads", rollout: "rollout from the input" };
    return `${STACKS[stackField.value]}, layer ${layer.value}, ${what[head.value] ?? `head ${head.value}`}`;
  }

  function show() {
    for (const button of maps.querySelectorAll("button")) {
      const { layer: l, head: h } = button.dataset;
      button.setAttribute("aria-pressed", l === layer.value && ["mean", h].includes(head.value));
    }
    part("#map-title").textContent = title();
    canvas.setAttribute("aria-label", `Attention weights: ${title()}`);
    draw();
    announce(title());
  }

  function draw() {
    const { rows, columns, writes } = stack();
    const weights = selected();
    place = drawLarge(canvas, { weights, rows, columns, cell }, canvas.parentElement.clientWidth);
    if (!cell) {
      details.textContent = HINT;
      return;
    }
    const [row, column] = cell;
    const own = weights.subarray(row * columns.length, (row + 1) * columns.length);
    const ranked = [...own].map((weight, i) => [weight, columns[i]]).sort((a, b) => b[0] - a[0]);
    const most = ranked.slice(0, LISTED).map(([weight, name]) => `${name} ${percent(weight)}`);
    details.replaceChildren(make("strong", {}, rows[row]), writes[row] ? ` (writes ${writes[row]})` : "",
      ` attends to ${columns[column]}: ${percent(own[column])}. Most: ${most.join(" · ")}`);
  }

  function onPointer(event) {
    const box = canvas.getBoundingClientRect();
    const [row, column] = [event.clientY - box.top - place.top, event.clientX - box.left - place.left]
      .map((pixels) => Math.floor(pixels / place.size));
    const { rows, columns } = stack();
    const inside = row >= 0 && row < rows.length && column >= 0 && column < columns.length;
    if (inside && cell?.[0] === row && cell?.[1] === column) return;
    cell = inside ? [row, column] : null;
    draw();
  }

  function onKey(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const ends = [stack().rows.length - 1, stack().columns.length - 1];
    cell = cell ? cell.map((at, i) => Math.max(0, Math.min(ends[i], at + step[i]))) : [0, 0];
    draw();
  }

  const later = debounce(250, run);
  for (const field of [text, target]) field.addEventListener("input", later);
  model.addEventListener("change", run);
  stackField.addEventListener("change", fillStack);
  for (const field of [layer, head]) field.addEventListener("change", show);
  canvas.addEventListener("pointermove", onPointer);
  canvas.addEventListener("pointerleave", () => { cell = null; draw(); });
  canvas.addEventListener("keydown", onKey);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (stacks.length) fillStack();
  });
  window.addEventListener("resize", debounce(100, () => {
    if (!heads.hidden && !panel.hidden) draw();
  }));
  return {
    setModels(own) {
      models = own;
      const initial = own.find(({ style }) => style === "encoder-decoder") ?? own[0];
      fillSelect(model, own.map(({ name }) => [name, name]), initial.name);
      model.value = initial.name;
    },
    restored(values) { pending = values; },
    run,
  };
}
