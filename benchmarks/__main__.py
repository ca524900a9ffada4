"""`python -m benchmarks NAME [options]`: run one benchmark."""

import sys
from importlib import import_module

NAMES = {
    "step": "one training step beside torch.nn.Transformer and Hugging Face Marian",
    "decode": "decoding beside Hugging Face generate and CTranslate2",
    "product": "few rows times a matrix, which is what a decoding step is made of",
    "memory": "the most memory that `regard translate` holds, short and long inputs",
    "search": "the search index: making it, and one query beside what the memory could give",
    "independence": "one model on the same lines in other batches: what differs?",
    "results": "write docs/results.md from finished runs",
}


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        print("python -m benchmarks NAME [--help]")
        for name, purpose in NAMES.items():
            print(f"  {name:13} {purpose}")
        return 0 if len(sys.argv) < 2 else 2
    import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
