"""The cards of the models in the box: what each is, was made of, can do, cannot do, and may be used
for. Figures, commands and examples come from the result; words about them are here."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

from benchmarks.recipes import Recipe
from regard.training.progress import duration

METRICS = {
    "translate": ("bleu", "chrf"),
    "classify": ("accuracy", "matthews", "calibration_error"),
    "fill": ("perplexity", "accuracy"),
    "generate": ("loss", "bits_per_byte"),
    "embed": ("spearman", "pearson", "nearest", "reciprocal_rank"),
}

# What the data is, where it is published, and on which terms.
SETS = {
    "europarl": (
        "Europarl",
        "600,000 sentence pairs of the European Parliament's debates, aligned anew from the "
        "proceedings (not Europarl v7: scores do not compare with those on it)",
        "European Parliament proceedings; the repository that they come from states no licence",
    ),
    "tatoeba": (
        "Tatoeba",
        "162,478 pairs of short everyday sentences; 2,000 more are held out",
        "tatoeba.org by way of manythings.org (2018), CC BY 2.0: the sentences are by the "
        "contributors of [Tatoeba](https://tatoeba.org), the pairs by "
        "[manythings.org](https://www.manythings.org/anki/)",
    ),
    "multi30k": (
        "Multi30k",
        "29,000 captions of photographs with their translations",
        "WMT multimodal task 1; the source states no licence: benchmark use",
    ),
    "imdb": (
        "IMDB reviews",
        "24,500 film reviews without labels; 500 more are held out",
        "the unlabelled part of Stanford's Large Movie Review Dataset, which asks to be cited "
        "(Maas et al. 2011); no licence is stated that we know of; its authors are "
        "users of IMDb",
    ),
    "sst2": (
        "SST-2",
        "67,349 phrases from film reviews, each with a label; each stands there twice, as it is "
        "distributed and about as people write",
        "Stanford Sentiment Treebank (Socher et al. 2013) as GLUE distributes it; no "
        "licence is stated that we know of",
    ),
    "stsb": (
        "STS-B",
        "5,749 pairs of sentences that people scored by how alike they are",
        "STS benchmark (Cer et al. 2017); the scores are CC BY-SA 4.0, the sentences come from "
        "news, captions and forums",
    ),
    "shakespeare": (
        "tiny shakespeare",
        "the megabyte of plays that nanoGPT uses; the first nine tenths",
        "public domain",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Words:
    title: str
    use: str  # a command
    sets: tuple[str, ...]
    what: str
    scores: str  # what has to be said beside the table
    limits: str
    terms: str


UNSTATED = """\
The weights and this card are ours and under the package's licence, Apache-2.0, as far as they are
ours to give. Whether weights are bound by the terms of the texts that they were learned from is not
settled, and not the same everywhere. {which} If that matters to you, as it may where money or
publication is involved, train a model from texts whose terms you know: the same recipe takes any
files."""

CARDS = {
    "translate": Words(
        "English to German",
        'regard translate "How much does this bicycle cost?"',
        ("europarl", "tatoeba", "multi30k"),
        """\
A small Transformer (encoder-decoder) that translates English sentences into German. It is there so
that `regard translate` answers at once on any machine: for everyday sentences, for trying things
out, for learning how such a model works. It is not a translator to rely on.""",
        """\
BLEU and chrF by sacreBLEU, cased and detokenised, beam 4, length penalty 0.6. Sentences of these
test sets, and of the sets that the training was validated on, were taken out of the training data.
The Tatoeba test set is our own: no sentence of it, on either side, stands in the training data nor
in the development set. newstest2013 and 2014 are news, of which it saw none.""",
        """\
- It learned from parliament, from everyday sentences and from captions. News, technology, law,
  medicine, poetry and slang are foreign to it, and rare words and names come out wrong.
- It is often fluent and wrong. Nothing in the output says so.
- It does not know the sentence before: pronouns, politeness (du, Sie) and the gender of people are
  guesses, and these guesses repeat what was usual in the training data.
- Capitals, links, addresses, emoji and long numbers come out garbled; of several sentences in one
  line one may be lost: give it one sentence a line.
- Sentences of more than 128 tokens are translated in pieces. Text that is not English is not
  recognised as such.
- Do not use it where a mistake can hurt anybody.""",
        UNSTATED.format(
            which="Two of the three sets state no licence: nobody has forbidden, and nobody has "
            "expressly allowed, what you may want to do. The third, Tatoeba, asks to be named."
        ),
    ),
    "classify": Words(
        "is it kind?",
        'regard classify "A wonderful, moving film."',
        ("imdb", "sst2"),
        """\
A small Transformer encoder that says whether a sentence about a film is `positive` or `negative`,
and how sure it is. It began as the masked language model in the box (`box:fill`).""",
        """\
Test: the 1,821 sentences of SST-2 that are distributed with labels, in the lower-case, tokenised
form they have there. The dev set (872) chose the weights and the temperature of the probabilities,
so that its own row is a little flattered.""",
        """\
- Two answers are all it has: a sentence without any opinion gets one of them, too.
- It learned from film reviews. Of food, work or politics it judges by words that films share.
- Irony, comparisons and negation over a distance deceive it.
- It reads the first 128 tokens.
- What people feel is more than a sign in front of a number: do not judge people by it.""",
        UNSTATED.format(
            which="Neither set states a licence: nobody has forbidden, and nobody has expressly "
            "allowed, what you may want to do."
        ),
    ),
    "fill": Words(
        "a word that is missing",
        'regard fill "The acting was <mask>."',
        ("imdb",),
        """\
A small Transformer encoder that guesses hidden words (a masked language model, as BERT is). It
learned from film reviews. The classifier in the box began as this model.""",
        """\
Perplexity and accuracy of the 15% of the tokens that are hidden (whole words), in 500 held-out
reviews, which are read in windows of 128 tokens. These also chose the weights, among few.""",
        """\
- It knows how people write about films, and little else: facts that it fills in are not facts.
- It repeats what is usual in reviews, what is unjust about people included.
- A `<mask>` is one token: long and rare words cannot be guessed.""",
        UNSTATED.format(
            which="The set states no licence: nobody has forbidden, and nobody has expressly "
            "allowed, what you may want to do."
        ),
    ),
    "generate": Words(
        "a play that goes on",
        'regard generate "ROMEO:"',
        ("shakespeare",),
        """\
A small Transformer decoder that writes on, character by character, in the manner of Shakespeare's
plays. It is a toy, and a good one to learn with.""",
        """\
Loss in nats for each character of the last tenth of the text, in windows of 256. The best of some
validations on this same text was kept, as nanoGPT does: a figure to compare by, not one of an
untouched test set.""",
        """\
- It spells, it has the form of a play, and it makes no sense for longer than a line.
- It knows 65 characters, those of the text it learned from; others are unknown to it.
- It sees the last 256 characters.""",
        """\
The text is in the public domain. The weights and this card are ours, and under the package's
licence, Apache-2.0.""",
    ),
    "embed": Words(
        "how alike are two sentences?",
        'regard search --documents FILE "someone plays an instrument"',
        ("tatoeba", "multi30k", "europarl", "stsb"),
        """\
A small Transformer encoder that makes a vector of an English or German sentence, such that
sentences that mean the same are near each other, in whichever of the two languages they are;
`regard search` uses it. It learned from translations first (`recipes/box-pairs.yaml`: all of the
first two sets below, 250,000 pairs of the third that have at most 40 English words, and English
sentences that share a German one), then from English pairs that people scored.""",
        """\
dev, test (STS-B): correlation of the cosines of two vectors with people's scores of how alike two
English sentences are. The dev set chose the weights, so that its own row is a little flattered. No
sentence of dev or test stands in the translations; a tenth of them stand in STS-B's own training
pairs, as it is published. multi30k, newstest2014: how often an English sentence's translation is
the nearest of all the German sentences of the set, and the mean of one by its rank; captions are of
the kind whose translations it learned from; of news it saw none but English headlines of STS-B. No
sentence of these two sets stands in the translations.""",
        """\
- It notices shared words first: a negation, or who did it to whom, changes little.
- Only the order counts: sentences that have nothing in common may have a cosine of 0.65, as above.
  Single words and fragments are matched badly.
- It was taught with single sentences; of a longer text it reads the first 128 tokens.
- It knows English and German, and little of any special field. What it knows of likeness in German
  it has from translations alone.""",
        UNSTATED.format(
            which="Tatoeba asks to be named, the other two sets of translations and the scored "
            "sentences state no licence; the scores are CC BY-SA 4.0, which asks to name the "
            "source and to share alike what is adapted from them."
        ),
    ),
}  # fmt: skip


def card(recipe: Recipe, result: dict[str, Any]) -> str:
    """The README.md of a model in the box."""
    words, small = CARDS[recipe.box], result["packed"]
    names = " ".join(filter(None, (recipe.start, recipe.name)))  # what it began as is made first
    data = [f"| {name} | {what} | {terms} |" for name, what, terms in map(SETS.get, words.sets)]  # type: ignore[misc]
    return "\n".join([
        f"# `{small['name']}`: {words.title}", "", words.what, "",
        "```", words.use, "```", "",
        f"{small['parameters'] / 1e6:.1f} million parameters in {small['bytes'] / 1e6:.1f} MB: "
        "every matrix as whole numbers of 8 bits with a scale for each row (`regard pack`); the "
        f"weights as they were trained took {small['bytes_before'] / 1e6:.1f} MB.", "",
        "## How it was made", "",
        f"{trained(result)}; final weights: {result['weights']}. Every setting is in config.yaml, "
        "every figure of the (last) training in metrics.jsonl. One command prepares the data, "
        "trains, scores, packs and writes this card; `$REGARD_DATA` is the folder of the data "
        "sets:", "",
        "```", f"python -m benchmarks results run {names} --data $REGARD_DATA", "```", "",
        "It trains by:", "",
        "```", *(one["train"] for one in (result.get("start"), result) if one), "```", "",
        "| data | what | source and terms |", "|---|---|---|", *data, "",
        *left_out(result), "## Scores", "", words.scores, "",
        table(recipe.box, result), "", *signatures(result),
        f"By these commands; the columns \"full\" with `-m runs/{recipe.name}`:", "",
        "```", *small["evaluate"].values(), "```", "",
        "## What it says", "",
        "The questions were not chosen by their answers, which are the packed "
        "model's.", "", *examples(recipe.box, small["examples"]),
        "## What it cannot do", "", words.limits, "",
        "## Licence", "", textwrap.fill(words.terms, 100), "",
    ])  # fmt: skip


def trained(result: dict[str, Any]) -> str:
    """How long and where; before that, what it began as."""
    told = f"{result['steps']:,} steps in {duration(result['time'])} on {result['machine']}"
    start = result.get("start")
    return f"{trained(start)} (`{start['name']}`), then {told}" if start else told


def left_out(result: dict[str, Any]) -> list[str]:
    told = [
        f"{SETS[name][0]} {one['pairs']:,} pairs (less {one['left_out']:,} that share a sentence "
        f"with a test or development set), each {one['times']} time{'s' * (one['times'] != 1)}"
        for name, one in result.get("data", {}).items()
        if isinstance(one, dict)
    ]
    if not told:
        return []
    return [f"In the training data: {'; '.join(told)}: {result['data']['lines']:,} lines.", ""]


def table(verb: str, result: dict[str, Any]) -> str:
    """Full beside packed: a table for each kind of test."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for name, full in result["tests"].items():
        small = result["packed"]["tests"][name]
        metrics = tuple(metric for metric in METRICS[verb] if metric in full)
        cells = [f"{scores[m]:.4g}" for m in metrics for scores in (full, small)]
        row = f"| {name} ({full['examples']:,}) | " + " | ".join(cells) + " |"
        kinds.setdefault(metrics, []).append(row)
    parts = []
    for metrics, rows in kinds.items():
        heads = [f"{m.replace('_', ' ')}, {kind}" for m in metrics for kind in ("full", "packed")]
        line = "|---" * (len(heads) + 1) + "|"
        parts.append("\n".join(["| set | " + " | ".join(heads) + " |", line, *rows]))
    return "\n\n".join(parts)


def signatures(result: dict[str, Any]) -> list[str]:
    one = next(iter(result["tests"].values()))
    found = [f"`{one[key]}`" for key in ("bleu_signature", "chrf_signature") if key in one]
    return [f"Signatures: {', '.join(found)}.", ""] if found else []


def examples(verb: str, found: dict[str, list[list[str]]]) -> list[str]:
    """As the packed model said it; the same every time."""
    lines = []
    for kind, some in found.items():
        lines += [f"{kind}:", ""]
        if verb == "generate":
            for asked, said in some:
                lines += ["```", asked + said if not said.startswith(asked) else said, "```", ""]
            continue
        lines += ["| asked | said |", "|---|---|"]
        # A <mask> would be taken for HTML, a | for the table's.
        signs = {ord("<"): "&lt;", ord("|"): "&#124;"}
        lines += [f"| {asked.translate(signs)} | {said.translate(signs)} |" for asked, said in some]
        lines += [""]
    return lines
