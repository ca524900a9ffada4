"""A Python warning names the line of the calling program, for every task."""

import pytest

LONG = "The dog slept in the garden " * 40
CALLS = {
    "translate": ("translate", lambda model, file: model.translate(LONG)),
    "predict": ("translate", lambda model, file: model.predict(LONG)),
    "stream": ("translate", lambda model, file: model.stream(LONG)),
    "score": ("translate", lambda model, file: model.score([(LONG, "Der Hund.")])),
    "answer": ("answer", lambda model, file: model.answer("Where is it?", LONG)),
    "generate": ("generate", lambda model, file: model.generate(LONG)),
    "classify": ("classify", lambda model, file: model.classify(LONG)),
    "embed": ("embed", lambda model, file: model.embed(LONG)),
    "embed_tokens": ("embed", lambda model, file: model.embed_tokens(LONG)),
    "search": ("embed", lambda model, file: model.search(LONG, file)),
}


@pytest.mark.parametrize("name", CALLS)
def test_warning_names_the_calling_line(name, loaded, tmp_path):
    (tmp_path / "lines.txt").write_text("The dog slept.\nThe cat slept.\n")
    task, call = CALLS[name]
    with pytest.warns(UserWarning, match=r"text 1 is longer than the 64 tokens") as caught:
        call(loaded(task), tmp_path / "lines.txt")
    assert [warning.filename for warning in caught] == [__file__]
    assert [warning.lineno for warning in caught] == [call.__code__.co_firstlineno]
