// Attention weights as pictures: small maps without names, and one large map with names.

const FONT = "13px Inter, system-ui, sans-serif";
const LARGEST = 34, SMALLEST = 13;  // pixels of a cell

function readColours() {
  const styles = getComputedStyle(document.documentElement);
  const [sunken, accent, ink] = ["--sunken", "--accent", "--ink"]
    .map((name) => styles.getPropertyValue(name).trim());
  const parse = (colour) => colour.match(/[0-9a-f]{2}/gi).map((hex) => parseInt(hex, 16));
  return { low: parse(sunken), high: parse(accent), ink, accent };
}

// Small weights stay visible, because the colour depends on the square root.
const mix = ({ low, high }, weight) => low.map((value, c) => (
  value + (high[c] - value) * Math.sqrt(Math.min(1, weight))));

export function drawSmall(canvas, weights, rows, columns) {
  const colours = readColours();
  [canvas.width, canvas.height] = [columns, rows];
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  weights.forEach((weight, i) => image.data.set([...mix(colours, weight), 255], 4 * i));
  context.putImageData(image, 0, 0);
}

// Draw a map with names into a canvas that fits into `room` pixels if possible. Returns where its
// cells are. `cell` is [row, column] of the cell with a frame, or null.
export function drawLarge(canvas, { weights, rows, columns, cell }, room) {
  const colours = readColours();
  const measure = canvas.getContext("2d");
  measure.font = FONT;
  const widest = (names) => Math.ceil(Math.max(...names.map((name) => measure.measureText(name).width)));
  const left = widest(rows) + 10, top = widest(columns) + 10;
  const size = Math.max(SMALLEST, Math.min(LARGEST, Math.floor((room - left - 2) / columns.length)));
  const width = left + size * columns.length + 2, height = top + size * rows.length + 2;
  const sharp = Math.min(window.devicePixelRatio || 1, 8192 / Math.max(width, height));
  [canvas.width, canvas.height] = [width * sharp, height * sharp];
  [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  context.font = FONT;
  context.textBaseline = "middle";
  const gap = size > 16 ? 1 : 0;
  weights.forEach((weight, i) => {
    const [row, column] = [Math.floor(i / columns.length), i % columns.length];
    context.fillStyle = `rgb(${mix(colours, weight).map(Math.round).join(" ")})`;
    context.fillRect(left + size * column, top + size * row, size - gap, size - gap);
  });
  context.fillStyle = colours.ink;
  context.textAlign = "right";
  rows.forEach((name, i) => context.fillText(name, left - 8, top + size * (i + 0.5)));
  context.textAlign = "left";
  columns.forEach((name, i) => {
    context.save();
    context.translate(left + size * (i + 0.5), top - 8);
    context.rotate(-Math.PI / 2);
    context.fillText(name, 0, 0);
    context.restore();
  });
  if (cell) {
    context.strokeStyle = colours.accent;
    context.lineWidth = 2;
    context.strokeRect(left + size * cell[1], top + size * cell[0], size - gap, size - gap);
  }
  return { left, top, size };
}
