"""docs/reference/cli.md: one section for each command, one row for each option."""

import argparse

from regard.cli.main import build_parser
from tools.cli import page, parsers, section


def test_every_command_has_a_section_and_a_link():
    text = page()
    names = [name for name, _, _ in parsers(build_parser())]
    assert {"regard train", "regard view attention", "regard lab ablate"} <= set(names)
    for name in names:
        assert f"\n## {name}\n" in text
        assert f"(#{name.replace(' ', '-')})" in text


def test_a_section_lists_options_with_values_defaults_and_explanations():
    parser = argparse.ArgumentParser(prog="regard test", description="Test a_b <tab> c|d.")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="lines")
    parser.add_argument("-m", "--model", required=True, help="folder (default: %(default)s)")
    parser.add_argument("--kind", choices=["a", "b"])
    parser.add_argument("--old", help=argparse.SUPPRESS)
    lines = section("regard test", parser).splitlines()
    assert lines[0] == "## regard test"
    assert lines[2] == "Test a\\_b &lt;tab> c\\|d."
    assert "regard test [options] [TEXT ...]" in lines
    assert "| `[TEXT ...]` | lines |" in lines
    assert "| `-m MODEL`, `--model MODEL` | folder (default: None), required |" in lines
    assert "| `--kind {a,b}` |  |" in lines
    assert not any("--old" in line for line in lines)
