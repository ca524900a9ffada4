"""`regard demo` from end to end with few steps: the test checks its report, not its quality."""

import pytest

from regard import InputError
from regard.cli import demo
from regard.tasks.builtin import OPTIONS


def test_demo_trains_translates_reports_and_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    short = {"steps": 12, "validate_every": 12, "checkpoint_every": 12, "average": 1}
    monkeypatch.setitem(OPTIONS, "training", short)
    monkeypatch.setitem(OPTIONS, "data", {"vocabulary_size": 400})
    small = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "heads": 2, "d_ff": 32}
    monkeypatch.setitem(OPTIONS, "model", small)
    scores = demo.run_demo(tmp_path / "demo", quiet=True)
    printed = " ".join(capsys.readouterr().out.split())
    assert scores["sentences"] == 500
    assert 0 <= scores["pronouns"] <= 1
    assert f"sacreBLEU {scores['bleu']:.2f} on 500 held-out sentences" in printed
    assert "The animal didn't cross" in printed
    assert "Next steps" in printed
    for name in ("run/model.safetensors", "run/curves.png", "pronoun.png", "pronoun.svg"):
        assert (tmp_path / "demo" / name).stat().st_size > 1000
    head = scores["pronoun_head"]
    (tired, wide), animal, street = head["weights"], 0, 1
    assert head["margin"] == min(tired[animal] - tired[street], wide[street] - wide[animal])
    assert f"head {head['head']} of layer {head['layer']} of" in printed
    for phrase in (f"{tired[animal]:.2f}, ", f" {wide[street]:.2f}"):
        assert phrase in printed
    demo.run_demo(tmp_path / "demo", quiet=True)  # a second one replaces the first


def test_demo_refuses_a_folder_that_it_did_not_create(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="exists and was not created by regard demo"):
        demo.run_demo(tmp_path, quiet=True)
    assert (tmp_path / "thesis.txt").exists()
