"""Verify a conversion: regard and another runtime run the same model on the same texts.

Three things are compared: the token ids of the texts, the outputs of the network (logits, or one
vector for each text), and the tokens of greedy decoding. The result is a `Receipt`, which becomes
`conversion.json` and a paragraph of the model card.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.config.sections import DecodingConfig
from regard.decoding.requests import Request
from regard.decoding.search import decode
from regard.errors import ConversionFailed, InputError
from regard.interop.engines import EngineFailed, NotCompared, third_party
from regard.interop.model import Oracle
from regard.predictor.model import Model
from regard.tasks.embed import Embed
from regard.tasks.sequences import Sequences, input_ids
from regard.text.batching import Packed
from regard.text.builtin import SIZES, builtin_corpus

RECEIPT = "conversion.json"
AGREEMENT = 0.99  # of greedy tokens; rounding can decide near ties differently
ROWS = 8  # texts for which both runtimes compute outputs at once
LONGEST_ROW = 128  # tokens of a text for which outputs are compared
TEXTS = 200  # whose token ids are compared by default
OUTPUTS, DECODED = 24, 8  # texts whose outputs, and whose greedy tokens, are compared by default
STEPS = 32  # tokens of greedy decoding
LONGEST_TEXT = 60  # characters of a text in a message
# Texts that are difficult for a tokenizer.
DIFFICULT = (
    "It's 3.14, isn't it? (No!)  Two  spaces, 1,000,000 items; e-mail: a.b@example.org",
    "Größe, naïve café, Ångström, Straße — «quotes», “curly” and 'single'…",
    "def f(x):\n\treturn x ** 2  # comment",
    "日本語のテキスト, русский текст, ελληνικά, العربية",
    "emoji: 🙂👩‍👩‍👧 and symbols ½ ² €",
    "UPPER lower MiXeD CamelCase snake_case kebab-case",
    "<s> </s> <unk> [CLS] [SEP] <|endoftext|> <|im_start|> are text",
    " leading and trailing spaces ",
    "a",
)


@dataclass
class Receipt:
    """What was compared, and the result.

    Attributes:
        conversion: what was converted, for example "Import from Hugging Face (bert)".
        engines: the version of each runtime.
        texts: the number of texts.
        same_tokenization: the fraction of texts with the same token ids in both runtimes.
        same_target_tokenization: the same for the target vocabulary, if the model has two.
        different_text: the beginning of the first text with different token ids.
        compared_outputs: the number of outputs (logits, or features of vectors).
        largest_difference: the largest absolute difference between two outputs.
        mean_difference: the mean of the absolute differences.
        tolerance: the largest difference that is accepted.
        greedy_tokens: the number of tokens that the other runtime decoded, with end tokens.
        same_greedy_tokens: the fraction of them that regard decoded too, up to the first difference
            in each text.
        required_agreement: the smallest fraction that is accepted.
        files: the SHA-256 checksum of each file of the other toolkit.
        note: why something was not compared.
    """

    conversion: str
    engines: dict[str, str]
    texts: int = 0
    same_tokenization: float | None = None
    same_target_tokenization: float | None = None
    different_text: str = ""
    compared_outputs: int = 0
    largest_difference: float | None = None
    mean_difference: float | None = None
    tolerance: float | None = None
    greedy_tokens: int = 0
    same_greedy_tokens: float | None = None
    required_agreement: float | None = None
    files: dict[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def failures(self) -> list[str]:
        """A sentence for each limit that is exceeded."""
        failures = []
        for same, where in (
            (self.same_tokenization, ""),
            (self.same_target_tokenization, " in the target vocabulary"),
        ):
            if same is not None and same < 1:
                count = round((1 - same) * self.texts)
                failures.append(
                    f"{count} of {self.texts} texts have different token ids{where}, for example "
                    f"{self.different_text!r}"
                )
        difference, tolerance = self.largest_difference, self.tolerance
        if difference is not None and tolerance is not None and not difference <= tolerance:
            failures.append(
                f"the outputs differ by {difference:.2g}, more than {tolerance:.2g} (--tolerance "
                "changes this limit)"
            )
        agreement, required = self.same_greedy_tokens, self.required_agreement
        if agreement is not None and required is not None and agreement < required:
            failures.append(
                f"{agreement:.2%} of the greedy tokens agree, less than {required:.2%} "
                "(--agreement changes this limit)"
            )
        return failures

    @property
    def passed(self) -> bool | None:
        """Whether no limit is exceeded; None if that is not known because of the `note`."""
        if self.failures:
            return False
        return None if self.note else True

    def add_note(self, sentence: str) -> None:
        """Add the reason why something was not compared."""
        self.note = f"{self.note} {sentence}".strip()

    def to_json(self) -> bytes:
        """The content of conversion.json."""
        content = asdict(self) | {"passed": self.passed}
        return (json.dumps(content, indent=1) + "\n").encode()

    def sentences(self) -> list[str]:
        """The receipt as text, for the terminal and the model card."""
        engines = " and ".join(f"{name} {version}" for name, version in self.engines.items())
        lines = [f"{self.conversion}; runtimes: {engines}."]
        for same, what in (
            (self.same_tokenization, "Token ids"),
            (self.same_target_tokenization, "Token ids in the target vocabulary"),
        ):
            if same is not None:
                lines.append(f"{what}: identical for {same:.2%} of {self.texts} texts.")
        if self.largest_difference is not None and self.mean_difference is not None:
            lines.append(
                f"Outputs: {self.compared_outputs:,} values, maximum difference "
                f"{self.largest_difference:.2g}, mean {self.mean_difference:.2g} (limit: "
                f"{self.tolerance:.2g})."
            )
        if self.same_greedy_tokens is not None:
            lines.append(
                f"Greedy decoding: {self.same_greedy_tokens:.2%} of {self.greedy_tokens:,} tokens "
                f"match (required: {self.required_agreement:.2%})."
            )
        if self.note:
            lines.append(self.note)
        return lines


def default_texts(count: int) -> list[str]:
    """Built-in texts: difficult ones, then sentences in English and German; there can be fewer than
    `count`."""
    pairs = builtin_corpus("train", min(SIZES["train"], max(1, (count - len(DIFFICULT) + 1) // 2)))
    sentences = [text for pair in pairs for text in pair]
    return [*DIFFICULT, *sentences][:count]


def choose_texts(texts: Sequence[str] | None, count: int | None, default: int) -> list[str]:
    """The texts for a comparison.

    Args:
        texts: the texts of the user; None: built-in texts.
        count: the number of texts; None: all texts of the user, or `default` built-in texts.
        default: the number of built-in texts.

    Returns:
        The texts.

    Raises:
        InputError: there are no texts, or fewer than `count`.
    """
    if texts is not None and not texts:
        raise InputError("there are no texts to compare: leave them out to use the built-in texts")
    if count is not None and count < 1:
        raise InputError(f"count is {count}, but it must be at least 1")
    number = default if count is None else count
    chosen = default_texts(number) if texts is None else list(texts)
    if count is not None and count > len(chosen):
        kind = "built-in texts" if texts is None else "texts"
        raise InputError(f"count is {count:,}, but there are only {len(chosen):,} {kind}")
    return chosen[:count]


def read_row(model: Model, ids: Sequence[int]) -> list[int]:
    """The row of tokens that a model reads for a text.

    Args:
        model: the model.
        ids: the token ids of the text.

    Returns:
        The ids with the special tokens of the task of the model: a decoder that translates, for
        example, reads a separator after the text.
    """
    tokenizer, style = model.source_tokenizer, model.config.model.style
    if isinstance(model.task, Sequences):
        return input_ids(tokenizer, style, ids)
    if isinstance(model.task, Embed):
        return tokenizer.frame_pooled(ids, style)
    return tokenizer.frame(ids, style)


def compare(
    model: Model, oracle: Oracle, texts: Sequence[str], receipt: Receipt,
    tolerance: float | None = None, agreement: float | None = None, complete: bool = False,
    advance: Callable[[float], None] = lambda done: None,
) -> Receipt:  # fmt: skip
    """Run a model in both runtimes and store the result in a receipt.

    Args:
        model: the model in regard.
        oracle: the other runtime.
        texts: the texts.
        receipt: receives the results.
        tolerance: the largest accepted difference between outputs; None: the oracle's default.
        agreement: the required fraction of equal greedy tokens; None: the oracle's default.
        complete: compare outputs and greedy decoding for all texts, not only for some of them.
        advance: called with the fraction of the work that is done.

    Returns:
        The receipt.

    Raises:
        EngineFailed: the other runtime raised an error.
    """
    receipt.engines[oracle.name] = oracle.version
    rows = [read_row(model, ids) for ids in model.source_tokenizer.encode_batch(list(texts))]
    receipt.texts = len(texts)
    compare_tokenizers(model, oracle, rows, texts, receipt)
    longest = min(LONGEST_ROW, model.config.longest_input)
    rows = [row for row in rows if 0 < len(row) <= longest]
    if not rows:
        receipt.add_note(f"Outputs were not compared: no text has 1 to {longest} tokens.")
    some = len(rows) if complete else OUTPUTS
    compare_outputs(model, oracle, rows[:some], receipt, advance)
    if receipt.largest_difference is not None:
        receipt.tolerance = oracle.tolerance if tolerance is None else tolerance
    compare_decoding(model, oracle, rows if complete else rows[-DECODED:], receipt)
    if receipt.same_greedy_tokens is not None:
        required = getattr(oracle, "agreement", AGREEMENT)
        receipt.required_agreement = required if agreement is None else agreement
    advance(1.0)
    return receipt


def compare_tokenizers(
    model: Model, oracle: Oracle, rows: Sequence[list[int]], texts: Sequence[str],
    receipt: Receipt,
) -> None:  # fmt: skip
    """Compare the token ids in both vocabularies; a note says why if they were not compared."""
    what = "Token ids"
    try:
        with third_party(oracle.name, oracle.version):
            theirs = oracle.tokenize(texts)
        receipt.same_tokenization = compare_tokens(rows, theirs, texts, receipt)
        what = "Token ids in the target vocabulary"
        compare_targets(model, oracle, texts, receipt)
    except EngineFailed:
        raise
    except NotCompared as error:
        receipt.add_note(f"{what} were not compared: {error}.")


def compare_tokens(
    ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]], texts: Sequence[str],
    receipt: Receipt,
) -> float:  # fmt: skip
    """The fraction of texts with the same token ids; the receipt receives the first other text."""
    different = [text for text, a, b in zip(texts, ours, theirs, strict=True) if list(a) != list(b)]
    if different and not receipt.different_text:
        cut = len(different[0]) > LONGEST_TEXT
        receipt.different_text = different[0][:LONGEST_TEXT] + ("…" if cut else "")
    return 1 - len(different) / len(texts)


def compare_targets(model: Model, oracle: Oracle, texts: Sequence[str], receipt: Receipt) -> None:
    """Compare the token ids in the target vocabulary, if the model has two vocabularies."""
    tokenize = getattr(oracle, "tokenize_target", None)
    if tokenize is None or model.source_tokenizer is model.target_tokenizer:
        return
    with third_party(oracle.name, oracle.version):
        theirs = tokenize(texts)
    ours = model.target_tokenizer.encode_batch(list(texts))
    receipt.same_target_tokenization = compare_tokens(ours, theirs, texts, receipt)


def compare_outputs(
    model: Model, oracle: Oracle, rows: Sequence[list[int]], receipt: Receipt,
    advance: Callable[[float], None],
) -> None:  # fmt: skip
    """Compare logits or vectors."""
    largest, total, count = 0.0, 0.0, 0
    for start in range(0, len(rows), ROWS):
        batch = rows[start : start + ROWS]
        with third_party(oracle.name, oracle.version):
            theirs = oracle.outputs(batch)
        if theirs is None:
            return
        for row, expected in zip(batch, theirs, strict=True):
            difference = np.abs(output(model, row) - np.asarray(expected, np.float64))
            # Python's max() would ignore NaN.
            largest = float(np.maximum(largest, difference.max()))
            total, count = total + float(difference.sum()), count + difference.size
        advance(0.5 * (start + ROWS) / len(rows))
    if count:
        receipt.largest_difference, receipt.mean_difference = largest, total / count
        receipt.compared_outputs = count


@torch.no_grad()
def output(model: Model, row: Sequence[int]) -> NDArray[np.float64]:
    """The outputs that `Oracle.outputs` describes, computed by regard's reference modules."""
    transformer, tokenizer = model.transformer, model.target_tokenizer
    packed, start = Packed.of([list(row)]), [tokenizer.bos, *tokenizer.target_prefix]
    if transformer.config.style == "decoder":
        result = transformer(None, packed)
    elif transformer.config.style == "encoder-decoder":
        result = transformer(packed, Packed.of([start]))
    else:
        result = transformer(packed)
    if transformer.config.style == "encoder-decoder":
        result = result[-1:]
    elif transformer.config.head == "pooling":
        result = torch.nn.functional.normalize(result[0], dim=-1)
    elif transformer.config.head == "classifier":
        result = result[0]
    numbers: NDArray[np.float64] = result.double().numpy()
    return numbers


def compare_decoding(
    model: Model, oracle: Oracle, rows: Sequence[list[int]], receipt: Receipt
) -> None:
    """Compare the tokens of greedy decoding."""
    if not model.config.model.has_decoder:
        return
    with third_party(oracle.name, oracle.version):
        theirs = oracle.generate(rows, STEPS)
    if theirs is None:
        return
    ours = greedy(model, rows, STEPS)
    same = count = 0
    for expected, tokens in zip(theirs, ours, strict=True):
        pairs = zip(expected, tokens, strict=False)
        same += next(
            (i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(tokens))
        )
        same += expected == tokens  # the end of a text counts as a token
        count += len(expected) + 1
    if count:
        receipt.greedy_tokens, receipt.same_greedy_tokens = count, same / count


def greedy(model: Model, rows: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
    """The tokens of greedy decoding of each row, without the forced prefix and the end."""
    tokenizer = model.target_tokenizer
    prefix = list(tokenizer.target_prefix)
    requests = [
        Request(list(row), prefix, len(prefix) + steps, tokenizer.bos, tokenizer.eos)
        for row in rows
    ]
    options = DecodingConfig(beam=1, max_length=steps)
    outputs = [p.token_ids for p in decode(model.transformer, requests, options)]
    return [
        [id for id in tokens[len(prefix) :] if id != tokenizer.eos][:steps] for tokens in outputs
    ]


def refuse(receipt: Receipt, path: Path) -> None:
    """Raise ConversionFailed if a limit is exceeded."""
    if receipt.failures:
        raise ConversionFailed(f"{path}: {'; '.join(receipt.failures)}: nothing was written")


def checksums(files: Iterable[Path], base: Path) -> dict[str, str]:
    """The SHA-256 checksums of files, by their path relative to a folder."""
    sums = {}
    for path in files:
        name = path.relative_to(base) if path.is_relative_to(base) else Path(path.name)
        with path.open("rb") as file:
            sums[name.as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums


def fields(receipt: Receipt) -> dict[str, Any]:
    """The receipt for `--json`."""
    return asdict(receipt) | {"passed": receipt.passed, "failures": receipt.failures}
