"""Golden values, which detect unintended changes of the model.

A seeded model of each preset and style on one fixed row: a few logits, their spread, and the
loss. `python tests/model/test_golden.py` rewrites the file after an intended change.
"""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from regard import ModelConfig, Packed, Transformer
from regard.config.model import PRESETS, STYLES

FILE = Path(__file__).with_name("golden.json")
CASES = {f"{preset} {style}": {"style": style} for preset in PRESETS for style in STYLES} | {
    "tiny pre-norm rotary": {"norm_first": True, "positions": "rotary"},
    "tiny rms swiglu window": {"norm": "rms", "activation": "swiglu", "bias": False, "window": 3},
    "tiny learned untied": {"positions": "learned", "tie_embeddings": "none"},
    "tiny encoder classifier": {"style": "encoder", "head": "classifier", "classes": 5},
    "tiny encoder pooling": {"style": "encoder", "head": "pooling"},
}


def compute(case: str) -> dict:
    """Outputs of the model for 3 fixed sequences; ids from a formula, weights from a seed."""
    config = ModelConfig.preset(case.split()[0], vocabulary_size=1000, **CASES[case])
    torch.manual_seed(1234)
    model = Transformer(config).eval()
    rows = [
        Packed.of([[(7 * i * i + 3 * b + side) % 1000 for i in range(4 + 5 * b)] for b in range(3)])
        if present
        else None
        for side, present in enumerate((config.has_encoder, config.has_decoder))
    ]
    with torch.no_grad():
        logits = model(*rows)
    labels = torch.arange(len(logits)) % logits.shape[1]
    picked = logits.flatten()[:: logits.numel() // 6][:6]
    return {
        "logits": [round(float(x), 5) for x in picked],
        "spread": round(float(logits.std()), 5),
        "loss": round(float(cross_entropy(logits, labels)), 5),
    }


@pytest.mark.parametrize("case", CASES)
def test_seeded_logits_and_loss_equal_golden_values(case):
    golden = json.loads(FILE.read_text())[case]
    now = compute(case)
    for key, expected in golden.items():
        # processors round differently; a change of the model is far larger
        torch.testing.assert_close(
            torch.tensor(now[key]), torch.tensor(expected), rtol=1e-3, atol=1e-3
        )


if __name__ == "__main__":
    FILE.write_text(json.dumps({case: compute(case) for case in CASES}, indent=1) + "\n")
