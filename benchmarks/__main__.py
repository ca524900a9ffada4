"""`python -m benchmarks NAME [options]`: run one benchmark."""

import sys
from importlib import import_module

from regard.errors import InputError

NAMES = {
    "step": "one training step beside torch.nn.Transformer and Hugging Face Marian",
    "train": "the trainer's own step on a GPU beside these two and Hugging Face GPT-2",
    "decode": "decoding beside Hugging Face generate and CTranslate2",
    "encoders": "BERT's shapes beside Hugging Face, CTranslate2 and ONNX Runtime",
    "generators": "GPT-2's shape beside Hugging Face generate and CTranslate2",
    "scaling": "how time and memory grow with length, batch, width and layers",
    "startup": "from the command to the first optimiser step",
    "answers": "from the command to the answer, with the models in the box",
    "precision": "what a lower precision costs in quality, on a trained model",
    "product": "few rows times a matrix, which is what a decoding step is made of",
    "memory": "the most memory that `regard translate` holds, short and long inputs",
    "search": "the search index: making it, and one query beside what the memory could give",
    "independence": "one model on the same lines in other batches: what differs?",
    "results": "write docs/results.md from finished runs",
    "performance": "write docs/performance.md from benchmarks/ratios.json",
    "configuration": "write docs/configuration.md from the dataclasses",
    "shown": "write below the commands of README.md and docs/tasks.md what they print",
}


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        print("python -m benchmarks NAME [--help]")
        for name, purpose in NAMES.items():
            print(f"  {name:13} {purpose}")
        return 0 if len(sys.argv) < 2 else 2
    try:
        code: int | None = import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:])
    except InputError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
