// The state of the page in the fragment of its URL: #tab=translate&text=...&target=de
// Every form field with a name is part of the state of its tab; default values are left out.

import { debounce } from "./dom.js";

const LONGEST = 8000;  // characters of a field in the URL

const fieldsOf = (panel) => [...panel.querySelectorAll("[name]")].filter((field) => field.type !== "file");

function defaultOf(field) {
  if (field instanceof HTMLSelectElement) {
    return [...field.options].find((option) => option.defaultSelected)?.value ?? "";
  }
  return field.defaultValue;
}

export function readFragment() {
  return new URLSearchParams(location.hash.slice(1));
}

function write(name, panel) {
  const values = new URLSearchParams({ tab: name });
  for (const field of fieldsOf(panel)) {
    if (field.value !== defaultOf(field) && field.value.length <= LONGEST) {
      values.set(field.name, field.value);
    }
  }
  history.replaceState(null, "", `#${values}`);
}

export const saveState = debounce(150, write);

// Set the fields of a panel from the URL. A select element without the value keeps its own.
export function restore(panel, values) {
  for (const field of fieldsOf(panel)) {
    const value = values.get(field.name);
    if (field instanceof HTMLSelectElement) {
      const known = [...field.options].some((option) => option.value === value);
      field.value = known ? value : defaultOf(field);
    } else {
      field.value = value ?? field.defaultValue;
    }
  }
}
