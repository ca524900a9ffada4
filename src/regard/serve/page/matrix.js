// Tables of numbers with coloured cells.

import { make } from "./dom.js";

// A table with names of rows and columns. `shade(value)` is between 0 and 1.
export function makeMatrix({ rows, columns, values, format, shade, caption }) {
  const cell = (value) => {
    const element = make("td", {}, format(value));
    element.style.setProperty("--weight", Math.max(0, Math.min(1, shade(value))).toFixed(3));
    return element;
  };
  const table = make("table", { class: "matrix" },
    make("caption", { class: "hidden" }, caption),
    make("thead", {}, make("tr", {}, make("td", { class: "corner" }),
      ...columns.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...values.map((line, i) => make("tr", {},
      make("th", { scope: "row", title: rows[i] }, rows[i]), ...line.map(cell)))));
  return make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption }, table);
}
