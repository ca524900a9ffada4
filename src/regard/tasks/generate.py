"""generate: a decoder that says what comes next, of text or of dialogue (one turn a line).

An example is a window of a document: at each place the token that follows. The first window begins
behind <bos>, a later one behind the token before it, and <eos> ends the document.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from regard.config.sections import Config, DecodingConfig
from regard.decoding.answers import Answer
from regard.decoding.requests import SCORED_TOKENS, Request, by_size
from regard.decoding.score import score
from regard.decoding.search import decode
from regard.model.transformer import Transformer
from regard.tasks.documents import Documents
from regard.tasks.sequences import stream
from regard.tasks.task import Evaluation, Ids, packed
from regard.text.corpus import Document
from regard.text.store import Store
from regard.text.tokenizer import Tokenizer
from regard.training.losses import Batch
from regard.training.progress import perplexity


class Generate(Documents):
    name = "generate"
    better = "loss"
    ends, before = 1, 0

    def batch(self, store: Store, examples: Ids, device: torch.device, seed: int = 0) -> Batch:
        read, said = [], []
        for document, start, length in zip(*self.chosen(store, examples, seed), strict=True):
            ids = store.tokens(0, int(document))
            before = ids[start - 1] if start else Tokenizer.bos
            read.append(np.concatenate([[before], ids[start : start + length - 1]]))
            said.append(ids[start : start + length])
        labels = torch.from_numpy(np.concatenate(said).astype(np.int64))
        return Batch(None, packed(read, device), labels.to(device, non_blocking=True))

    # ---- use ----------------------------------------------------------------------------

    def answer(
        self,
        model: Transformer,
        prompts: Sequence[str],
        options: DecodingConfig,
        longest: int,
        until: str = "",
    ) -> list[Answer]:
        """What follows each prompt. A prompt of more than `longest` tokens is read from its end;
        the answer stops before `until`, where that is given."""
        requests = [self.request(prompt, longest) for prompt in prompts]
        answers = decode(model, requests, options)
        for answer in answers:
            for one in (answer, *answer.others):
                one.text = self.tokenizer.decode(one.tokens)
                if until and until in one.text:
                    self.cut(one, until)
        return answers

    def cut(self, answer: Answer, until: str) -> None:
        """End an answer with the token in which a text begins that it is to stop before."""
        answer.text = answer.text.partition(until)[0]
        counts = range(1, len(answer.tokens) + 1)
        told = next(n for n in counts if until in self.tokenizer.decode(answer.tokens[:n]))
        answer.tokens, answer.logprobs = answer.tokens[:told], answer.logprobs[:told]
        answer.score, answer.stopped = sum(answer.logprobs), "until"

    def request(self, prompt: str, longest: int) -> Request:
        ids = self.tokenizer.encode(prompt)
        return Request([Tokenizer.bos, *ids] if len(ids) < longest else ids[-longest:])

    def is_cut(self, source: Sequence[int]) -> bool:
        """Whether only the end of a prompt is read."""
        return source[0] != Tokenizer.bos

    def stream(
        self, model: Transformer, prompt: str, options: DecodingConfig, longest: int
    ) -> Iterator[str]:
        return stream(model, self.request(prompt, longest), options, self.tokenizer)

    def evaluate(
        self,
        model: Transformer,
        examples: Sequence[Document],
        config: Config,
        decoding: DecodingConfig,
    ) -> Evaluation:
        """Perplexity of the tokens, <eos> included, and bits for each byte of the text, which can
        be compared between vocabularies. Every window is read by itself."""
        requests, said = [], []
        texts = self.tokenizer.encode_batch([text for _, text in examples])
        for ids in ([*one, Tokenizer.eos] for one in texts):
            for start in range(0, len(ids), self.longest):
                requests.append(Request([ids[start - 1] if start else Tokenizer.bos]))
                said.append(ids[start : start + self.longest])
        likelihood = np.zeros(len(said))
        # In batches, to save memory: only the sum of each window's log-probabilities is kept.
        for batch in by_size([1 + len(ids) for ids in said], SCORED_TOKENS):
            scored = score(model, [requests[i] for i in batch], [said[i] for i in batch])
            likelihood[batch] = [-sum(one.logprobs) for one in scored]
        tokens = np.array([len(ids) for ids in said])
        size = np.array([self.tokenizer.sizes[ids].sum() for ids in said])

        def loss(chosen: Ids) -> float:
            return float(likelihood[chosen].sum() / tokens[chosen].sum())

        metrics = {
            "loss": loss,
            "perplexity": lambda chosen: perplexity(loss(chosen)),
            "bits_per_byte": lambda chosen: float(
                likelihood[chosen].sum() / math.log(2) / max(1, size[chosen].sum())
            ),
        }
        whole = np.arange(len(said))
        scores = {name: round(metric(whole), 4) for name, metric in metrics.items()}
        scores |= {"tokens": int(tokens.sum()), "bytes": int(size.sum())}
        return Evaluation(scores, metrics, len(said))

    def from_loss(self, loss: float, store: Store) -> dict[str, Any]:
        """What a validation says, from the loss alone."""
        tokens = int(store.lengths[0].sum())
        size = sum(int(self.tokenizer.sizes[store.tokens(0, i)].sum()) for i in range(len(store)))
        bits = loss * tokens / math.log(2) / max(1, size)
        return {"perplexity": perplexity(loss), "bits_per_byte": round(bits, 4)}
