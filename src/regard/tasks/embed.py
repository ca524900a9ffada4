"""The task embed: a model computes a vector for a text; similar texts have similar vectors.

The training data are pairs of similar texts, for which all other texts of the batch are negative
examples (a row may add a hard negative), or pairs with similarity scores, of which the loss uses
only the order (CoSENT, Su 2022). Vectors have unit length, so a dot product is a cosine. The model
reads only the beginning of a text that is longer than data.max_length.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from regard.config.checks import choice
from regard.config.model import CHOICES, ModelConfig
from regard.config.sections import Config, DataConfig
from regard.console import warn
from regard.errors import InputError
from regard.files import check_destination
from regard.tasks.common import count_cut, exclude, refuse_nan, rounded, warn_cut
from regard.tasks.examples import Say
from regard.tasks.lazy import np, runtime, torch
from regard.tasks.sequences import Sequences
from regard.tasks.task import Array, Context, Evaluation, Ids, Option, Task, Tokenizers
from regard.text.corpus import SIMILAR, CorpusReport, Similar
from regard.text.reading import Position

if TYPE_CHECKING:
    from regard.tasks.runtime import Chunk, Loss, Packed, Pairs, Store, Transformer

Example = tuple[Path, Similar]


@dataclass(eq=False, repr=False)
class Embed(Task):
    """Vectors for texts and tokens.

    Attributes:
        pooling: how the vectors of the tokens become one vector: mean, cls or last.
        scale: the factor of the cosines in the loss (training.similarity_scale).
    """

    name = "embed"
    help = "Compute the vector of each text: one line of numbers per text."
    doing = "embedding"
    files = "JSON lines"
    better = "spearman"
    styles = ("encoder", "decoder")
    defaults: ClassVar = {"model": {"style": "encoder"}, "training": {"label_smoothing": 0.0}}
    config_options = ("data.duplicates", "training.similarity_scale")
    options = (
        Option(
            "pooling",
            "how token vectors are combined: mean, cls or last (default: as in training)",
            str,
            "",
            "POOLING",
        ),
        Option("tokens", "print one contextual vector per token"),
        Option(
            "out",
            "write the vectors to a NumPy file (named FILE.npy.partial until it is complete)",
            Path,
            metavar="FILE.npy",
            argument=False,
        ),
    )
    row_format = SIMILAR

    pooling: str = "mean"
    scale: float = 20.0

    @classmethod
    def model_defaults(cls, style: str, data: DataConfig) -> dict[str, Any]:
        return {"head": "pooling"}

    @classmethod
    def check_config(cls, config: Config) -> None:
        if config.training.r_drop:
            raise InputError("the task embed and training.r_drop cannot be combined")

    @classmethod
    def make(cls, config: Config, tokenizers: Tokenizers) -> Embed:
        model, scale = config.model, config.training.similarity_scale
        return cls(tokenizers[1], model.style, config.data.max_length, model.pooling, scale)

    @classmethod
    def of(cls, task: Task, config: Config) -> Embed:
        """Return the task embed for a model of any task; raises InputError if the model has two
        stacks or reads several texts as one input."""
        if isinstance(task, Embed):
            return task
        style = config.model.style
        if style == "encoder-decoder" or isinstance(task, Sequences):
            raise InputError(f"this model was trained to {task.name}: it cannot embed")
        return cls(task.tokenizer, style, config.longest_input)

    @classmethod
    def read_all(
        cls,
        files: Sequence[Path],
        config: Config,
        say: Say | None = None,
        position: Position | None = None,
    ) -> Iterator[Example]:
        first: Similar | None = None
        for path, row in super().read_all(files, config, say, position):
            first = row if first is None else first
            for name in ("score", "negative"):
                present = getattr(row, name) is not None
                if present != (getattr(first, name) is not None):
                    this, others = ("a", "have none") if present else ("no", "have one")
                    raise InputError(
                        f"{path}:{row.line}: {this} {name}, but the rows before it {others}"
                    )
            yield path, row

    @classmethod
    def texts(cls, example: Example) -> Iterable[str]:
        _, row = example
        return [row.a, row.b] if row.negative is None else [row.a, row.b, row.negative]

    @classmethod
    def input_text(cls, example: Example) -> str:
        return f"{example[1].a}\n{example[1].b}"

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids that the model reads for each text: an encoder reads <cls> first, a
        decoder <eos> last, so that one token can represent the complete text."""
        return [self.row_of(ids) for ids in self.tokenizer.encode_batch(list(texts))]

    def row_of(self, ids: Sequence[int]) -> list[int]:
        """`ids` for the token ids of one text."""
        return self.tokenizer.frame_pooled(ids[: self.text_room()], self.style)

    def encode(self, examples: list[Example], config: Config, report: CorpusReport) -> Chunk:
        names = ("a", "b") if examples[0][1].negative is None else ("a", "b", "negative")
        sides: list[Any] = [self.ids([getattr(row, side) for _, row in examples]) for side in names]
        for ids in (ids for side in sides for ids in side):
            if len(ids) == self.longest:
                report.note(f"texts of {self.longest} tokens or cut to them")
        if examples[0][1].score is not None:
            sides.append([[row.score] for _, row in examples])
        return sides

    def identity(self, config: Config) -> list[object]:
        vocabulary = self.tokenizer.fingerprint
        return ["embed, stripped", vocabulary, self.style, self.longest, config.data.duplicates]

    @classmethod
    def reading_identity(cls, files: Sequence[Path], config: Config) -> list[object]:
        first = next((row for _, row in cls.read(files, config)), None)
        negative = ["negative"] if first is not None and first.negative is not None else []
        return [*super().reading_identity(files, config), *negative]

    def types(self, files: Sequence[Path], config: Config) -> list[str]:
        first = next((row for _, row in self.read(files, config)), None)
        token = runtime.token_type(self.tokenizer.size)
        if first is not None and first.negative is not None:
            return [token] * 3
        return [token] * 2 + (["float32"] if first is not None and first.score is not None else [])

    def sizes(self, store: Store) -> list[Array]:
        return [sum(store.lengths[1 : text_sides(store)], store.lengths[0])]

    def batch(self, store: Store, examples: Ids, device: torch.device, seed: int = 0) -> Pairs:
        texts = text_sides(store)
        sides = [[store.tokens(side, int(i)) for i in examples] for side in range(texts)]
        row = runtime.packed([ids for side in sides for ids in side], device)
        a, b, *negatives = (np.array([hash(ids.tobytes()) for ids in side]) for side in sides)
        same = np.any([np.equal.outer(x, y) for x in (a, b) for y in (a, b)], axis=0)
        # A text is not a negative example for a pair that contains it.
        others = [np.equal.outer(a, n) | np.equal.outer(b, n) for n in negatives]
        scores = None
        if store.sides > texts:
            values = np.concatenate([store.tokens(texts, int(i)) for i in examples])
            scores = torch.from_numpy(values).to(device)
        source, target = (row, None) if self.style == "encoder" else (None, row)
        masks = [torch.from_numpy(mask).to(device) for mask in (same, *others)]
        return runtime.Pairs(source, target, scores, masks[0], masks[1] if others else None)

    @property
    def loss(self) -> Loss:
        return partial(runtime.losses.similarity_loss, scale=self.scale)

    def evaluate(self, model: Transformer, examples: Sequence[Any], config: Config) -> Evaluation:
        """Compute the correlation of scores and cosines or, for pairs without scores, how often the
        partner of a text is the nearest of all partners and negative examples."""
        sides = [[getattr(row, side) for _, row in examples] for side in "ab"]
        a, b = (self.embed(model, texts) for texts in sides)
        cut = sum(count_cut(self, texts) for texts in sides)
        if examples[0][1].score is None:
            # Negative examples are candidates as well. There is one product for each sentence,
            # because products of different shapes are rounded differently.
            negatives = [row.negative for _, row in examples if row.negative is not None]
            candidates = np.concatenate([b, self.embed(model, negatives)]) if negatives else b
            cosines = (candidates @ vector for vector in a)
            better = np.array([int((row > row[i] + 1e-6).sum()) for i, row in enumerate(cosines)])
            metrics = {
                "nearest": lambda chosen: float((better[chosen] == 0).mean()),
                "reciprocal_rank": lambda chosen: float((1 / (1 + better[chosen])).mean()),
            }
        else:
            cosine = (a * b).sum(1)
            targets = np.array([row.score for _, row in examples])
            metrics = {
                "spearman": lambda chosen: runtime.metrics.spearman(
                    cosine[chosen], targets[chosen]
                ),
                "pearson": lambda chosen: runtime.metrics.pearson(cosine[chosen], targets[chosen]),
            }
        scores = runtime.scores_of(metrics, len(examples))
        return Evaluation(scores, metrics, len(examples), cut=cut)

    def embed(self, model: Transformer, texts: Sequence[str], pooling: str = "") -> Array:
        """Return the vectors of texts, of unit length: [texts, D]."""
        return self.embed_rows(model, self.ids(texts), pooling)

    def embed_rows(
        self, model: Transformer, rows: Sequence[Sequence[int]], pooling: str = ""
    ) -> Array:
        """`embed` for the token ids that the model reads, as `ids` returns them."""
        pooling = pooling or self.pooling

        def read(row: Packed, hidden: torch.Tensor) -> list[Any]:
            if (model.config.head, model.config.pooling) == ("pooling", pooling):
                vectors = model.head(hidden, row, model.output_matrix())
            else:
                vectors = runtime.pool(hidden, row, pooling)
            vectors = torch.nn.functional.normalize(vectors.float(), dim=-1)
            return list(vectors.cpu().numpy())

        vectors = runtime.forward(model, rows, read)
        return np.array(vectors, np.float32).reshape(-1, model.config.d_model)

    def embed_tokens(
        self, model: Transformer, texts: Sequence[str]
    ) -> list[tuple[list[str], Array]]:
        """Return for each text its n tokens and their contextual vectors: [n, D]."""

        def read(row: Packed, hidden: torch.Tensor) -> list[Any]:
            return [part.float().cpu().numpy() for part in row.split(hidden)]

        rows = self.ids(texts)
        vectors = runtime.forward(model, rows, read)
        return [(self.tokenizer.tokens(ids), v) for ids, v in zip(rows, vectors, strict=True)]

    def predict(
        self,
        model: Transformer,
        inputs: Sequence[str],
        context: Context,
        pooling: str = "",
        tokens: bool = False,
    ) -> Any:
        """Compute a vector of unit length for each text: [texts, D]. With `tokens`, return the
        result of `embed_tokens`."""
        check_pooling(model.config, pooling)
        warn_cut(self, inputs, context)
        if tokens:
            return self.embed_tokens(model, inputs)
        vectors = self.embed(model, inputs, pooling)
        refuse_nan(vectors.sum(1).tolist())
        return vectors

    @classmethod
    def check_options(cls, options: Namespace) -> None:
        exclude(options, "tokens", "pooling", "out")
        exclude(options, "out", "json")
        if options.out is not None:
            check_destination(options.out)
            if not (folder := options.out.parent).is_dir():
                raise InputError(f"{options.out} cannot be written: no such folder: {folder}")

    def check_model(self, model: ModelConfig, options: Namespace) -> None:
        check_pooling(model, options.pooling)

    @contextmanager
    def output(
        self, model: ModelConfig, options: Namespace
    ) -> Iterator[Callable[[Any], None] | None]:
        """Write the vectors to a NumPy file with --out. If the command is interrupted, the vectors
        computed so far remain in FILE.npy.partial, and an existing FILE.npy does not change."""
        if options.out is None:
            yield None
            return
        file, complete = runtime.VectorFile(options.out, model.d_model), False
        try:
            yield file.write
            complete = True
        finally:
            if (partial := file.close(complete)) is not None:
                warn(f"not complete: the first {file.count:,} vectors are in {partial}")

    def line(self, text: str, prediction: Any, options: Namespace) -> str:
        if not options.tokens:
            return numbers(prediction.tolist())
        tokens, vectors = prediction
        pairs = zip(tokens, vectors.tolist(), strict=True)
        return "".join(f"{token}\t{numbers(vector)}\n" for token, vector in pairs)

    def to_json(self, text: str, prediction: Any, options: Namespace) -> dict[str, Any]:
        if not options.tokens:
            return {"text": text, "vector": rounded([prediction.tolist()])[0]}
        tokens, vectors = prediction
        return {"text": text, "tokens": tokens, "vectors": rounded(vectors.tolist())}


def text_sides(store: Store) -> int:
    """Return the number of text columns of a store: 2 or, with negative examples, 3. A further
    column has the scores."""
    return sum(kind != "float32" for kind in store.types)


def check_pooling(model: ModelConfig, pooling: str) -> None:
    """Raise an InputError if a pooling is unknown or not possible with this model; an empty string
    means the pooling of the model."""
    if pooling:
        choice("pooling", pooling, CHOICES["pooling"])
        replace(model, head="pooling", classes=None, pooling=pooling)


def numbers(vector: list[float]) -> str:
    """Format a vector as one line."""
    return " ".join(f"{number:.6f}" for number in vector)
