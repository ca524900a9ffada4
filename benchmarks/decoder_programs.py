"""Programs that generate tokens: translators and language models, with one interface.

A request is (sources, beam, length): the token ids of the sources or prompts, and the number of
tokens of each output. The minimum length disables the end token in all steps.
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
Outputs = Sequence[Sequence[int | str]]  # the best hypothesis of each sentence


def ours(config: ModelConfig, dtype: str, device: str, threads: int, native: bool) -> Prepare:
    begin(threads)
    model = our_model(config, dtype, device, native)

    def prepare(sources: Sources, beam: int, length: int) -> Call:
        requests = [Request(source=source, limit=length) for source in sources]
        options = DecodingConfig(beam=beam, length_penalty=LENGTH_PENALTY, min_length=length)
        return lambda: [result.token_ids for result in decode(model, requests, options)]

    return prepare


def hugging_face_model(config: ModelConfig) -> Any:
    """Any, because the types of transformers reject `generate` of its own models."""
    from transformers import GPT2LMHeadModel, MarianMTModel

    if config.has_encoder:
        return MarianMTModel(marian_config(config, end=END, use_cache=True)).eval()
    return GPT2LMHeadModel(gpt2_config(config)).eval()


def gpt2_config(config: ModelConfig) -> GPT2Config:
    """The Hugging Face configuration for the sizes of a decoder."""
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
        # it warns of a penalty without a beam
        search = {"length_penalty": LENGTH_PENALTY, "early_stopping": False} if beam > 1 else {}
        options = GenerationConfig(
            num_beams=beam, do_sample=False, use_cache=True, min_new_tokens=length,
            max_new_tokens=length, pad_token_id=PAD, eos_token_id=END, **search, **starts,
        )  # fmt: skip

        @torch.inference_mode()
        def call() -> Outputs:
            tokens = torch.tensor(sources, device=device)
            mask = torch.ones_like(tokens)
            tokens_out: torch.Tensor = model.generate(
                tokens, attention_mask=mask, generation_config=options
            )
            before = 1 if config.has_encoder else tokens.shape[1]  # the output includes the prompt
            return tokens_out[:, before:].tolist()

        return call

    return prepare


def translator(folder: str, dtype: str, threads: int, workers: int) -> Prepare:
    model = ctranslate2_model("Translator", folder, dtype, threads, workers)

    def prepare(sources: Sources, beam: int, length: int) -> Call:
        words = [[str(token) for token in source] for source in sources]

        def call() -> Outputs:
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

        def call() -> Outputs:
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
    """Write the Hugging Face model for CTranslate2, with the ids as words. (The command of
    CTranslate2 needs a tokenizer, which a model with random weights does not have.)"""
    from ctranslate2.converters.transformers import GPT2Loader, MarianMTLoader

    words = [str(i) for i in range(config.vocabulary_size)]
    pad, start, end = str(PAD), str(START), str(END)
    loader = MarianMTLoader() if config.has_encoder else GPT2Loader()
    # A real Marian vocabulary ends with the padding token, which the loader removes. Ours does not,
    # and a smaller vocabulary would be less work.
    loader._remove_pad_weights = lambda spec: None
    torch.manual_seed(0)
    with torch.no_grad():
        spec = loader.get_model_spec(hugging_face_model(config))
    if config.has_encoder:
        spec.register_source_vocabulary(words)
        spec.register_target_vocabulary(words)
        # As in Marian, the decoder starts from a zero vector, independent of the start token.
        spec.config.decoder_start_token = end
    else:
        spec.register_vocabulary(words)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = pad, start, end
    spec.validate()
    spec.optimize()
    spec.save(str(folder))


def wrong(outputs: Outputs, batch: int, length: int) -> str | None:
    """Say what is wrong with the outputs, if anything."""
    lengths = [len(tokens) for tokens in outputs]
    ends = sum(int(token) == END for tokens in outputs for token in tokens)
    if lengths != [length] * batch or ends:
        return (
            f"expected {batch} outputs of {length} tokens, got lengths {lengths} and "
            f"{ends} end tokens"
        )
    return None
