"""The task generate: a decoder predicts the next token of a text or conversation.

An example is a window of a document, and each position predicts the next token. The input of the
first window begins with <bos>, that of a later window with the last token before it. The document
ends with <eos>. conversations.py trains on conversations; chatting.py continues them.
"""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from regard.config.sections import Config
from regard.errors import InputError
from regard.tasks.common import check_stream, exclude, fields_of, n_best, one_line, refuse_nan
from regard.tasks.conversations import Conversations
from regard.tasks.documents import perplexity
from regard.tasks.lazy import np, runtime, torch
from regard.tasks.sequences import stream
from regard.tasks.task import Context, Evaluation, Ids, Option

if TYPE_CHECKING:
    from regard.tasks.runtime import (
        Batch,
        DecodingPlan,
        Prediction,
        Request,
        Store,
        Transformer,
    )


class Generate(Conversations):
    """Continuation of a prompt."""

    name = "generate"
    files = "text or conversations"
    help = "Continue a prompt, or each line of standard input."
    doing = "writing"
    input_name = "PROMPT"
    styles = ("decoder",)
    defaults: ClassVar = {
        "model": {"style": "decoder"},
        "training": {"label_smoothing": 0.0},
        "decoding": {"beam": 1, "temperature": 0.8, "max_length": 200},
    }
    config_options = ("data.documents", "data.dialogue")
    options = (
        Option("stream", "print text as soon as it is decoded", argument=False),
        Option(
            "until",
            r"stop before this text; '\n' stops at the end of a line or dialogue turn",
            str,
            "",
            "TEXT",
        ),
    )
    decodes = True
    continues = True
    ends = 1

    def batch(self, store: Store, examples: Ids, device: torch.device, seed: int = 0) -> Batch:
        if store.sides > 1:
            return self.masked_batch(store, self.chosen(store, examples, seed), device)
        inputs, targets = [], []
        for document, start, length in zip(*self.chosen(store, examples, seed), strict=True):
            ids = store.tokens(0, int(document))
            before = ids[start - 1] if start else self.tokenizer.first_read
            inputs.append(np.concatenate([[before], ids[start : start + length - 1]]))
            targets.append(ids[start : start + length])
        labels = torch.from_numpy(np.concatenate(targets).astype(np.int64))
        return runtime.Batch(
            None, runtime.packed(inputs, device), labels.to(device, non_blocking=True)
        )

    def from_loss(self, loss: float, store: Store) -> dict[str, Any]:
        tokens, size = self.learned_tokens(store)
        bits = loss * tokens / math.log(2) / max(1, size)
        return {"perplexity": perplexity(loss), "bits_per_byte": round(bits, 4)}

    def evaluate(self, model: Transformer, examples: Sequence[Any], config: Config) -> Evaluation:
        """Compute the perplexity of the tokens, including <eos>, and the bits per byte of the text,
        which are comparable between vocabularies. Each window is evaluated separately. In a
        conversation, only the assistant turns count."""
        rows = self.encode_examples(examples)
        if not rows:
            raise InputError(f"all conversations are longer than {self.longest} tokens")
        requests, targets, learned = [], [], []
        for row in rows:
            mask = row.mask
            for start in range(0, len(row.ids) - 1, self.longest):
                end = start + 1 + self.longest
                requests.append(runtime.Request([row.ids[start]]))
                targets.append(row.ids[start + 1 : end])
                learned.append(np.array(mask[start + 1 : end]))
        likelihood = np.zeros(len(targets))
        # Batches save memory: only the sum of the log-probabilities of each window is stored.
        for batch in runtime.by_size([1 + len(ids) for ids in targets], runtime.SCORED_TOKENS):
            scored = runtime.score(model, [requests[i] for i in batch], [targets[i] for i in batch])
            likelihood[batch] = [
                -np.array(window.logprobs)[learned[i]].sum()
                for i, window in zip(batch, scored, strict=True)
            ]
        tokens = np.array([mask.sum() for mask in learned])
        size = np.array([
            self.tokenizer.sizes[np.array(ids)[mask]].sum()
            for ids, mask in zip(targets, learned, strict=True)
        ])  # fmt: skip

        def loss(chosen: Ids) -> float:
            return float(likelihood[chosen].sum() / tokens[chosen].sum())

        metrics = {
            "loss": loss,
            "perplexity": lambda chosen: perplexity(loss(chosen)),
            "bits_per_byte": lambda chosen: float(
                likelihood[chosen].sum() / math.log(2) / max(1, size[chosen].sum())
            ),
        }
        scores = runtime.scores_of(metrics, len(targets))
        scores |= {"tokens": int(tokens.sum()), "bytes": int(size.sum())}
        return Evaluation(scores, metrics, len(targets))

    def request(self, prompt: str, longest: int) -> Request:
        """Create the decoding request for the last `longest` tokens of a prompt."""
        return self.request_of(self.tokenizer.encode(prompt), longest)

    def request_of(self, ids: Sequence[int], longest: int) -> Request:
        """`request` for the token ids of a prompt."""
        tokenizer = self.tokenizer
        return runtime.Request(tokenizer.prompt(ids, longest), bos=tokenizer.bos, eos=tokenizer.eos)

    def predict(
        self, model: Transformer, inputs: Sequence[str], context: Context, until: str = ""
    ) -> list[Prediction]:
        """Continue each prompt. A completion ends before the text `until`, unless it is empty. The
        model reads only the end of a prompt that is too long."""
        return self.plan(inputs, context, until).run(model)

    def plan(self, inputs: Sequence[str], context: Context, until: str = "") -> DecodingPlan:
        prompts = self.tokenizer.encode_batch(list(inputs))
        requests = [self.request_of(ids, context.longest) for ids in prompts]

        def finish(completions: list[Prediction]) -> list[Prediction]:
            for output in (output for result in completions for output in result.n_best if until):
                self.cut(output, until)
            refuse_nan(completion.score for completion in completions)
            for i, prompt in enumerate(prompts):
                self.warn_cut(i, prompt, context)
            return completions

        return runtime.DecodingPlan(
            requests, context.decoding, (self.tokenizer, self.tokenizer), finish,
            clean=lambda text: text.partition(until)[0] if until else text, continues=True,
        )  # fmt: skip

    def cut(self, completion: Prediction, until: str) -> None:
        """Remove the tokens of a completion after the first occurrence of the text `until`."""
        counts = range(1, len(completion.token_ids) + 1)
        if until not in self.tokenizer.decode(completion.token_ids):
            return
        count = next(n for n in counts if until in self.tokenizer.decode(completion.token_ids[:n]))
        completion.token_ids = completion.token_ids[:count]
        completion.logprobs = completion.logprobs[:count]
        completion.score, completion.stopped = sum(completion.logprobs), "until"

    def warn_cut(self, i: int, ids: Sequence[int], context: Context) -> None:
        """Warn if the model reads only the end of a prompt, which has these token ids."""
        if len(self.tokenizer.prompt(ids, sys.maxsize)) > context.longest:
            context.warn_long(i, "only its end was read")

    def stream_text(self, model: Transformer, text: str, context: Context) -> Iterator[str]:
        ids = self.tokenizer.encode(text)
        self.warn_cut(0, ids, context)
        request = self.request_of(ids, context.longest)
        return stream(model, request, context.decoding, self.tokenizer, continues=True)

    @classmethod
    def check_options(cls, options: Namespace) -> None:
        exclude(options, "stream", "json", "until")
        check_stream(options)
        options.until = options.until.replace("\\n", "\n")

    def line(self, text: str, prediction: Prediction, options: Namespace) -> str:
        """Format prompt and completion: unchanged for a prompt on the command line, as one line for
        a line of standard input."""
        outputs = [text + output.text for output in prediction.n_best]
        return "\n\n".join(outputs) if options.texts else "\t".join(map(one_line, outputs))

    def to_json(self, text: str, prediction: Prediction, options: Namespace) -> dict[str, Any]:
        fields = {"prompt": text, "text": prediction.text} | fields_of(prediction, self.tokenizer)
        return fields | (n_best(prediction, self.tokenizer, "text") if prediction.others else {})
