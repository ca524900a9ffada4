"""A trained model, ready to use: `regard.load(folder)`.

`Model.predict` does what the model was trained for, as its task defines it. The other methods are
named after the tasks of the package; the same names are commands.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from regard.predictor.reading import ReadingMethods
from regard.predictor.writing import WritingMethods

if TYPE_CHECKING:
    from regard.predictor.attention import Attention


class Model(WritingMethods, ReadingMethods):
    """A trained model with its tokenizer, ready to use. `regard.load` and `regard.train` return it.

    A string in gives one result, a list (or another iterable of strings) gives a list of results,
    in order. All methods may be called from several threads at the same time.

    Attributes:
        config: the configuration that the model was trained with.
        transformer: the network, in evaluation mode.
        task: what the model was trained for.
        folder: the folder of the model, or None if it is only in memory.
    """

    def attention(
        self, text: str, *, target: str | None = None, context: str | None = None
    ) -> Attention:
        """Compute the attention weights of every head of every layer for one text.

        Args:
            text: the text that the model reads.
            target: what the decoder writes; None: the output of the model.
            context: the context of a question, for a model that answers questions.

        Returns:
            The weights as arrays, with the tokens; `Attention.plot` draws them.

        Raises:
            InputError: the model has no attention, or the text is empty or too long.
        """
        from regard.predictor.attention_inputs import gather

        return gather(self, text, target, context, most=sys.maxsize)
