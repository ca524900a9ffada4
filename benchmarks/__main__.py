"""`python -m benchmarks NAME [options]`: run one benchmark."""

import sys

from benchmarks.commands import run_command

PURPOSE = "Measure speed and memory next to a peer in the same run."
COMMANDS = {
    "step": "one training step, compared with torch.nn.Transformer and Hugging Face Marian",
    "train": "a trainer step on a GPU, compared with the same peers and Hugging Face GPT-2",
    "decode": "translation, compared with Hugging Face generate and CTranslate2",
    "encoders": "BERT shapes, compared with Hugging Face, CTranslate2 and ONNX Runtime",
    "generators": "GPT-2 shape, compared with Hugging Face generate and CTranslate2",
    "chat": "a small pretrained Llama, compared with llama.cpp, Hugging Face and CTranslate2",
    "embed": "a pretrained sentence encoder, compared with sentence-transformers and ONNX Runtime",
    "scaling": "growth of time and memory with length, batch, width and layers",
    "startup": "time from the command to the first optimiser step",
    "latency": "time from the command to the output, with the shipped models",
    "precision": "quality of a trained model at lower precision",
    "product": "matrix products with few rows, as in a decoding step",
    "memory": "peak memory of `regard translate` for short and long inputs",
    "search": "building and querying the search index, compared with the memory bandwidth",
    "serve": "an HTTP service under load, compared with CTranslate2 and Hugging Face generate",
    "overload": "an HTTP service at four times its capacity",
    "independence": "differences between outputs of the same lines in different batches",
}

if __name__ == "__main__":
    sys.exit(run_command("benchmarks", PURPOSE, COMMANDS))
