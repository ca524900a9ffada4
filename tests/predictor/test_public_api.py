"""The public names of the package: all of them exist, with complete docstrings and type hints."""

import inspect
import subprocess
import sys
import tomllib
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import get_overloads, get_type_hints

import pytest

import regard
from regard.config.sections import DecodingConfig
from regard.predictor.model import Model
from regard.predictor.options import DecodingOptions
from tools.api import Docstring, functions, groups, members

ROOT = Path(__file__).parents[2]
EXPECTED = """
    load train Model Transformer ModelConfig Config DataConfig TrainingConfig DecodingConfig
    make_config Packed Tokenizer Trainer Task register_task AttentionCapture losses InputError
    Prediction pack
"""
PROPERTIES = (property, cached_property)


def public_items():
    """Every public function, class, method and property, by name."""
    for name in regard.__all__:
        item = getattr(regard, name)
        if inspect.ismodule(item):
            yield from ((f"{name}.{key}", value) for key, value in functions(item).items())
            continue
        yield name, item
        if inspect.isclass(item) and not issubclass(item, Exception):
            yield from ((f"{name}.{key}", value) for key, value in members(item).items())


ITEMS = dict(public_items())


def parameters(item):
    """The parameters of a function without self and cls."""
    every = inspect.signature(item).parameters.values()
    return [parameter for parameter in every if parameter.name not in ("self", "cls")]


def test_all_names_are_importable_and_listed():
    assert set(EXPECTED.split()) <= set(regard.__all__)
    assert len(set(regard.__all__)) == len(regard.__all__)
    assert set(regard.__all__) <= set(dir(regard))
    assert "__version__" in dir(regard)
    assert {name for names in groups().values() for name in names} == set(regard.__all__)


def test_importing_the_package_and_listing_its_names_does_not_import_torch():
    code = "import sys, regard; dir(regard); assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_mistyped_name_gets_a_suggestion():
    with pytest.raises(AttributeError, match="has no attribute 'lod'; did you mean 'load'\\?"):
        regard.lod  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean 'Transformer'\\?"):
        regard.transformer_  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'zzz'$"):
        regard.zzz  # noqa: B018


@pytest.mark.parametrize("name", ITEMS)
def test_every_public_item_has_a_complete_docstring_and_type_hints(name):
    item = ITEMS[name]
    docstring = Docstring.of(item)
    assert docstring.text, f"{name} has no docstring"
    if inspect.isclass(item) or isinstance(item, PROPERTIES):
        return
    hints = item.__annotations__
    assert "return" in hints, f"{name} has no return type"
    for parameter in parameters(item):
        assert parameter.annotation is not inspect.Parameter.empty, f"{name}: {parameter.name}"
    listed = docstring.entries("Args")
    for parameter in parameters(item):
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        label = stars + parameter.name
        assert listed.get(label) or listed.get(parameter.name), f"{name}: Args lack {label}"
    if hints["return"] not in ("None", None):
        assert "Returns" in docstring.sections or not parameters(item), f"{name}: no Returns"


def test_the_keywords_of_decoding_are_the_fields_of_its_section():
    hints = get_type_hints(DecodingOptions)
    sections = get_type_hints(DecodingConfig)
    names = {field.name for field in fields(DecodingConfig)} - {"n_best"}
    assert set(hints) == names
    assert all(hints[name] == sections[name] | None for name in names)


@pytest.mark.parametrize("method", ["translate", "answer", "generate", "predict", "stream"])
def test_signatures_and_docstrings_show_every_option_of_decoding(method):
    signature = inspect.signature(getattr(Model, method)).parameters
    listed = Docstring.of(getattr(Model, method)).entries("Args")
    for name in get_type_hints(DecodingOptions):
        assert signature[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert signature[name].default is None
        assert listed[name]
    assert ("options" in signature) == (method == "predict")


WRITES = [
    ("str", "None", "str"),
    ("str", "int", "list[Prediction]"),
    ("Iterable[str]", "None", "list[str]"),
    ("Iterable[str]", "int", "list[list[Prediction]]"),
]


@pytest.mark.parametrize("method", ["translate", "answer", "generate"])
def test_type_checkers_see_a_string_for_a_string_and_a_list_for_a_list(method):
    overloads = [variant.__annotations__ for variant in get_overloads(getattr(Model, method))]
    types = [(next(iter(o.values())), o["n_best"], o["return"]) for o in overloads]
    assert types == WRITES


@pytest.mark.parametrize(
    ("method", "single", "several"),
    [
        ("classify", "Label", "list[Label]"),
        ("fill", "Filled", "list[Filled]"),
        ("embed_tokens", "TokenVectors", "list[TokenVectors]"),
        ("search", "list[Hit]", "list[list[Hit]]"),
        ("score", "Prediction", "list[Prediction]"),
    ],
)
def test_type_checkers_see_one_result_for_one_input(method, single, several):
    overloads = [variant.__annotations__ for variant in get_overloads(getattr(Model, method))]
    assert [types["return"] for types in overloads] == [single, several]


def test_the_wheel_declares_its_types():
    assert (ROOT / "src/regard/py.typed").is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["regard"]
