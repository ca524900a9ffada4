"""The verbs that use a trained model, and their options: `regard translate`, `regard classify`...

Each takes texts, or lines of standard input, and gives an answer for each, in order. What is done
with them is in answering.py; torch is imported only when a verb runs.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.options import bounded, file_path
from regard.config.model import STYLES
from regard.config.sections import DTYPES, DecodingConfig
from regard.config.settings import section_settings
from regard.errors import InputError
from regard.files import check_destination
from regard.training.shipped import boxed

if TYPE_CHECKING:
    from regard.predictor import Model

FEW = 2**18  # bytes of documents to search that are embedded while somebody waits


def machine_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    verb.add_argument("--quiet", action="store_true", help="no progress on standard error")


def model_to_use(verb: argparse.ArgumentParser, task: str) -> None:
    """`-m`; without it the model in the box for this task."""
    verb.add_argument(
        "-m", "--model", type=file_path, default=Path(boxed(task)), metavar="MODEL",
        help=f"a model's folder (default: {boxed(task)}, which comes with the package)",
    )  # fmt: skip
    verb.add_argument("--dtype", default="auto", choices=DTYPES)
    machine_options(verb)


def architecture_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--style", help=" | ".join(STYLES))
    verb.add_argument(
        "--set", action="append", default=[], metavar="section.key=value", dest="assignments",
        help="change one option, e.g. model.norm_first=true; repeatable",
    )  # fmt: skip


def text_options(verb: argparse.ArgumentParser, task: str, what: str = "TEXT") -> None:
    verb.add_argument("texts", nargs="*", metavar=what, help="none: lines of standard input")
    model_to_use(verb, task)


def decoding_options(verb: argparse.ArgumentParser) -> None:
    """Every option of the section `decoding`; what is not given is as the model has it."""
    for name, kind, said in (
        ("beam", int, "hypotheses followed at once; 1 is greedy"),
        ("n-best", int, "answers for each text, best first (one line, with tabs between)"),
        ("length-penalty", float, "0: short answers win; the paper's is 0.6"),
        ("max-length", int, "tokens of an answer (translate, answer: more than its source has)"),
        ("min-length", int, "tokens before an answer may end"),
        ("no-repeat", int, "no sequence of so many tokens twice in an answer"),
        ("temperature", float, "above 0: sample instead of searching"),
        ("top-k", int, "sample from so many best tokens only"),
        ("top-p", float, "sample from the best tokens with this probability together"),
        ("seed", int, "of sampling"),
    ):
        verb.add_argument(f"--{name}", type=kind, metavar="N" if kind is int else "X", help=said)
    verb.add_argument(
        "--set", action="append", default=[], metavar="decoding.key=value", dest="assignments",
        help="the same as in a configuration file; repeatable",
    )  # fmt: skip


def chosen_decoding(options: argparse.Namespace) -> dict[str, Any]:
    given = {f.name: getattr(options, f.name) for f in fields(DecodingConfig)}
    changes = section_settings(options.assignments, "decoding")
    return changes | {k: v for k, v in given.items() if v is not None}


def exclude(options: argparse.Namespace, one: str, *others: str) -> None:
    """Refuse options that cannot be combined."""
    for other in others:
        if getattr(options, one.replace("-", "_")) and getattr(options, other.replace("-", "_")):
            raise InputError(f"--{one} and --{other} cannot be combined")


def hurried(options: argparse.Namespace) -> bool:
    """Whether a person waits for one answer: not where native code is a must, nor where so much
    is read, from standard input or from documents, that waiting for it pays."""
    if not hasattr(options, "texts") or options.dtype == "int8":
        return False
    documents = getattr(options, "documents", None)
    if documents is not None and documents.is_file() and documents.stat().st_size > FEW:
        return False
    return bool(options.texts) or sys.stdin.isatty()


@contextmanager
def at_once(hurried: bool) -> Iterator[None]:
    """If a person waits: no compiling, and no looking for garbage among the million objects that
    importing torch makes."""
    if not hurried:
        yield
        return
    collecting = gc.isenabled()
    gc.disable()
    try:
        from regard.ops.cpu.build import later  # imports torch

        with later(True):
            yield
    finally:
        if collecting:
            gc.enable()


def opened(options: argparse.Namespace) -> Model:
    from regard.device import keep_freed_memory
    from regard.predictor import load

    keep_freed_memory()
    return load(options.model, options.device, options.dtype)


# ---- translate --------------------------------------------------------------------------


def translate_options(verb: argparse.ArgumentParser) -> None:
    text_options(verb, "translate")
    verb.add_argument("--prefix", default="", metavar="TEXT", help="how every answer begins")
    verb.add_argument("--stream", action="store_true", help="show the words as they come")
    verb.add_argument(
        "--score", action="store_true",
        help="texts are SOURCE<tab>TRANSLATION: print how probable each translation is",
    )  # fmt: skip
    verb.add_argument(
        "--alternatives", type=bounded(int, 0, 1000), default=0, metavar="N",
        help="with --json: the N most probable tokens at each position",
    )  # fmt: skip
    for name, said in (
        ("history", "all that the search kept and pruned"),
        ("attention", "where every head of every layer looks"),
    ):
        verb.add_argument(f"--{name}", action="store_true", help=f"with --json: {said}")
    decoding_options(verb)


def translate(options: argparse.Namespace) -> int:
    """Translate texts, or the lines of standard input, one for one."""
    decoding = chosen_decoding(options)
    # A text of several lines is what its lines are on standard input: a model knows single ones.
    lines = (text.removesuffix("\n").split("\n") for text in options.texts)
    options.texts = [line for some in lines for line in some]
    for name in ("alternatives", "history", "attention"):
        if getattr(options, name) and not options.json:
            raise InputError(f"--{name} needs --json")
    exclude(options, "stream", "json", "score")
    for name in ("prefix", "alternatives", "history", "attention", *decoding):
        if options.score and (name in decoding or getattr(options, name)):
            raise InputError(f"--score and --{name.replace('_', '-')} cannot be combined")
    from regard.cli.answering import Translations, answer_lines

    model = opened(options)
    printer = Translations(model, options, decoding)
    # Details of a line are many numbers: fewer lines at a time.
    detailed = options.attention or options.history or options.alternatives
    answer_lines(printer, options, "translating", 64 if detailed else None)
    return 0


# ---- answer, generate -------------------------------------------------------------------


def answer_options(verb: argparse.ArgumentParser) -> None:
    text_options(verb, "answer", "QUESTION")
    verb.add_argument(
        "--context", metavar="TEXT",
        help="what the answer is found in; without it a line is CONTEXT<tab>QUESTION or JSON",
    )  # fmt: skip
    decoding_options(verb)


def answer(options: argparse.Namespace) -> int:
    """Answer questions from their context, one line for each."""
    decoding = chosen_decoding(options)
    from regard.cli.answering import Replies, answer_lines

    answer_lines(Replies(opened(options), options, decoding), options, "answering")
    return 0


def generate_options(verb: argparse.ArgumentParser) -> None:
    text_options(verb, "generate", "PROMPT")
    verb.add_argument("--stream", action="store_true", help="show the text as it comes")
    verb.add_argument(
        "--until", default="", metavar="TEXT",
        help=r"stop before this text; '\n': one line, a turn of a dialogue",
    )  # fmt: skip
    decoding_options(verb)


def generate(options: argparse.Namespace) -> int:
    """Go on with a prompt, or with each line of standard input."""
    decoding = chosen_decoding(options)
    exclude(options, "stream", "json", "until")
    options.until = options.until.replace("\\n", "\n")
    from regard.cli.answering import Continuations, answer_lines

    answer_lines(Continuations(opened(options), options, decoding), options, "writing")
    return 0


# ---- the encoder's tasks ----------------------------------------------------------------


def classify_options(verb: argparse.ArgumentParser) -> None:
    text_options(verb, "classify")


def classify(options: argparse.Namespace) -> int:
    """The label of each text and its probability, with a tab between."""
    from regard.cli.answering import Labels, answer_lines

    answer_lines(Labels(opened(options), options), options, "classifying")
    return 0


def fill_options(verb: argparse.ArgumentParser) -> None:
    text_options(verb, "fill")
    verb.add_argument(
        "--top", type=bounded(int, 1, 1000), default=5, metavar="N",
        help="words for each <mask> (default: 5)",
    )  # fmt: skip


def fill(options: argparse.Namespace) -> int:
    """Fill each <mask> of a text; the best words and their probabilities stand behind a tab."""
    from regard.cli.answering import Gaps, answer_lines

    answer_lines(Gaps(opened(options), options), options, "filling")
    return 0


def embed_options(verb: argparse.ArgumentParser) -> None:
    text_options(verb, "embed")
    verb.add_argument("--pooling", default="", help="mean | cls | last (default: the model's)")
    verb.add_argument(
        "--tokens", action="store_true", help="a vector for each token in its context"
    )
    verb.add_argument(
        "--out", type=file_path, metavar="FILE.npy", help="write a NumPy array instead"
    )


def embed(options: argparse.Namespace) -> int:
    """The vector of each text: one line of numbers for each."""
    exclude(options, "tokens", "pooling", "out")
    exclude(options, "out", "json")
    if options.out is not None:
        check_destination(options.out)
        if not (folder := options.out.parent).is_dir():
            raise InputError(f"{options.out} cannot be written: no such folder: {folder}")
    from regard.cli.answering import Vectors, answer_lines

    with Vectors(opened(options), options) as printer:
        answer_lines(printer, options, "embedding")
    return 0


def search_options(verb: argparse.ArgumentParser) -> None:
    text_options(verb, "embed", "QUERY")
    verb.add_argument(
        "--documents", required=True, type=file_path, metavar="FILE", help="one document per line"
    )
    verb.add_argument(
        "--top", type=bounded(int, 1, 1_000_000), default=5, metavar="N",
        help="lines for each query (default: 5)",
    )  # fmt: skip
    verb.add_argument("--index", type=file_path, metavar="DIR", help="folder for the index")
    verb.add_argument("--rebuild", action="store_true", help="rebuild the index")


def search(options: argparse.Namespace) -> int:
    """Rank the lines of a file for a query: score, line number and text, with tabs between."""
    from regard.cli.answering import Hits, answer_lines

    answer_lines(Hits(opened(options), options), options, "searching")
    return 0


Verb = tuple[str, Callable[[argparse.Namespace], int], Callable[[argparse.ArgumentParser], None]]
VERBS: tuple[Verb, ...] = (
    ("translate", translate, translate_options),
    ("answer", answer, answer_options),
    ("generate", generate, generate_options),
    ("classify", classify, classify_options),
    ("fill", fill, fill_options),
    ("embed", embed, embed_options),
    ("search", search, search_options),
)
