"""Programs that generate text with a Llama-style model from a GGUF file, one process each.

A request is (prompts, length): the token ids of the prompts, all of the same length, and the number
of new tokens of each output. The token that ends an output is disabled.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import torch

from benchmarks.interop_weights import read_model
from benchmarks.processes import Call, Prepare
from benchmarks.programs import begin, ctranslate2_model, share
from regard.config.sections import DecodingConfig
from regard.decoding.requests import Request
from regard.decoding.search import decode
from regard.predictor.loading import check_int8

Prompts = list[list[int]]
Outputs = list[list[int]]


def ours(file: str, dtype: str, threads: int, end: int, native: bool) -> Prepare:
    if not native:
        os.environ["REGARD_NATIVE"] = "off"
    begin(threads)
    model = read_model(Path(file)).transformer
    if dtype == "int8":
        model.precision = dtype
        check_int8(model)
    else:
        model.to(getattr(torch, dtype))

    def prepare(prompts: Prompts, length: int) -> Call:
        requests = [Request(source=prompt, limit=length, eos=end) for prompt in prompts]
        options = DecodingConfig(beam=1, min_length=length)
        return lambda: [result.token_ids for result in decode(model, requests, options)]

    return prepare


def hugging_face_model(file: str, dtype: str = "float32") -> Any:
    """Any, because the types of transformers reject `generate` of its own models."""
    from transformers import AutoModelForCausalLM

    path = Path(file)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
    return model.to(getattr(torch, dtype)).eval()


def hugging_face(file: str, dtype: str, threads: int, end: int) -> Prepare:
    begin(threads)
    from transformers import GenerationConfig

    model = hugging_face_model(file, dtype)

    def prepare(prompts: Prompts, length: int) -> Call:
        options = GenerationConfig(
            do_sample=False, use_cache=True, min_new_tokens=length, max_new_tokens=length,
            pad_token_id=end, eos_token_id=end,
        )  # fmt: skip

        @torch.inference_mode()
        def call() -> Outputs:
            tokens = torch.tensor(prompts)
            written = model.generate(
                tokens, attention_mask=torch.ones_like(tokens), generation_config=options
            )
            outputs: Outputs = written[:, tokens.shape[1] :].tolist()
            return outputs

        return call

    return prepare


def convert_to_ctranslate2(file: str, end: int, folder: Path) -> None:
    """Write the Hugging Face model for CTranslate2, with the ids as words."""
    from ctranslate2.converters.transformers import LlamaLoader

    model = hugging_face_model(file)
    config = model.config
    config.rope_theta = config.rope_parameters["rope_theta"]  # where the loader reads it
    config.rope_scaling = config.quantization_config = None
    with torch.no_grad():
        spec = LlamaLoader().get_model_spec(model)
    spec.register_vocabulary([str(i) for i in range(config.vocab_size)])
    spec.config.unk_token = spec.config.bos_token = "0"
    spec.config.eos_token = str(end)
    spec.config.layer_norm_epsilon = config.rms_norm_eps
    spec.validate()
    spec.optimize()
    folder.mkdir()
    spec.save(str(folder))


def ctranslate2(folder: str, dtype: str, threads: int, workers: int) -> Prepare:
    model = ctranslate2_model("Generator", folder, dtype, threads, workers)

    def prepare(prompts: Prompts, length: int) -> Call:
        words = [[str(token) for token in prompt] for prompt in prompts]

        def call() -> Outputs:
            results = model.generate_batch(
                words, beam_size=1, max_batch_size=share(len(words), workers),
                min_length=length, max_length=length, include_prompt_in_result=False,
            )  # fmt: skip
            return [list(map(int, result.sequences[0])) for result in results]

        return call

    return prepare


def llama_cpp(file: str, threads: int, end: int) -> Prepare:
    """The functions of the C library, so that one call decodes a token of all prompts. Keys and
    values are in float16, its default."""
    import llama_cpp as library

    library.llama_log_set(NO_LOG, ctypes.c_void_p(0))
    library.llama_backend_init()
    model = library.llama_model_load_from_file(file.encode(), library.llama_model_default_params())
    vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
    bias = (library.llama_logit_bias * 1)(library.llama_logit_bias(end, float("-inf")))
    sampler = library.llama_sampler_chain_init(library.llama_sampler_chain_default_params())
    for each in (
        library.llama_sampler_init_logit_bias(vocabulary, 1, bias),
        library.llama_sampler_init_greedy(),
    ):
        library.llama_sampler_chain_add(sampler, each)

    def prepare(prompts: Prompts, length: int) -> Call:
        rows, places = len(prompts), sum(map(len, prompts))
        params = library.llama_context_default_params()
        params.n_ctx = rows * (len(prompts[0]) + length)
        params.n_batch = params.n_ubatch = max(512, places)
        params.n_seq_max, params.n_threads, params.n_threads_batch = rows, threads, threads
        context = library.llama_init_from_model(model, params)
        if not context:
            raise SystemExit("llama.cpp cannot create a context")
        batch = library.llama_batch_init(places, 0, 1)

        def put(at: int, token: int, position: int, row: int, last: bool) -> None:
            batch.token[at], batch.pos[at] = token, position
            batch.n_seq_id[at], batch.seq_id[at][0], batch.logits[at] = 1, row, last

        def decode_batch(count: int) -> None:
            batch.n_tokens = count
            if library.llama_decode(context, batch):
                raise SystemExit("llama.cpp cannot decode")

        def call() -> Outputs:
            library.llama_memory_clear(library.llama_get_memory(context), True)
            at, chosen = 0, []
            for row, prompt in enumerate(prompts):
                for position, token in enumerate(prompt):
                    put(at, token, position, row, position + 1 == len(prompt))
                    at += 1
                chosen.append(at - 1)
            decode_batch(at)
            outputs: Outputs = [[] for _ in prompts]
            for step in range(length):
                for row, place in enumerate(chosen):
                    outputs[row].append(library.llama_sampler_sample(sampler, context, place))
                if step + 1 == length:
                    break
                chosen = list(range(rows))
                for row in chosen:
                    put(row, outputs[row][-1], len(prompts[row]) + step, row, True)
                decode_batch(rows)
            return outputs

        call.owner = Context(library, context, batch)  # type: ignore[attr-defined]
        return call

    return prepare


LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
NO_LOG = LogCallback(lambda level, text, data: None)


class Context:
    """Frees the memory of a llama.cpp context."""

    def __init__(self, library: Any, context: Any, batch: Any) -> None:
        self.library, self.context, self.batch = library, context, batch

    def __del__(self) -> None:
        self.library.llama_batch_free(self.batch)
        self.library.llama_free(self.context)


def wrong(outputs: Outputs, batch: int, length: int, end: int) -> str | None:
    """A description of what is wrong with the outputs, if anything."""
    lengths = [len(tokens) for tokens in outputs]
    ends = sum(token == end for tokens in outputs for token in tokens)
    if lengths != [length] * batch or ends:
        return (
            f"expected {batch} outputs of {length} tokens, got lengths {lengths} and "
            f"{ends} end tokens"
        )
    return None
