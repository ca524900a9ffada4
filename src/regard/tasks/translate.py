"""translate: a sentence in, a sentence out.

An example is a pair of token sequences, both closed by <eos>; sequences.py describes how a model of
each style reads it.
"""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.config.sections import Config, DecodingConfig
from regard.errors import InputError
from regard.tasks.common import exclude, fields_of, in_pieces, n_best, rounded
from regard.tasks.lazy import runtime
from regard.tasks.sequences import Sequences, input_ids
from regard.tasks.task import Context, Evaluation, Option, Say
from regard.text.corpus import PAIRS, CorpusReport, Pair, read_pairs

if TYPE_CHECKING:
    from regard.tasks.runtime import Comparison, Details, Prediction, Request, Store, Transformer

DETAILS = ("alternatives", "history", "attention")  # options that only JSON can show


class Translate(Sequences):
    name = "translate"
    help = "Translate texts, or the lines of standard input, one for one."
    doing = "translating"
    files = "SOURCE TARGET"
    better = "bleu"
    config_options = ("data.bleu", "data.bpe_dropout", "data.max_ratio")
    two_vocabularies = True
    row_format = PAIRS
    options = (
        Option("prefix", "how every translation begins", str, "", "TEXT"),
        Option("stream", "show the words as they come", argument=False),
        Option("score", "texts are SOURCE<tab>TRANSLATION: print how probable each translation is"),
        Option(
            "alternatives", "with --json: the N most probable tokens at each position", int, 0,
            most=1000,
        ),
        Option("history", "with --json: all that the search kept and pruned"),
        Option("attention", "with --json: where every head of every layer looks"),
    )  # fmt: skip

    @classmethod
    def check_files(cls, files: Sequence[Path]) -> None:
        if len(files) != 2:
            raise InputError("translate takes two files: source, then target")

    @classmethod
    def read(cls, files: Sequence[Path], config: Config, say: Say | None = None) -> Iterator[Pair]:
        return read_pairs(files[0], files[1])

    @classmethod
    def texts(cls, example: Pair) -> Iterable[str]:
        return example[1:]

    @classmethod
    def place(cls, example: Pair, files: Sequence[Path]) -> str:
        return f"{files[0]}:{example.line}"

    def build(
        self, files: Sequence[Path], folder: Path, config: Config, quiet: bool
    ) -> tuple[Store, CorpusReport]:
        sides, data = (self.source, self.target), config.data
        both = (files[0], files[1])
        return runtime.build_pairs(both, sides, folder, data.max_length, data.max_ratio, quiet)

    def evaluate(self, model: Transformer, examples: Sequence[Any], config: Config) -> Evaluation:
        sources = [source for _, source, _ in examples]
        references = [target for _, _, target in examples]
        answers = self.translate(model, sources, config.decoding, config.data.max_length)
        runtime.release_graphs(model)  # training may continue and needs the memory
        texts = [answer.text for answer in answers]
        samples = [
            f"{source} -> {text}  (expected: {target})"
            for source, text, target in zip(sources, texts, references, strict=True)
        ]
        return Evaluation(
            bleu(texts, references, config.data.bleu), count=len(examples), samples=samples,
            answers=texts, references=references, pieces=in_pieces(answers),
        )  # fmt: skip

    def confidence(
        self, ours: Evaluation, theirs: Evaluation | None, samples: int, config: Config
    ) -> tuple[dict[str, tuple[float, float]], dict[str, Comparison]]:
        """sacreBLEU's bootstrap, and its paired bootstrap against the other model."""
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
        from sacrebleu.significance import PairedTest, Result

        systems: list[tuple[str, Sequence[str]]] = [("ours", ours.answers)]
        if theirs is not None:
            systems.insert(0, ("theirs", theirs.answers))
        metrics = {"BLEU": BLEU(tokenize=config.data.bleu), "chrF2": CHRF()}
        _, results = PairedTest(systems, metrics, [ours.references], "bs", samples)()
        intervals, comparisons = {}, {}
        for name, column in (("bleu", "BLEU"), ("chrf", "chrF2")):
            own, base = results[column][-1], results[column][0]
            assert isinstance(own, Result)
            assert isinstance(base, Result)
            if own.mean is not None and own.ci is not None:
                middle, half = float(own.mean), float(own.ci)
                intervals[name] = max(0.0, middle - half), min(100.0, middle + half)
            if theirs is not None and own.p_value is not None:
                difference = own.score - base.score
                # sacreBLEU counts larger differences: there is none if the difference is 0.
                p = float(own.p_value) if difference else 1.0
                comparisons[name] = runtime.Comparison(difference, None, None, p)
        return intervals, comparisons

    def requests(
        self, texts: Sequence[str], longest: int = sys.maxsize, prefix: str = ""
    ) -> list[list[Request]]:
        """The requests to the search for each text: one, none for an empty text, several for a
        text of more than `longest` tokens. The first translation begins with the prefix."""
        given = self.target.encode(prefix)
        groups = []
        for text, ids in zip(texts, self.source.encode_batch(list(texts)), strict=True):
            pieces = [ids] if text.strip() else []
            if len(ids) >= longest:
                parts = split(text, lambda part: len(self.source.encode(part)), longest - 1)
                pieces = self.source.encode_batch(parts)
            groups.append([
                runtime.Request(input_ids(self.style, piece), () if i else given)
                for i, piece in enumerate(pieces)
            ])  # fmt: skip
        return groups

    def translate(
        self,
        model: Transformer,
        texts: Sequence[str],
        options: DecodingConfig,
        longest: int,
        prefix: str = "",
        details: Details | None = None,
    ) -> list[Prediction]:
        """A translation for each text, empty for an empty text. A text of more than `longest`
        tokens is translated in pieces (`Prediction.pieces`)."""
        groups = self.requests(texts, longest, prefix)
        return [join(group) for group in self.decode(model, groups, options, details)]

    def predict(
        self,
        model: Transformer,
        inputs: Sequence[Any],
        context: Context,
        prefix: str = "",
        score: bool = False,
        alternatives: int = 0,
        history: bool = False,
        attention: bool = False,
    ) -> list[Prediction]:
        """Translations with tokens, log-probabilities, score and n-best list, on request with the
        best `alternatives` to each token, the `history` of the search and the `attention` of all
        heads. score: inputs are (source, translation) pairs, and the translations are scored."""
        if score:
            limit = model.config.max_length if model.config.positions == "learned" else None
            scored = self.score(model, inputs, context.decoding.length_penalty, limit)
            for i, answer in enumerate(scored):
                if max(len(answer.source), len(answer.tokens)) > context.longest:
                    context.warn_long(i)
            return scored
        details = runtime.Details(history, alternatives, attention)
        answers = self.translate(model, inputs, context.decoding, context.longest, prefix, details)
        return self.checked(answers, context)

    @staticmethod
    def split_note(count: int) -> str:
        return f"translated in {count} pieces"

    def stream_text(
        self, model: Transformer, text: str, context: Context, prefix: str = ""
    ) -> Iterator[str]:
        requests = self.requests([text], context.longest, prefix)[0]
        if len(requests) > 1:
            context.warn_long(0, self.split_note(len(requests)))
        return self.stream(model, requests, context.decoding)

    @classmethod
    def check_options(cls, options: Namespace) -> None:
        # The model reads single lines, so a text of several lines is treated as several texts.
        lines = (text.removesuffix("\n").split("\n") for text in options.texts)
        options.texts = [line for some in lines for line in some]
        for name in DETAILS:
            if getattr(options, name) and not options.json:
                raise InputError(f"--{name} needs --json")
        exclude(options, "stream", "json", "score")
        for name in ("prefix", *DETAILS, *options.decoding):
            if options.score and (name in options.decoding or getattr(options, name)):
                raise InputError(f"--score and --{name.replace('_', '-')} cannot be combined")

    @classmethod
    def block_size(cls, options: Namespace) -> int | None:
        """Details of a line are many numbers: fewer lines at once."""
        return 64 if any(getattr(options, name) for name in DETAILS) else None

    def parse(self, text: str, options: Namespace, longest: int, where: str) -> Any:
        if not options.score:
            return text
        if text.strip() and "\t" not in text:
            raise InputError(f"{where}: --score needs SOURCE<tab>TRANSLATION, but there is no tab")
        return text.partition("\t")[::2] if text.strip() else None

    def line(self, text: str, prediction: Prediction | None, options: Namespace) -> str:
        if options.score and prediction is not None:
            return f"{prediction.logprob:.6f}"
        return super().line(text, prediction, options)

    def to_json(
        self, text: str, prediction: Prediction | None, options: Namespace
    ) -> dict[str, Any]:
        answer = prediction or runtime.Prediction([], [], 0.0, "empty")
        if options.score:
            source, _, target = text.partition("\t")
            return {"text": source, "translation": target} | self.details(answer)
        names = {name for name in DETAILS if getattr(options, name)}
        names |= {"n_best"} if options.n_best > 1 else set()
        return {"text": text, "translation": answer.text} | self.details(answer, names)

    def details(self, answer: Prediction, names: Collection[str] = ()) -> dict[str, Any]:
        """The fields of a translation in JSON; names: n_best, alternatives, history, attention."""
        spell = self.target.tokens
        fields = fields_of(answer, self.target)
        if answer.pieces:
            fields["pieces"] = [
                {"text": self.source.decode(piece.source), "translation": piece.text}
                | self.details(piece, names)
                for piece in answer.pieces
            ]
            return fields
        if "n_best" in names:
            fields |= n_best(answer, self.target, "translation")
        if "alternatives" in names:
            fields["alternatives"] = [
                [{"token": spell([token])[0], "logprob": value} for token, value in place]
                for place in answer.alternatives
            ]
        if "history" in names:
            fields["history"] = [
                [vars(one) | {"token": spell([one.token])[0]} for one in step]
                for step in answer.history
            ]
        if "attention" in names:
            # Row i of a head is where it looked after it had read token i of read_tokens: <bos> and
            # the output so far or, in a decoder without an encoder, the source and the output.
            fields["source_tokens"] = self.source.tokens(answer.source)
            begin = list(answer.source) if self.style == "decoder" else [self.target.bos]
            fields["read_tokens"] = spell([*begin, *answer.tokens])[:-1]
            fields["attention"] = {
                part: [[rounded(head) for head in layer.float().tolist()] for layer in layers]
                for part, layers in answer.attention.items()
            }
        return fields


ENDS = (r"(?<=[.!?…。！？])\s+", r"\s+")  # where to cut: between sentences, between words


def split(
    text: str, count: Callable[[str], int], most: int, ends: tuple[str, ...] = ENDS
) -> list[str]:
    """Cut a text into pieces of at most `most` tokens: between sentences if that is enough, else
    between words, else anywhere."""
    if count(text) <= most:
        return [text]
    pieces: list[str] = []
    if not ends:
        start, least = 0, max(1, most // 4)  # a character has at most four tokens
        while start < len(text):
            size = most
            while size > least and count(text[start : start + size]) > most:
                size = max(least, size * 3 // 4)
            pieces.append(text[start : start + size])
            start += size
        return pieces
    held, tokens = "", 0
    for part in re.split(ends[0], text):
        size = count(" " + part)
        if held and tokens + size <= most:
            held, tokens = f"{held} {part}", tokens + size
            continue
        if held:
            pieces.append(held)
        held, tokens = "", 0
        size = count(part)  # without a space before it, the count may differ
        if size > most:
            pieces += split(part, count, most, ends[1:])
        else:
            held, tokens = part, size
    return [*pieces, held] if held else pieces


def join(answers: list[Prediction]) -> Prediction:
    """The translation of a text from the translations of its pieces."""
    if len(answers) == 1:
        return answers[0]
    whole = together(answers)
    ranks = max((len(answer.others) for answer in answers), default=0)
    for i in range(ranks):  # the next best of each piece, or its last one if it has fewer
        every = [(answer, *answer.others) for answer in answers]
        whole.others.append(together([one[min(i + 1, len(one) - 1)] for one in every]))
    whole.pieces = answers
    return whole


def together(answers: list[Prediction]) -> Prediction:
    return runtime.Prediction(
        [token for answer in answers for token in answer.tokens],
        [logprob for answer in answers for logprob in answer.logprobs],
        sum(answer.score for answer in answers),
        max((answer.stopped for answer in answers), key=runtime.STOPS.index, default="empty"),
        " ".join(answer.text for answer in answers),
    )


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], words: str = "13a"
) -> dict[str, Any]:
    """sacreBLEU and chrF, cased and detokenised, with their signatures. words: sacreBLEU's
    tokenizer (data.bleu)."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    scores: dict[str, Any] = {}
    for name, metric in (("bleu", BLEU(tokenize=words)), ("chrf", CHRF())):
        score = metric.corpus_score(list(hypotheses), [list(references)])
        scores[name] = round(score.score, 2)
        scores[f"{name}_signature"] = str(metric.get_signature())
    return scores
