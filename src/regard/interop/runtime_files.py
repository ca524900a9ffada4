"""What the exports to CTranslate2 and ONNX share: weights, names of tokens, tokenizer files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from regard.config.model import ModelConfig
from regard.files import write_file
from regard.interop.engines import NotCompared
from regard.interop.expressible import check_unchanged
from regard.interop.hf.write_tokenizer import library_of
from regard.interop.proof import read_row
from regard.predictor.model import Model
from regard.tasks.classify import Classify
from regard.tasks.embed import Embed
from regard.tasks.sequences import Sequences
from regard.text.external import ExternalTokenizer
from regard.text.framing import SPECIALS
from regard.text.tokenizer import Tokenizer
from regard.training.names import CHAT_TEMPLATE, SOURCE_TOKENIZER, TOKENIZER

Array = NDArray[np.float32]


def weights_of(model: Model) -> dict[str, Array]:
    """The weights of a model in float32, with the names of `Transformer.state_dict()`.

    Raises:
        InputError: a user has changed a module, for example with a hook, which the export would
            ignore.
    """
    check_unchanged(model.transformer)
    return {
        name: np.ascontiguousarray(tensor.detach().float().cpu().numpy())
        for name, tensor in model.transformer.state_dict().items()
    }


def rounding_tolerance(config: ModelConfig) -> float:
    """The largest difference between two logits that rounding explains; it grows with depth."""
    return 1e-4 * max(1.0, (config.encoder_layers + config.decoder_layers) / 12)


def temperature_of(model: Model) -> float:
    """The number by which the logits of a classifier are divided; 1 for other models."""
    return model.task.temperature if isinstance(model.task, Classify) else 1.0


# ---- tokens -----------------------------------------------------------------------------------


def token_names(tokenizer: Tokenizer) -> list[str]:
    """A unique name for each token id: the names of `library_tokenizer`.

    An external tokenizer shares the ids with the special tokens of regard. If one of its tokens has
    the name of a special token, the special token gets a different one.
    """
    library = library_tokenizer(tokenizer)
    offset = id_offset(tokenizer)
    if library is None:
        names = tokenizer.tokens(range(offset, tokenizer.size))
    else:
        names = [library.id_to_token(id) or "<unused>" for id in range(tokenizer.size - offset)]
    used = set[str]()
    for i, name in enumerate(names):
        names[i] = _unused(name, used)
    return [*(_unused(name, used) for name in SPECIALS[:offset]), *names]


def _unused(name: str, used: set[str]) -> str:
    """The name, with a number appended if it is already in use; records the result as used."""
    new, number = name, 2
    while new in used:
        new, number = f"{name}#{number}", number + 1
    used.add(new)
    return new


def library_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer | None:
    """The tokenizer as an object of the library `tokenizers`; its ids are those of the model minus
    `id_offset`. None: it is a Python object that cannot be saved."""
    if isinstance(tokenizer, ExternalTokenizer):
        return tokenizer.fast
    return library_of(tokenizer, masks=False)


def id_offset(tokenizer: Tokenizer) -> int:
    """The model's id for id 0 of `library_tokenizer`."""
    return tokenizer.first if isinstance(tokenizer, ExternalTokenizer) else 0


def frame_of(model: Model) -> tuple[list[int], list[int]]:
    """The special tokens that the model of a task reads before and after a text. (An encoder that
    translates or answers reads mask tokens after them.)"""
    style, tokenizer, mark = model.config.model.style, model.source_tokenizer, -1
    if isinstance(model.task, Embed):
        framed = model.task.row_of([mark])
    elif style != "encoder-decoder" and isinstance(model.task, Sequences):
        framed = [*tokenizer.begin, mark, tokenizer.sep]
    else:
        framed = tokenizer.frame([mark], style)
    place = framed.index(mark)
    return framed[:place], framed[place + 1 :]


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The special tokens that the tokenizer has: unk, bos, eos, cls, sep, mask."""
    names = ("unk", "bos", "eos", "cls", "sep", "mask")
    ids = {name: getattr(tokenizer, name) for name in names}
    return {name: id for name, id in ids.items() if id >= 0}


def tokenizers_of(model: Model) -> Mapping[str, Tokenizer]:
    """The tokenizers of a model by file name; the source comes first."""
    source, target = model.source_tokenizer, model.target_tokenizer
    if source is target:
        return {TOKENIZER: target}
    return {SOURCE_TOKENIZER: source, TOKENIZER: target}


def write_tokenizers(model: Model, folder: Path) -> list[str]:
    """Write the tokenizers of a model as files of the library `tokenizers`, and its chat template.

    Returns:
        The names of the tokenizer files; a tokenizer that is a Python object has none.
    """
    if model.chat_template is not None:
        write_file(folder / CHAT_TEMPLATE, model.chat_template.source)
    names = []
    for name, tokenizer in tokenizers_of(model).items():
        if (library := library_tokenizer(tokenizer)) is not None:
            write_file(folder / name, library.to_str(pretty=True) + "\n")
            names.append(name)
    return names


class FolderTokenizers:
    """The tokenizers of an exported folder, for the comparison.

    Args:
        folder: the exported folder.
        model: the exported model.
    """

    def __init__(self, folder: Path, model: Model) -> None:
        self.folder, self.model = folder, model

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Oracle.tokenize`."""
        name, tokenizer = next(iter(tokenizers_of(self.model).items()))
        return [read_row(self.model, row) for row in self._encode(name, tokenizer, texts)]

    def tokenize_target(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Oracle`."""
        return self._encode(TOKENIZER, self.model.target_tokenizer, texts)

    def _encode(self, name: str, tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        if not (self.folder / name).is_file():
            raise NotCompared("the tokenizer is a Python object, which an export cannot contain")
        library: Any = tokenizers.Tokenizer.from_file(str(self.folder / name))
        library.encode_special_tokens = True
        offset = id_offset(tokenizer)
        encodings = library.encode_batch(list(texts), add_special_tokens=False)
        return [[offset + id for id in encoding.ids] for encoding in encodings]
