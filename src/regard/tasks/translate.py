"""The task translate: a model reads a text and generates its translation.

An example is a pair of token sequences, each followed by <eos>; sequences.py describes how a model
of each style reads it. Models learn from single sentences, so a text of several sentences or lines
is split (text/sentences.py), its sentences are translated as one batch, and their translations are
joined with the original separators. Evaluation does not split: its lines are aligned.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.config.sections import Config, DecodingConfig
from regard.errors import InputError
from regard.tasks.bleu import bleu, bootstrap_bleu
from regard.tasks.common import (
    check_stream,
    exclude,
    fields_of,
    in_pieces,
    n_best,
    one_line,
    rounded,
)
from regard.tasks.examples import Say
from regard.tasks.joining import join_pieces, join_sentences, paragraph, split_pieces
from regard.tasks.lazy import runtime
from regard.tasks.sequences import Sequences
from regard.tasks.task import Context, Evaluation, Option
from regard.text.corpus import PAIRS, CorpusReport, Pair, read_pairs
from regard.text.reading import Position
from regard.text.sentences import needs_space, split_sentences
from regard.text.tables import table_format

if TYPE_CHECKING:
    from regard.tasks.runtime import (
        Comparison,
        DecodingPlan,
        Details,
        Prediction,
        Request,
        Store,
        Transformer,
    )
    from regard.text.sentences import SplitText

LONGEST_SAMPLE = 80  # characters of a text in the samples of a validation
DETAILS = ("alternatives", "history", "attention")  # options that need --json


def sample_text(text: str) -> str:
    """A text for the samples of a validation, without line breaks and at most 80 characters."""
    text = one_line(text)
    return text if len(text) <= LONGEST_SAMPLE else f"{text[: LONGEST_SAMPLE - 1]}…"


class Translate(Sequences):
    """Translation of texts, sentence by sentence."""

    name = "translate"
    help = "Translate texts, or each line of standard input."
    doing = "translating"
    files = "SOURCE TARGET"
    better = "bleu"
    has_metrics = True
    config_options = ("data.bleu", "data.bpe_dropout", "data.max_ratio")
    two_vocabularies = True
    row_format = PAIRS
    options = (
        Option(
            "split", "translate each line as one sentence (default: translate its sentences one by "
            "one)", default=True,
        ),
        Option("prefix", "text with which each translation must begin", str, "", "TEXT"),
        Option("stream", "print words as soon as they are decoded", argument=False),
        Option(
            "score", "print the log-probability of each translation; texts are "
            "SOURCE<tab>TRANSLATION and are not split",
        ),
        Option(
            "alternatives", "with --json: the N most probable tokens at each position",
            int, 0, most=1000,
        ),
        Option("history", "with --json: the hypotheses kept and pruned at each step of the search"),
        Option("attention", "with --json: the attention weights of all heads and layers"),
    )  # fmt: skip

    @classmethod
    def check_files(cls, files: Sequence[Path]) -> None:
        tables = [file for file in files if table_format(file) is not None]
        if len(files) == 1 and tables:
            return
        if len(files) != 2:
            raise InputError(
                "translate takes two files: source, then target; or one file with both (.tsv, "
                ".csv, .jsonl, .json, .parquet)"
            )
        if tables:
            raise InputError(
                f"{tables[0]} is a table: translate takes two text files (source, then target) or "
                "one table with both"
            )

    @classmethod
    def read_all(
        cls,
        files: Sequence[Path],
        config: Config,
        say: Say | None = None,
        position: Position | None = None,
    ) -> Iterator[Pair]:
        if len(files) == 1:
            return PAIRS.read(files[0], position, config.data.columns)
        if config.data.columns:
            raise InputError(
                f"{files[0]}: a text file has no columns; leave out data.columns, or use one table "
                "with source and target"
            )
        return read_pairs(files[0], files[1], position)

    @classmethod
    def texts(cls, example: Pair) -> Iterable[str]:
        return example[1:]

    @classmethod
    def place(cls, example: Pair, files: Sequence[Path]) -> str:
        return f"{files[0]}:{example.line}"

    def build(
        self, files: Sequence[Path], folder: Path, config: Config, quiet: bool
    ) -> tuple[Store, CorpusReport]:
        data = config.data

        def pairs(position: Position) -> Iterator[Pair]:
            return self.read(files, config, position=position)

        return runtime.build_pairs(
            self.data_files(files, config), (self.source, self.target), folder, data.max_length,
            data.max_ratio, quiet, pairs, self.reading_identity(files, config),
        )  # fmt: skip

    def evaluate(self, model: Transformer, examples: Sequence[Any], config: Config) -> Evaluation:
        sources = [source for _, source, _ in examples]
        references = [target for _, _, target in examples]
        predictions = self.translate(model, sources, config.decoding, config.data.max_length)
        runtime.release_graphs(model)  # training may continue and needs the memory
        texts = [prediction.text for prediction in predictions]
        samples = [
            "{} -> {}  (expected: {})".format(*map(sample_text, (source, text, target)))
            for source, text, target in zip(sources, texts, references, strict=True)
        ]
        scores = bleu(texts, references, config.data.bleu)
        added = runtime.registered_metrics(self.name, texts, references)
        return Evaluation(
            scores | runtime.scores_of(added, len(examples)), count=len(examples), samples=samples,
            answers=texts, references=references, pieces=in_pieces(predictions),
        )  # fmt: skip

    def confidence(
        self, ours: Evaluation, theirs: Evaluation | None, samples: int, config: Config
    ) -> tuple[dict[str, tuple[float, float]], dict[str, Comparison]]:
        return bootstrap_bleu(
            ours.answers, ours.references, None if theirs is None else theirs.answers,
            samples, config.data.bleu,
        )  # fmt: skip

    def requests(
        self, texts: Sequence[str], longest: int = sys.maxsize, prefix: str = ""
    ) -> list[list[Request]]:
        """Create the decoding requests for each text: one, none for an empty text, or several for a
        text of more than `longest` tokens. The first translation begins with the prefix."""
        prefix_ids, room = self.target.encode(prefix), longest - self.added
        groups = []
        for text, ids in zip(texts, self.source.encode_batch(list(texts)), strict=True):
            pieces = [ids] if text.strip() else []
            if len(ids) > room:
                parts = split_pieces(text, lambda part: len(self.source.encode(part)), room)
                pieces = self.source.encode_batch(parts)
            groups.append([
                self.request_of(piece, prefix=() if i else prefix_ids)
                for i, piece in enumerate(pieces)
            ])  # fmt: skip
        return groups

    def sentence_requests(
        self, texts: Sequence[str], longest: int, prefix: str, split: bool
    ) -> tuple[list[SplitText | None], list[list[list[Request]]]]:
        """Split texts into sentences (`paragraph`), and create the requests for each sentence.
        Only the first translation of a text begins with the prefix."""
        splits = [paragraph(text) if split else None for text in texts]
        sentences = [
            [text] if part is None else part.sentences
            for text, part in zip(texts, splits, strict=True)
        ]
        first = iter(self.requests([every[0] for every in sentences], longest, prefix))
        more = iter(self.requests([text for every in sentences for text in every[1:]], longest))
        groups = [[next(first), *(next(more) for _ in every[1:])] for every in sentences]
        return splits, groups

    def translate(
        self,
        model: Transformer,
        texts: Sequence[str],
        options: DecodingConfig,
        longest: int,
        prefix: str = "",
        details: Details | None = None,
        split: bool = False,
    ) -> list[Prediction]:
        """Translate each text; see `plan_translations`."""
        plan = self.plan_translations(texts, options, longest, prefix, details, split)
        return plan.run(model)

    def plan_translations(
        self,
        texts: Sequence[str],
        options: DecodingConfig,
        longest: int,
        prefix: str = "",
        details: Details | None = None,
        split: bool = False,
        check: Callable[[list[Prediction]], list[Prediction]] = list,
    ) -> DecodingPlan:
        """Plan to translate each text; the translation of an empty text is empty.

        With `split`, the sentences of a text are translated one by one (`Prediction.sentences`). A
        sentence, or a text that is not split, of more than `longest` tokens is translated in pieces
        (`Prediction.pieces`). `check` is applied to the translations.
        """
        splits, groups = self.sentence_requests(texts, longest, prefix, split)

        def finish(decoded: list[list[Prediction]]) -> list[Prediction]:
            each = iter(decoded)
            return check([
                join_sentences(part, [join_pieces(next(each)) for _ in sentences])
                for part, sentences in zip(splits, groups, strict=True)
            ])  # fmt: skip

        flat = [requests for sentences in groups for requests in sentences]
        return self.plan_groups(flat, options, finish, details)

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
        split: bool = True,
    ) -> list[Prediction]:
        """Translate texts, or score translations.

        Args:
            model: the model.
            inputs: texts, or (source, translation) pairs with `score`.
            context: options of the search, and the longest input.
            prefix: text with which each translation must begin.
            score: compute the log-probabilities of the translations in `inputs`.
            alternatives: number of most probable tokens to return for each position.
            history: return the hypotheses at each step of the search.
            attention: return the attention weights of all heads.
            split: translate the sentences of a text one by one; a pair is never split.

        Returns:
            For each input a prediction with tokens, log-probabilities, score and n-best list. A
            text of several sentences has the other details in `Prediction.sentences`.
        """
        if score:
            limit = model.config.max_length if model.config.positions == "learned" else None
            scored = self.score(model, inputs, context.decoding, limit)
            for i, prediction in enumerate(scored):
                if max(len(prediction.source_ids), len(prediction.token_ids)) > context.longest:
                    context.warn_long(i)
            return scored
        plan = self.plan(inputs, context, prefix, alternatives, history, attention, split)
        return plan.run(model)

    def plan(
        self,
        inputs: Sequence[str],
        context: Context,
        prefix: str = "",
        alternatives: int = 0,
        history: bool = False,
        attention: bool = False,
        split: bool = True,
    ) -> DecodingPlan:
        details = runtime.Details(history, alternatives, attention)
        check = partial(self.checked, context=context)
        return self.plan_translations(
            inputs, context.decoding, context.longest, prefix, details, split, check
        )

    @staticmethod
    def split_note(count: int) -> str:
        return f"translated in {count} pieces"

    def stream_text(
        self,
        model: Transformer,
        text: str,
        context: Context,
        prefix: str = "",
        split: bool = True,
    ) -> Iterator[str]:
        [part], [groups] = self.sentence_requests([text], context.longest, prefix, split)
        if any(len(requests) > 1 for requests in groups):
            context.warn_long(0, self.split_note(sum(map(len, groups))))
        if part is None:
            return self.stream(model, groups[0], context.decoding)
        return self.stream_sentences(model, part, groups, context.decoding)

    def stream_sentences(
        self,
        model: Transformer,
        split: SplitText,
        groups: Sequence[Sequence[Request]],
        options: DecodingConfig,
    ) -> Iterator[str]:
        """Yield the translation of a text sentence by sentence, with the separators of the text.
        All parts together equal the result of `SplitText.join`."""
        if split.separators[0]:
            yield split.separators[0]
        for i, requests in enumerate(groups):
            translation = ""
            for part in self.stream(model, requests, options):
                translation += part
                yield part
            separator, last = split.separators[i + 1], i == len(groups) - 1
            if not last and needs_space(translation, separator):
                separator = " "
            if separator:
                yield separator

    @classmethod
    def check_options(cls, options: Namespace) -> None:
        options.texts = [text.removesuffix("\n") for text in options.texts]
        for name in DETAILS:
            if getattr(options, name) and not options.json:
                raise InputError(f"--{name} needs --json")
        exclude(options, "stream", "json", "score")
        check_stream(options)
        for name in ("prefix", *DETAILS, *options.decoding):
            if options.score and (name in options.decoding or getattr(options, name)):
                raise InputError(f"--score and --{name.replace('_', '-')} cannot be combined")

    @classmethod
    def block_size(cls, options: Namespace) -> int | None:
        """Smaller blocks with details, which need much memory."""
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
        result = prediction or runtime.Prediction([], [], 0.0, "empty")
        if options.score:
            source, _, target = text.partition("\t")
            return {"text": source, "translation": target} | self.details(result)
        names = {name for name in DETAILS if getattr(options, name)}
        names |= {"n_best"} if options.n_best > 1 else set()
        fields = {"text": text, "translation": result.text} | self.details(result, names)
        if result.sentences:
            sentences = zip(split_sentences(text).sentences, result.sentences, strict=True)
            fields["sentences"] = [
                {"text": sentence, "translation": part.text} | self.details(part, names)
                for sentence, part in sentences
            ]
        return fields

    def details(self, prediction: Prediction, names: Collection[str] = ()) -> dict[str, Any]:
        """Return the fields of a translation for JSON; names may contain n_best,
        alternatives, history and attention."""
        spell = self.target.tokens
        fields = fields_of(prediction, self.target)
        if "n_best" in names:
            fields |= n_best(prediction, self.target, "translation")
        if prediction.sentences:
            return fields
        if prediction.pieces:
            fields["pieces"] = [
                {"text": self.source.decode(piece.source_ids), "translation": piece.text}
                | self.details(piece, names)
                for piece in prediction.pieces
            ]
            return fields
        if "alternatives" in names:
            fields["alternatives"] = [
                [{"token": spell([token])[0], "logprob": value} for token, value in tokens]
                for tokens in prediction.alternatives
            ]
        if "history" in names:
            fields["history"] = [
                [vars(candidate) | {"token": spell([candidate.token])[0]} for candidate in step]
                for step in prediction.history
            ]
        if "attention" in names:
            # Row i has the attention weights of the position that reads token i of read_tokens:
            # <bos> and the output so far or, in a decoder without an encoder, source and output.
            fields["source_tokens"] = self.source.tokens(prediction.source_ids)
            begin = list(prediction.source_ids) if self.style == "decoder" else [self.target.bos]
            fields["read_tokens"] = spell([*begin, *prediction.token_ids])[:-1]
            fields["attention"] = {
                part: [[rounded(head) for head in layer.float().tolist()] for layer in layers]
                for part, layers in prediction.attention.items()
            }
        return fields
