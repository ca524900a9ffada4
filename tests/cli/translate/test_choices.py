"""Options of `regard translate`: their effects, and combinations that are refused."""

import io
import sys

import pytest

from regard import InputError
from regard.tasks.common import one_line

MODES = [
    {"beam": 4},
    {"beam": 1},
    {"beam": 3, "n_best": 2, "no_repeat": 2},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 2.0, "top_k": 8, "n_best": 2},
]


def printed(outputs):
    texts = [outputs] if isinstance(outputs, str) else outputs
    return "".join(one_line(text) + "\n" for text in texts)


def test_options_of_the_command_replace_those_of_the_model(folder, translator, texts, verb):
    text = texts[2]
    own = verb("translate", folder, text)
    assert own == verb("translate", folder, text, beam=4, max_length=6)
    output = translator.predict(text, beam=1, min_length=99)
    assert output.stopped == "length"
    assert len(output.token_ids) == len(translator.task.source.encode(text)) + 1 + 6  # 1: <eos>
    greedy = 0, printed(translator.translate(text, beam=1)), ""
    assert greedy != own
    assert verb("translate", folder, "--set", "decoding.beam=1", text) == greedy


def test_seed_determines_the_samples(folder, translator, texts, verb):
    def sampled(**options):
        code, out, err = verb("translate", folder, *texts, temperature=1, **options)
        assert (code, err) == (0, "")
        return out

    assert sampled(seed=7) == sampled(seed=7)
    assert sampled(seed=7) != sampled(seed=8)
    assert sampled() == sampled(seed=1) == sampled(beam=1)  # sampling has no beam
    assert sampled(top_k=1) == printed(translator.translate(texts, beam=1))
    assert translator.decoding({"temperature": 1.0}).beam == 1
    assert translator.decoding({"temperature": 0.0}).beam == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--beam 4 --temperature 1", "decoding.temperature=1.0 and decoding.beam=4 cannot be"),
        ("--top-k 5", "decoding.top_k=5 and decoding.temperature=0 cannot be combined"),
        ("--top-p 0.5", "decoding.top_p=0.5 and decoding.temperature=0 cannot be combined"),
        ("--n-best 9 --beam 4", "decoding.n_best=9 needs a beam of at least 9"),
        ("--n-best 5", "decoding.n_best=5 needs a beam of at least 5"),
        ("--stream --json", "--stream and --json cannot be combined"),
        ("--stream --score", "--stream and --score cannot be combined"),
        ("--history", "--history needs --json"),
        ("--attention", "--attention needs --json"),
        ("--alternatives 2", "--alternatives needs --json"),
        ("--json --alternatives -1", "alternatives must be at least 0, not -1"),
        ("--set decoding.baem=2", "'decoding.baem'; did you mean 'decoding.beam'?"),
        ("--set decoding.beam", "write it as section.key=value"),
        (
            "--set model.heads=2",
            "--set model.heads: only options of the section decoding can be set here",
        ),
        ("--set decoding.beam=2.5", "decoding.beam must be an integer, not 2.5"),
        ("--set decoding.beam=null", "decoding.beam must be an integer, not None"),
        ("--beam 2.5", "--beam must be an integer, not '2.5'"),
        ("--beam 0", "decoding.beam must be at least 1, not 0"),
        ("--beam -1", "decoding.beam must be at least 1, not -1"),
        ("--beam 1001", "decoding.beam must be at most 1,000, not 1001"),
        ("--max-length 0", "decoding.max_length must be at least 1, not 0"),
        ("--max-length 100001", "decoding.max_length must be at most 100,000"),
        ("--min-length -1", "decoding.min_length must be at least 0, not -1"),
        ("--no-repeat -1", "decoding.no_repeat must be at least 0, not -1"),
        ("--seed -1", "decoding.seed must be at least 0, not -1"),
        ("--temperature nan", "decoding.temperature must be a finite number, not nan"),
        ("--temperature inf", "decoding.temperature must be a finite number, not inf"),
        ("--length-penalty nan", "decoding.length_penalty must be a finite number, not nan"),
        ("--length-penalty -1", "decoding.length_penalty must be at least 0, not -1.0"),
        ("--temperature 1 --top-p nan", "decoding.top_p must be a finite number, not nan"),
        ("--temperature 1 --top-p 0", "decoding.top_p must be above 0, not 0.0"),
        ("--temperature 1 --top-k -2", "decoding.top_k must be at least 0, not -2"),
        ("--dtype float16", "--dtype must be auto, float32, bfloat16 or int8, not 'float16'"),
        ("--model /nowhere", "/nowhere: no such folder (expected a model folder or box:NAME)"),
    ],
)
def test_invalid_option_prints_one_line_and_no_translation(options, message, folder, verb):
    code, out, err = verb("translate", folder, *options.split(), stdin=["The dog slept."])
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("regard: ")
    assert err.count("\n") == 1


def test_python_raises_the_same_errors(translator):
    with pytest.raises(InputError, match="'decoding.baem'; did you mean 'decoding.beam'?"):
        translator.translate("The dog slept.", baem=2)
    for call in (translator.translate, translator.stream):
        with pytest.raises(
            InputError, match="decoding.top_k=5 and decoding.temperature=0 cannot be"
        ):
            call("The dog slept.", top_k=5)
    with pytest.raises(InputError, match="lone surrogate"):
        translator.translate("caf\udce9")


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("which", ["folder", "byte_folder"])
def test_every_translation_begins_with_the_prefix(which, mode, texts, verb, request):
    prefix, stdin = "Süß 日", [*(text for text in texts if text.strip()), " "]
    folder = request.getfixturevalue(which)
    code, out, err = verb("translate", folder, stdin=stdin, prefix=prefix, max_length=20, **mode)
    assert (code, err) == (0, "")
    *rows, blank, end = out.split("\n")
    assert (blank, end) == ("", "")  # a blank text has no translation
    assert len(rows) == len(stdin) - 1
    for row in rows:
        assert len(row.split("\t")) == mode.get("n_best", 1)
        assert all(output.startswith(prefix) for output in row.split("\t"))
        assert len(row) > len(prefix)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("which", ["", "byte_"])
def test_streamed_parts_join_to_the_translation(which, mode, texts, long_text, verb, request):
    folder = request.getfixturevalue(which + "folder")
    translator = request.getfixturevalue(which + "translator")
    stdin = [*texts, long_text]
    with pytest.warns(UserWarning, match="text 7 is longer"):
        outputs = [prediction.text for prediction in translator.predict(stdin, **mode)]
    for text, output in zip(stdin, outputs, strict=True):
        quiet = {"warn": lambda number, message: None}
        assert "".join(translator.stream(text, **quiet, **mode)) == output
    if "n_best" not in mode:  # the command refuses to stream several outputs
        code, out, _ = verb("translate", folder, "--stream", stdin=stdin, **mode)
        assert (code, out) == (0, printed(outputs))


@pytest.mark.parametrize("mode", [{"beam": 1}, {"temperature": 1}], ids=str)
def test_stream_prints_parts_before_the_line_ends(
    mode, folder, translator, texts, verb, monkeypatch
):
    class Screen(io.StringIO):
        def flush(self):
            flushed.append(self.getvalue())

    flushed = []
    monkeypatch.setattr(sys, "stdout", Screen())
    verb("translate", folder, "--stream", texts[0], **mode)
    assert flushed[-1] == printed(translator.translate(texts[0], **mode))
    before = {text for text in flushed if text and not text.endswith("\n")}
    assert len(before) > 5
    assert all(flushed[-1].startswith(text) for text in before)
