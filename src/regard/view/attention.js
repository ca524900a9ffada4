"use strict";
// Draws the weights in this page. Every token is inserted as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const find = (selector) => document.querySelector(selector);
const [form, grid, stage, details] = ["#controls", "#grid", "#stage", "#details"].map(find);
const [canvas, svg] = [stage.querySelector("canvas"), stage.querySelector("svg")];
const state = { ...data.view, row: -1, column: -1 };
const LISTED = 12, CELL = 34, SMALLEST = 12, LINE = 22, SPAN = 300;
let place = {};  // the positions and sizes of the current drawing

function make(name, text, parent, attributes = {}) {
  const drawn = ["text", "rect"].includes(name);
  const made = drawn ? document.createElementNS(svg.namespaceURI, name) : document.createElement(name);
  if (text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

function numbers(packed) {  // base64 of 16-bit numbers, 65535 for 1
  const bytes = Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
  return Float32Array.from(new Uint16Array(bytes.buffer), (value) => value / 65535);
}

for (const stack of data.stacks) {
  stack.weights = numbers(stack.weights);
  stack.rollout = numbers(stack.rollout);
}
const stack = () => data.stacks.find(({ name }) => name === state.stack);

function head(layer, head) {
  const { weights, heads, rows, columns } = stack(), size = rows.length * columns.length;
  const start = ((layer - 1) * heads + head - 1) * size;
  return weights.subarray(start, start + size);
}

function matrix() {  // the selected weights, row by row
  const { rollout, heads, rows, columns } = stack(), size = rows.length * columns.length;
  if (state.what === "rollout") return rollout.subarray((state.layer - 1) * size, state.layer * size);
  if (state.what === "head") return head(state.layer, state.head);
  const mean = new Float32Array(size);
  for (let h = 1; h <= heads; h++) head(state.layer, h).forEach((w, i) => { mean[i] += w / heads; });
  return mean;
}

// ---- colours ----------------------------------------------------------------------------

let ramp = [];
function readRamp() {
  const styles = getComputedStyle(document.documentElement);
  const stops = styles.getPropertyValue("--ramp").trim().split(/\s+/)
    .map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  ramp = Array.from({ length: 256 }, (_, i) => {
    const at = i / 255 * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
    return stops[low].map((value, c) => Math.round(value + (stops[low + 1][c] - value) * (at - low)));
  });
}
const colour = (weight) => ramp[Math.round(255 * Math.sqrt(Math.min(1, weight)))];

function pixels(target, weights, rows, columns) {
  [target.width, target.height] = [columns, rows];
  const context = target.getContext("2d"), image = context.createImageData(columns, rows);
  weights.forEach((weight, i) => image.data.set([...colour(weight), 255], 4 * i));
  context.putImageData(image, 0, 0);
}

// ---- the controls and the small maps ----------------------------------------------------

function fill(select, count) {
  select.replaceChildren();
  for (let i = 1; i <= count; i++) make("option", String(i), select, { value: i });
}

function refill() {
  const { layers, heads } = stack();
  state.layer = Math.min(state.layer, layers);
  state.head = Math.min(state.head, heads);
  fill(form.elements.layer, layers);
  fill(form.elements.head, heads);
  grid.replaceChildren();
  grid.style.gridTemplateColumns = `auto repeat(${heads}, max-content)`;
  make("span", "", grid);
  for (let h = 1; h <= heads; h++) make("span", `head ${h}`, grid);
  for (let layer = 1; layer <= layers; layer++) {
    make("span", `layer ${layer}`, grid);
    for (let h = 1; h <= heads; h++) {
      const name = `layer ${layer}, head ${h}`;
      const button = make("button", null, grid, { type: "button", "aria-label": name });
      make("canvas", null, button);
      button.addEventListener("click", () => change({ layer, head: h, what: "head" }));
    }
  }
  paintGrid();
}

function paintGrid() {
  const { heads, rows, columns } = stack();
  grid.querySelectorAll("canvas").forEach((small, i) => {
    pixels(small, head(Math.floor(i / heads) + 1, i % heads + 1), rows.length, columns.length);
  });
}

function change(changes) {
  const other = changes.stack !== undefined && changes.stack !== state.stack;
  Object.assign(state, changes);
  if (other) [state.row, state.column] = [-1, -1];
  if (other) refill();
  for (const name of ["layer", "head"]) form.elements[name].value = state[name];
  for (const radio of form.querySelectorAll("[type=radio]")) radio.checked = state[radio.name] === radio.value;
  form.elements.head.disabled = state.what !== "head";
  const { heads } = stack();
  grid.querySelectorAll("button").forEach((button, i) => {
    const layer = Math.floor(i / heads) + 1, own = i % heads + 1 === state.head;
    const on = state.what === "rollout" ? layer <= state.layer
      : layer === state.layer && (own || state.what === "mean");
    button.setAttribute("aria-pressed", on);
  });
  const name = state.stack === "cross" ? "Cross-attention" : `Self-attention of the ${state.stack}`;
  const what = { head: `layer ${state.layer}, head ${state.head}`,
    mean: `layer ${state.layer}, mean over heads`, rollout: `rollout through layer ${state.layer}` };
  find("#shown").textContent = `${name}: ${what[state.what]}`;
  draw();
}

// ---- the large picture ------------------------------------------------------------------

const measure = document.createElement("canvas").getContext("2d");
function widest(tokens, size) {
  measure.font = `${size}px system-ui, sans-serif`;
  return Math.ceil(Math.max(...tokens.map((token) => measure.measureText(token).width)));
}

function available() {  // the available width; a wider picture scrolls
  const whole = find("#both").clientWidth - 8;
  return matchMedia("(max-width: 40rem)").matches ? whole : whole - details.offsetWidth - 16;
}

function sized(width, height) {
  const sharp = Math.min(window.devicePixelRatio || 1, 8192 / Math.max(width, height));
  [canvas.width, canvas.height] = [width * sharp, height * sharp];
  for (const part of [stage, canvas, svg]) {
    [part.style.width, part.style.height] = [`${width}px`, `${height}px`];
  }
  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  return context;
}

function draw() {
  svg.replaceChildren();
  (state.how === "map" ? drawMap : drawLines)(matrix());
  point(state.row, state.column);
}

function drawMap(weights) {
  const { rows, columns } = stack(), n = rows.length, m = columns.length;
  const room = available();
  let size = 14, left = widest(rows, size) + 8;
  const cell = Math.max(SMALLEST, Math.min(CELL, Math.floor((room - left) / m)));
  if (cell < 16) [size, left] = [11, widest(rows, 11) + 8];
  const top = widest(columns, size) + 8;
  place = { left, top, cell };
  const context = sized(left + m * cell + 1, top + n * cell + 1);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.font = "11px system-ui, sans-serif";
  weights.forEach((weight, i) => {
    const x = left + (i % m) * cell, y = top + Math.floor(i / m) * cell, [r, g, b] = colour(weight);
    context.fillStyle = `rgb(${r} ${g} ${b})`;
    context.fillRect(x, y, cell, cell);
    if (cell >= 30 && weight >= 0.005) {
      context.fillStyle = 0.3 * r + 0.59 * g + 0.11 * b > 130 ? "#111111" : "#ffffff";
      context.fillText(weight >= 0.995 ? "1" : weight.toFixed(2).slice(1), x + cell / 2, y + cell / 2);
    }
  });
  context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--rule");
  context.strokeRect(left, top, m * cell, n * cell);
  const middle = (i) => (i + 0.5) * cell;
  rows.forEach((token, i) => make("text", token, svg, { x: left - 5, y: top + middle(i),
    "font-size": size, "text-anchor": "end", "dominant-baseline": "central", "data-row": i }));
  columns.forEach((token, j) => {
    const at = `translate(${left + middle(j)} ${top - 5}) rotate(-90)`;
    make("text", token, svg, { transform: at, "font-size": size, "dominant-baseline": "central",
      "data-column": j });
  });
  make("rect", null, svg, { visibility: "hidden" });
}

function drawLines(weights) {
  const { rows, columns } = stack(), size = 14;
  const left = widest(rows, size) + 10, right = widest(columns, size) + 10;
  const room = available();
  const span = Math.max(80, Math.min(SPAN, room - left - right));
  const tall = Math.max(rows.length, columns.length) * LINE;
  const at = (i, count) => (i + 0.5 - count / 2) * LINE + tall / 2;
  place = { left, span, tall, at, weights, context: sized(left + span + right, tall) };
  rows.forEach((token, i) => make("text", token, svg, { x: left - 6, y: at(i, rows.length),
    "font-size": size, "text-anchor": "end", "dominant-baseline": "central", "data-row": i }));
  columns.forEach((token, j) => make("text", token, svg, { x: left + span + 6,
    y: at(j, columns.length), "font-size": size, "dominant-baseline": "central", "data-column": j }));
}

function paintLines() {
  const { rows, columns } = stack(), { left, span, tall, at, weights, context } = place;
  const m = columns.length, chosen = state.row >= 0 || state.column >= 0;
  const floor = chosen ? 0.005 : Math.min(0.05, Math.max(0.01, 2 / m));
  const front = getComputedStyle(document.documentElement).getPropertyValue("--front");
  context.clearRect(0, 0, left + span * 2, tall);
  context.strokeStyle = front;
  weights.forEach((weight, k) => {
    const i = Math.floor(k / m), j = k % m;
    if (weight < floor || (state.row >= 0 && i !== state.row)) return;
    if (state.column >= 0 && j !== state.column) return;
    context.globalAlpha = Math.sqrt(Math.min(1, weight));
    context.lineWidth = 0.5 + 5 * weight;
    context.beginPath();
    context.moveTo(left, at(i, rows.length));
    context.lineTo(left + span, at(j, m));
    context.stroke();
  });
  context.globalAlpha = 1;
}

// ---- pointing ---------------------------------------------------------------------------

function point(row, column) {
  [state.row, state.column] = [row, column];
  svg.querySelectorAll("text").forEach((text) => {
    const on = text.dataset.row === String(row) || text.dataset.column === String(column);
    text.classList.toggle("on", on);
  });
  if (state.how === "lines") paintLines();
  const frame = svg.querySelector("rect");
  if (frame) {
    const { left, top, cell } = place, { rows, columns } = stack();
    const x = [column < 0 ? 0 : column, column < 0 ? columns.length : 1];
    const y = [row < 0 ? 0 : row, row < 0 ? rows.length : 1];
    const box = { x: left + x[0] * cell, width: x[1] * cell, y: top + y[0] * cell, height: y[1] * cell };
    for (const [key, value] of Object.entries(box)) frame.setAttribute(key, value);
    frame.setAttribute("visibility", row < 0 && column < 0 ? "hidden" : "visible");
  }
  showDetails(row, column);
}

function showDetails(row, column) {
  details.replaceChildren();
  if (row < 0 && column < 0) return;
  const { rows, columns, writes } = stack(), m = columns.length, weights = matrix();
  const verb = state.what === "rollout" ? "depends on" : "attends to";
  const tokenName = (i) => writes[i] ? `${rows[i]} (writes ${writes[i]})` : rows[i];
  if (row >= 0 && column >= 0) {
    const weight = weights[row * m + column].toFixed(4);
    make("p", `${tokenName(row)} ${verb} ${columns[column]}: ${weight}`, details);
  }
  const entries = row >= 0
    ? columns.map((token, j) => [token, weights[row * m + j]])
    : rows.map((_, i) => [tokenName(i), weights[i * m + column]]);
  const by = state.what === "rollout" ? "contributes to" : "receives attention from";
  make("p", row >= 0 ? `${tokenName(row)} ${verb}` : `${columns[column]} ${by}`, details);
  const list = make("ol", null, details);
  entries.sort((a, b) => b[1] - a[1]);
  for (const [token, weight] of entries.slice(0, LISTED)) {
    const line = make("li", null, list);
    make("span", token, line);
    make("b", weight.toFixed(4), line);
    make("i", null, line).style.width = `${100 * weight}%`;
  }
  if (entries.length > LISTED) make("p", `and ${entries.length - LISTED} with smaller weights`, details);
}

function under(event) {  // [row, column] below the mouse pointer; -1: none
  const { row, column } = event.target.dataset;
  if (row !== undefined) return [Number(row), -1];
  if (column !== undefined) return [-1, Number(column)];
  if (state.how === "lines") return [-1, -1];
  const box = stage.getBoundingClientRect(), { left, top, cell } = place;
  const i = Math.floor((event.clientY - box.top - top) / cell);
  const j = Math.floor((event.clientX - box.left - left) / cell);
  const { rows, columns } = stack();
  return i >= 0 && j >= 0 && i < rows.length && j < columns.length ? [i, j] : [-1, -1];
}

function onMove(event) {
  const [row, column] = under(event);
  if (row !== state.row || column !== state.column) point(row, column);
}
stage.addEventListener("pointermove", onMove);
stage.addEventListener("pointerdown", onMove);
stage.addEventListener("pointerleave", (event) => {
  if (event.pointerType === "mouse") point(-1, -1);
});
stage.addEventListener("keydown", (event) => {
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const { rows, columns } = stack();
  if (event.key === "Escape") point(-1, -1);
  if (!(event.key in moves)) return;
  event.preventDefault();
  const [down, right] = moves[event.key];
  const clamp = (value, count) => Math.max(-1, Math.min(count - 1, value));
  point(clamp(state.row + down, rows.length), clamp(state.column + right, columns.length));
});

// ---- start ------------------------------------------------------------------------------

find("#text").textContent = data.text;
find("#target").textContent = data.target;
for (const { name } of data.stacks) {
  const label = make("label", null, find("#stacks"));
  make("input", null, label, { type: "radio", name: "stack", value: name });
  label.append(` ${name}`);
}
form.addEventListener("change", (event) => {
  const { name, value } = event.target;
  change({ [name]: ["layer", "head"].includes(name) ? Number(value) : value });
});
form.addEventListener("submit", (event) => event.preventDefault());

function legend() {
  const bar = find("#legend canvas"), marks = find("#legend ol");
  pixels(bar, Float32Array.from({ length: 256 }, (_, i) => (i / 255) ** 2), 1, 256);
  marks.replaceChildren();
  for (const weight of [0, 0.02, 0.1, 0.25, 0.5, 1]) {
    make("li", String(weight), marks).style.left = `${bar.offsetLeft + 256 * Math.sqrt(weight)}px`;
  }
}

function paint() { readRamp(); legend(); paintGrid(); draw(); }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
let width = 0;
addEventListener("resize", () => {
  if (innerWidth !== width) { width = innerWidth; draw(); legend(); }
});
readRamp();
refill();
legend();
change({});
