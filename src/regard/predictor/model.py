"""A trained model, ready to use: `regard.load(folder)`.

`Model.predict` uses the task that the model was trained for. The other methods are
named after the tasks of the package; the same names are commands.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import warn_user
from regard.predictor.reading import ReadingMethods
from regard.predictor.saving import save_model
from regard.predictor.writing import WritingMethods
from regard.tasks.translate import Translate
from regard.text.sentences import split_sentences
from regard.training.metrics import read_history
from regard.training.model_folder import final_scores

if TYPE_CHECKING:
    from regard.predictor.attention import Attention

SUMMARY = ("step", "final", "seconds", "dropped")  # values of the final metrics beside the scores


class Model(WritingMethods, ReadingMethods):
    """A trained model with its tokenizer, ready to use. `regard.load` and `regard.train` return it.

    A string in gives one result, a list (or another iterable of strings) gives a list of results,
    in order. All methods may be called from several threads at the same time.

    Attributes:
        config: the configuration that the model was trained with.
        transformer: the network, in evaluation mode.
        task: the task that the model was trained for.
        folder: the folder of the model, or None if it is only in memory.
    """

    def attention(
        self, text: str, *, target: str | None = None, context: str | None = None
    ) -> Attention:
        """Compute the attention weights of every head of every layer for one text.

        The model reads the text as one sentence, unlike `translate`, which translates the sentences
        of a text one by one. A warning says so if the text has several sentences.

        Args:
            text: the text that the model reads, one sentence if the model translates.
            target: what the decoder writes; None: the output of the model for the text as one
                sentence, as `translate` returns it with split=False.
            context: the context of a question, for a model that answers questions.

        Returns:
            The weights as arrays, with the tokens; `Attention.plot` draws them.

        Raises:
            InputError: the model has no attention, or the text is empty or too long.
        """
        from regard.predictor.attention_inputs import gather

        if isinstance(self.task, Translate) and isinstance(text, str):
            count = len(split_sentences(text).sentences)
            if count > 1:
                warn_user(
                    f"the text has {count} sentences, but attention reads it as one sentence: "
                    "its output may differ from that of translate; pass one sentence at a time"
                )
        return gather(self, text, target, context, most=sys.maxsize)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model, with its weights as they are in memory, as a new folder that
        `regard.load` opens.

        Args:
            path: the new folder; it must not exist, or must be empty.

        Returns:
            The path of the folder.

        Raises:
            InputError: the folder cannot be used, the weights contain NaN or infinity, or they no
                longer match the configuration.
        """
        return save_model(self, path)

    @property
    def scores(self) -> dict[str, Any]:
        """The final validation scores of the training, numbers by name; empty if it had no
        validation data or has not finished, or if the model has no folder."""
        final = final_scores(self.folder) if self.folder is not None else {}
        return {
            name: value
            for name, value in final.items()
            if name not in SUMMARY and not isinstance(value, str)
        }

    @property
    def history(self) -> list[dict[str, Any]]:
        """The metrics of the training, one dictionary for each line of metrics.jsonl: loss and
        speed of some steps (`loss`), validations (`valid_loss`) and the final scores (`final`)."""
        return read_history(self.folder) if self.folder is not None else []
