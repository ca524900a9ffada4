"""--dtype int8: only matrix products use int8."""

import pytest
import torch

import regard
from regard import InputError
from regard.ops.cpu import build as native


@pytest.mark.skipif(native.library("inference") is None, reason="needs a C++ compiler")
def test_int8_differs_little_from_float32(folder, texts):
    exact, rounded = (regard.load(folder, "cpu", dtype) for dtype in ("float32", "int8"))
    assert rounded.transformer.output_matrix().dtype == torch.float32
    predictions = [model.predict(texts, beam=1) for model in (exact, rounded)]
    differences = [
        abs(a.logprobs[0] - b.logprobs[0]) for a, b in zip(*predictions, strict=True) if a.token_ids
    ]
    assert 0 < max(differences) < 0.2
    # A full pass uses the rounded weights as well, although its products are float32.
    pairs = [(text, "The dog slept.") for text in texts]
    scores = [torch.tensor([a.score for a in model.score(pairs)]) for model in (exact, rounded)]
    assert 0 < (scores[0] - scores[1]).abs().max() < 0.2


def test_int8_without_native_code_is_refused_in_one_line(folder, verb, monkeypatch):
    monkeypatch.setenv("REGARD_NATIVE", "off")
    code, out, err = verb("translate", folder, "--dtype", "int8", stdin=["The dog slept."])
    assert (code, out) == (2, "")
    assert "dtype=int8 needs native code" in err
    assert err.count("\n") == 1
    with pytest.raises(InputError, match="install a C\\+\\+ compiler"):
        regard.load(folder, "cpu", "int8")
