"""Run the command line in this process: its output, messages and exit code."""

import io
from contextlib import redirect_stderr, redirect_stdout

import pytest

from regard.cli.main import main


def run(*arguments):
    """Run a command and return its exit code; the output is not captured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "GOMP_SPINCOUNT", "3000"
        )  # otherwise `main` would set it for the following tests
        patch.setattr("sys.argv", ["regard", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    return ended.value.code


def regard(*arguments):
    """Run a command and return its standard output, standard error and exit code."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(*arguments)
    return out.getvalue(), err.getvalue(), code


def error_of(*arguments):
    """The message of a command that must end with one line and exit code 2."""
    out, err, code = regard(*arguments)
    assert (out, code) == ("", 2), err
    assert err.startswith("regard: ")
    assert err.endswith("\n")
    assert len(err.splitlines()) == 1, err
    return err.removeprefix("regard: ").removesuffix("\n")
