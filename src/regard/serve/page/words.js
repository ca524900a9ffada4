// Words of a sentence and of its translation, and the attention between them.
//
// Offsets in responses count Unicode code points, while strings of JavaScript count UTF-16 units:
// all offsets here are code points.

import { decodeWeights } from "./dom.js";

// The segments of a text: words, punctuation and white space.
function segments(text, language) {
  const segmenter = new Intl.Segmenter(language || "en", { granularity: "word" });
  let start = 0;
  return [...segmenter.segment(text)].map(({ segment }) => {
    const end = start + [...segment].length;
    const made = { text: segment, start, end, space: !segment.trim() };
    start = end;
    return made;
  });
}

const overlap = (token, word) => token.start < token.end && token.start < word.end && token.end > word.start;

function tokensOf(words, tokens, shift) {
  const own = tokens.map(({ start, end }) => ({ start: start - shift, end: end - shift }));
  return words.map((word) => own.flatMap((token, i) => (overlap(token, word) ? [i] : [])));
}

export class Sentence {
  // `sentence` is an element of `sentences` in the response of api/translate.
  constructor(sentence, source, target) {
    this.text = sentence.text;
    this.start = sentence.start;
    this.translation = sentence.translation;
    this.translationStart = sentence.translation_start;
    this.attention = sentence.attention;
    this.sourceSegments = segments(this.text, source);
    this.targetSegments = segments(this.translation, target);
    this.sourceWords = this.sourceSegments.filter((segment) => !segment.space);
    this.targetWords = this.targetSegments.filter((segment) => !segment.space);
    this.sourceTokens = tokensOf(this.sourceWords, sentence.source_tokens, this.start);
    this.targetTokens = tokensOf(this.targetWords, sentence.tokens, this.translationStart);
    this.forced = [];  // prefixes that the user has chosen, the last one in effect
  }

  // The translation up to a word.
  prefix(word) {
    return [...this.translation].slice(0, word.start).join("");
  }

  // The mean of the cross-attention weights of the selected layers and heads: [n][m] in one array.
  // "mean" selects all of them.
  tokenWeights(layer, head) {
    const { layers, heads, rows, columns, parts } = this.attention;
    this.cross ??= decodeWeights(parts.cross);
    const chosen = (value, count) => (value === "mean" ? [...Array(count).keys()] : [Number(value) - 1]);
    const pairs = chosen(layer, layers).flatMap((l) => chosen(head, heads).map((h) => l * heads + h));
    const mean = new Float32Array(rows * columns);
    for (const pair of pairs) {
      const from = pair * mean.length;
      for (let i = 0; i < mean.length; i++) mean[i] += this.cross[from + i] / pairs.length;
    }
    return mean;
  }

  // The weights of source words for each word of the translation: the sum over the tokens of the
  // source word, and the mean over the tokens of the other word.
  weights(layer, head) {
    if (!this.attention?.parts.cross) return null;
    const key = `${layer} ${head}`;
    if (this.known?.key === key) return this.known.matrix;
    const { columns } = this.attention;
    const tokens = this.tokenWeights(layer, head);
    const sum = (indices, value) => indices.reduce((all, index) => all + value(index), 0);
    const matrix = this.targetTokens.map((rows) => this.sourceTokens.map((own) => (
      sum(rows, (i) => sum(own, (j) => tokens[i * columns + j])) / Math.max(1, rows.length))));
    this.known = { key, matrix };
    return matrix;
  }
}
