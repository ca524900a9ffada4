"""The methods of `Model` that write text: translate, answer, generate, stream and score."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack, overload

from regard.decoding.predictions import Prediction
from regard.predictor.base import BaseModel
from regard.predictor.inputs import (
    check_evaluation_mode,
    check_no_table,
    check_pair,
    check_text,
    is_pair,
    python_warning,
    question_inputs,
    text_list,
)
from regard.predictor.options import DecodingOptions, chosen_options, decoding_keywords
from regard.tasks.answer import Questions
from regard.tasks.chatting import chat_prompt, dropped_note, stream_reply
from regard.tasks.generate import Generate
from regard.tasks.task import Context, Task, Warn
from regard.tasks.translate import Translate
from regard.text.messages import Message


class WritingMethods(BaseModel):
    """The methods of `Model` that write text."""

    def _write(
        self, task: type[Task], single: bool, inputs: Sequence[Any], warn: Warn,
        n_best: int | None, options: DecodingOptions, **own: Any,
    ) -> Any:  # fmt: skip
        """The texts that a task writes, or n-best lists if n_best is not None."""
        predictions = self.run(task, inputs, warn, chosen_options(options, n_best), **own)
        results = [p.text if n_best is None else p.n_best for p in predictions]
        return results[0] if single else results

    @overload
    def translate(  # type: ignore[overload-overlap]
        self, text: str, *, prefix: str = ..., split: bool = ...,
        n_best: None = ..., warn: Warn = ...,
        **options: Unpack[DecodingOptions],
    ) -> str: ...  # fmt: skip
    @overload
    def translate(  # type: ignore[overload-overlap]
        self, text: str, *, prefix: str = ..., split: bool = ...,
        n_best: int, warn: Warn = ...,
        **options: Unpack[DecodingOptions],
    ) -> list[Prediction]: ...  # fmt: skip
    @overload
    def translate(
        self, text: Iterable[str], *, prefix: str = ..., split: bool = ...,
        n_best: None = ..., warn: Warn = ...,
        **options: Unpack[DecodingOptions],
    ) -> list[str]: ...  # fmt: skip
    @overload
    def translate(
        self, text: Iterable[str], *, prefix: str = ..., split: bool = ...,
        n_best: int, warn: Warn = ...,
        **options: Unpack[DecodingOptions],
    ) -> list[list[Prediction]]: ...  # fmt: skip
    @decoding_keywords
    def translate(
        self, text: str | Iterable[str], *, prefix: str = "", split: bool = True,
        n_best: int | None = None, warn: Warn = python_warning, **options: Unpack[DecodingOptions],
    ) -> str | list[str] | list[Prediction] | list[list[Prediction]]:  # fmt: skip
        """Translate a text, or each text of a list.

        Args:
            text: a string, or several strings.
            prefix: the text with which every translation begins.
            split: translate the sentences and lines of a text one by one, and join the translations
                with the spaces and line breaks of the text. False: translate each text as one
                sentence.
            n_best: return this many predictions, best first, instead of one string; at most `beam`
                of them, or this many samples with a temperature. No two of them have the same text:
                other finished hypotheses of the beam replace duplicates, and where there are no
                more, the list is shorter.
            warn: called with the index of a text that is too long, and a message about it. The
                default is a Python warning.
            **options: options of decoding, see `DecodingOptions`.

        Returns:
            A string for a string, a list of strings for a list. With n_best a list of `Prediction`
            for a string, a list of such lists for a list.

        Raises:
            InputError: the model was not trained to translate, or an argument is not valid.
        """
        texts = text_list(text)
        check_text(prefix)
        single = isinstance(text, str)
        return self._write(
            Translate, single, texts, warn, n_best, options, prefix=prefix, split=split
        )

    @overload
    def answer(  # type: ignore[overload-overlap]
        self, question: str, context: str, *, n_best: None = ..., warn: Warn = ...,
        **options: Unpack[DecodingOptions],
    ) -> str: ...  # fmt: skip
    @overload
    def answer(  # type: ignore[overload-overlap]
        self, question: str, context: str, *, n_best: int, warn: Warn = ...,
        **options: Unpack[DecodingOptions],
    ) -> list[Prediction]: ...  # fmt: skip
    @overload
    def answer(
        self, question: Iterable[str], context: str | Iterable[str], *, n_best: None = ...,
        warn: Warn = ..., **options: Unpack[DecodingOptions],
    ) -> list[str]: ...  # fmt: skip
    @overload
    def answer(
        self, question: Iterable[str], context: str | Iterable[str], *, n_best: int,
        warn: Warn = ..., **options: Unpack[DecodingOptions],
    ) -> list[list[Prediction]]: ...  # fmt: skip
    @decoding_keywords
    def answer(
        self, question: str | Iterable[str], context: str | Iterable[str], *,
        n_best: int | None = None, warn: Warn = python_warning, **options: Unpack[DecodingOptions],
    ) -> str | list[str] | list[Prediction] | list[list[Prediction]]:  # fmt: skip
        """Answer a question from its context, or each question of a list.

        Args:
            question: a string, or several strings.
            context: the text that contains the answer: one for all questions, or one for each.
            n_best: return this many predictions, best first, instead of one string; see
                `translate`.
            warn: called with the index of a question whose context is read in several windows, and
                a message about it. The default is a Python warning.
            **options: options of decoding, see `DecodingOptions`.

        Returns:
            A string for a string, a list of strings for a list. With n_best a list of `Prediction`
            for a string, a list of such lists for a list.

        Raises:
            InputError: the model was not trained to answer, or an argument is not valid.
        """
        inputs = question_inputs(question, context)
        return self._write(Questions, isinstance(question, str), inputs, warn, n_best, options)

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: str, *, until: str = ..., n_best: None = ..., warn: Warn = ...,
        **options: Unpack[DecodingOptions],
    ) -> str: ...  # fmt: skip
    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: str, *, until: str = ..., n_best: int, warn: Warn = ...,
        **options: Unpack[DecodingOptions],
    ) -> list[Prediction]: ...  # fmt: skip
    @overload
    def generate(
        self, prompt: Iterable[str], *, until: str = ..., n_best: None = ..., warn: Warn = ...,
        **options: Unpack[DecodingOptions],
    ) -> list[str]: ...  # fmt: skip
    @overload
    def generate(
        self, prompt: Iterable[str], *, until: str = ..., n_best: int, warn: Warn = ...,
        **options: Unpack[DecodingOptions],
    ) -> list[list[Prediction]]: ...  # fmt: skip
    @decoding_keywords
    def generate(
        self, prompt: str | Iterable[str], *, until: str = "", n_best: int | None = None,
        warn: Warn = python_warning, **options: Unpack[DecodingOptions],
    ) -> str | list[str] | list[Prediction] | list[list[Prediction]]:  # fmt: skip
        """Continue a prompt, or each prompt of a list.

        Args:
            prompt: a string, or several strings.
            until: stop before this text; empty: do not stop.
            n_best: return this many predictions, best first, instead of one string; see
                `translate`.
            warn: called with the index of a prompt that is too long, and a message about it. The
                default is a Python warning.
            **options: options of decoding, see `DecodingOptions`.

        Returns:
            The text after the prompt: a string for a string, a list of strings for a list. With
            n_best a list of `Prediction` for a string, a list of such lists for a list.

        Raises:
            InputError: the model was not trained to generate, or an argument is not valid.
        """
        texts = text_list(prompt)
        check_text(until)
        single = isinstance(prompt, str)
        return self._write(Generate, single, texts, warn, n_best, options, until=until)

    @decoding_keywords
    def stream(
        self, text: str, *, prefix: str = "", split: bool = True, warn: Warn = python_warning,
        **options: Unpack[DecodingOptions],
    ) -> Iterator[str]:  # fmt: skip
        """Translate a text, or continue a prompt, part by part.

        Args:
            text: the text or the prompt.
            prefix: the text with which the translation begins.
            split: translate the sentences of a text one by one; see `translate`.
            warn: called if the text is too long, with 0 and a message about it. The default is a
                Python warning.
            **options: options of decoding, see `DecodingOptions`.

        Returns:
            An iterator over the parts of the output, each as soon as it is final.

        Raises:
            InputError: the model does not write text, or an argument is not valid.
        """
        check_text(text, prefix)
        task = self.task if isinstance(self.task, Generate) else self.of(Translate)
        check_evaluation_mode(self.transformer)
        own: dict[str, Any] = {}
        if isinstance(task, Translate):
            own = {"prefix": prefix, "split": split}
        context = Context(self.decoding(chosen_options(options)), self.longest, warn)
        return task.stream_text(self.transformer, text, context, **own)

    @decoding_keywords
    def chat(
        self, messages: Sequence[Message], *, warn: Warn = python_warning,
        **options: Unpack[DecodingOptions],
    ) -> str:  # fmt: skip
        """Write the next turn of a conversation.

        Example:
            >>> model.chat([{"role": "user", "content": "What is the capital of France?"}])

        Args:
            messages: the conversation so far: objects with `role` (system, user or assistant) and
                `content`. The name of a special token in a message is ordinary text.
            warn: called with 0 and a message if the conversation is too long and its oldest
                messages are left out. By default, a Python warning is issued.
            **options: options of decoding, see `DecodingOptions`.

        Returns:
            The text of the next message, which has the role assistant.

        Raises:
            InputError: the model has no chat template, a message is not valid, the template refuses
                the conversation, or the last message is too long.
        """
        return "".join(self.stream_chat(messages, warn=warn, **options))

    @decoding_keywords
    def stream_chat(
        self, messages: Sequence[Message], *, warn: Warn = python_warning,
        **options: Unpack[DecodingOptions],
    ) -> Iterator[str]:  # fmt: skip
        """Write the next turn of a conversation as a stream of text parts.

        Args:
            messages: the conversation so far; see `chat`.
            warn: see `chat`.
            **options: options of decoding, see `DecodingOptions`.

        Returns:
            An iterator over the parts of the message, each as soon as it is final.

        Raises:
            InputError: see `chat`.
        """
        check_evaluation_mode(self.transformer)
        task, decoding = self.of(Generate), self.decoding(chosen_options(options))
        prompt = chat_prompt(task, messages, self.longest, decoding.max_length)
        if prompt.dropped:
            warn(0, dropped_note(prompt.dropped, self.longest))
        return stream_reply(self.transformer, prompt, decoding, task.tokenizer)

    @overload
    def score(self, pairs: tuple[str, str], *, warn: Warn = ...) -> Prediction: ...
    @overload
    def score(self, pairs: Iterable[tuple[str, str]], *, warn: Warn = ...) -> list[Prediction]: ...
    def score(
        self, pairs: tuple[str, str] | Iterable[tuple[str, str]], *, warn: Warn = python_warning
    ) -> Prediction | list[Prediction]:
        """Compute the log-probabilities of existing translations.

        A text that is longer than the model was trained on is scored as a whole, with a warning.

        Args:
            pairs: a (source, translation) tuple, or several of them.
            warn: called with the index of a pair that is too long, and a message about it. The
                default is a Python warning.

        Returns:
            A `Prediction` for a tuple, a list for a list. `Prediction.logprob` is the
            log-probability of the translation.

        Raises:
            InputError: the model was not trained to translate, or a pair is not valid.
        """
        check_no_table(pairs)
        single = is_pair(pairs)
        inputs: list[Any] = [pairs] if single else list(pairs)
        for pair in inputs:
            check_pair(pair)
        predictions = self.run(Translate, inputs, warn, score=True)
        return predictions[0] if single else predictions
