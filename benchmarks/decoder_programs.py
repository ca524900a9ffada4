"""Programs that write tokens: translators and language models, one interface for both.

A request is (sources, beam, length): token ids of the sources or prompts, and how many tokens each
answer must have. No program may write the end token: the least length keeps it out of all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.compare import OURS
from benchmarks.processes import Call, Make, Prepare
from benchmarks.programs import END, PAD, START, begin, ctranslate2_model, our_model, share
from benchmarks.step import marian_config
from regard import ModelConfig
from regard.config.sections import DecodingConfig
from regard.decoding.requests import Request
from regard.decoding.search import decode

if TYPE_CHECKING:
    from transformers import GPT2Config

LENGTH_PENALTY = 0.6

Sources = list[list[int]]
Answers = Sequence[Sequence[int | str]]  # the best of each sentence


def ours(config: ModelConfig, dtype: str, device: str, threads: int, native: bool) -> Prepare:
    begin(threads)
    model = our_model(config, dtype, device, native)

    def prepare(sources: Sources, beam: int, length: int) -> Call:
        requests = [Request(source=source, limit=length) for source in sources]
        options = DecodingConfig(beam=beam, length_penalty=LENGTH_PENALTY, min_length=length)
        return lambda: [answer.tokens for answer in decode(model, requests, options)]

    return prepare


def hugging_face_model(config: ModelConfig) -> Any:
    """Any: the types of transformers refuse `generate` of its own models."""
    from transformers import GPT2LMHeadModel, MarianMTModel

    if config.has_encoder:
        return MarianMTModel(marian_config(config, end=END, use_cache=True)).eval()
    return GPT2LMHeadModel(gpt2_config(config)).eval()


def gpt2_config(config: ModelConfig) -> GPT2Config:
    """Hugging Face's words for the sizes of a decoder of ours."""
    from transformers import GPT2Config

    c = config
    return GPT2Config(
        vocab_size=c.vocabulary_size, n_positions=c.max_length, n_embd=c.d_model,
        n_layer=c.decoder_layers, n_head=c.heads, n_inner=c.d_ff, activation_function=c.activation,
        resid_pdrop=c.dropout, embd_pdrop=c.dropout, attn_pdrop=c.attention_dropout,
        bos_token_id=START, eos_token_id=END, pad_token_id=PAD,
    )  # fmt: skip


def hugging_face(config: ModelConfig, dtype: str, device: str, threads: int) -> Prepare:
    begin(threads)
    from transformers import GenerationConfig

    model = hugging_face_model(config).to(device, getattr(torch, dtype))
    starts = {"decoder_start_token_id": PAD} if config.has_encoder else {}

    def prepare(sources: Sources, beam: int, length: int) -> Call:
        # it warns of a penalty where there is no beam
        search = {"length_penalty": LENGTH_PENALTY, "early_stopping": False} if beam > 1 else {}
        options = GenerationConfig(
            num_beams=beam, do_sample=False, use_cache=True, min_new_tokens=length,
            max_new_tokens=length, pad_token_id=PAD, eos_token_id=END, **search, **starts,
        )  # fmt: skip

        @torch.inference_mode()
        def call() -> Answers:
            tokens = torch.tensor(sources, device=device)
            mask = torch.ones_like(tokens)
            answers: torch.Tensor = model.generate(
                tokens, attention_mask=mask, generation_config=options
            )
            before = 1 if config.has_encoder else tokens.shape[1]  # what was read comes back, too
            return answers[:, before:].tolist()

        return call

    return prepare


def translator(folder: str, dtype: str, threads: int, workers: int) -> Prepare:
    model = ctranslate2_model("Translator", folder, dtype, threads, workers)

    def prepare(sources: Sources, beam: int, length: int) -> Call:
        words = [[str(token) for token in source] for source in sources]

        def call() -> Answers:
            results = model.translate_batch(
                words, beam_size=beam, length_penalty=LENGTH_PENALTY,
                max_batch_size=share(len(words), workers),
                min_decoding_length=length, max_decoding_length=length,
            )  # fmt: skip
            return [result.hypotheses[0] for result in results]

        return call

    return prepare


def generator(folder: str, dtype: str, threads: int, workers: int) -> Prepare:
    model = ctranslate2_model("Generator", folder, dtype, threads, workers)

    def prepare(sources: Sources, beam: int, length: int) -> Call:
        words = [[str(token) for token in source] for source in sources]

        def call() -> Answers:
            results = model.generate_batch(
                words, beam_size=beam, max_batch_size=share(len(words), workers),
                min_length=length, max_length=length, include_prompt_in_result=False,
            )  # fmt: skip
            return [result.sequences[0] for result in results]

        return call

    return prepare


TRANSLATORS: dict[str, Make] = {
    OURS: ours, "huggingface": hugging_face, "ctranslate2": translator,
}  # fmt: skip
GENERATORS: dict[str, Make] = TRANSLATORS | {"ctranslate2": generator}


def convert(config: ModelConfig, folder: Path) -> None:
    """Write Hugging Face's model for CTranslate2, with the ids themselves as words. (CTranslate2's
    own command needs a tokenizer: random weights have none.)"""
    from ctranslate2.converters.transformers import GPT2Loader, MarianMTLoader

    words = [str(i) for i in range(config.vocabulary_size)]
    pad, start, end = str(PAD), str(START), str(END)
    loader = MarianMTLoader() if config.has_encoder else GPT2Loader()
    # A real Marian ends its vocabulary with the padding, which the loader cuts off; ours does
    # not, and a vocabulary that is smaller by one would be less work.
    loader._remove_pad_weights = lambda spec: None
    torch.manual_seed(0)
    with torch.no_grad():
        spec = loader.get_model_spec(hugging_face_model(config))
    if config.has_encoder:
        spec.register_source_vocabulary(words)
        spec.register_target_vocabulary(words)
        # The decoder starts from a zero vector whatever its start token, as Marian does.
        spec.config.decoder_start_token = end
    else:
        spec.register_vocabulary(words)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = pad, start, end
    spec.validate()
    spec.optimize()
    spec.save(str(folder))


def wrong(answers: Answers, batch: int, length: int) -> str | None:
    """Refuse to compare different work."""
    lengths = [len(answer) for answer in answers]
    ends = sum(int(token) == END for answer in answers for token in answer)
    if lengths != [length] * batch or ends:
        return (
            f"{batch} answers of {length} tokens were asked for, there are lengths {lengths} and "
            f"{ends} end tokens"
        )
    return None
