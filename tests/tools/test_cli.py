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


def test_a_section_contains_the_description_of_a_group():
    parser = argparse.ArgumentParser(prog="regard test")
    parser.add_argument_group("several", "These options are new.").add_argument("--new")
    assert section("regard test", parser).endswith("\n\nSeveral: These options are new.")


def test_defaults_of_decoding_are_those_of_the_task():
    commands = {name: parser for name, _, parser in parsers(build_parser())}
    for name, beam in (("regard translate", 4), ("regard generate", 1), ("regard chat", 1)):
        text = section(name, commands[name])
        assert f"1 is greedy search (default: {beam})" in text
        assert "The section `decoding` of the model's config.yaml overrides the defaults" in text
        assert ("--n-best" in text) == (name != "regard chat")
