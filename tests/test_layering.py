"""The layering of the source: which modules may import which, and where hardware may be named.

All imports count: at the top of a module, inside functions and under TYPE_CHECKING.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import regard

# A module may import from its own entry and from entries before it.
ORDER = (
    "errors", "files", "console", "device", "config", "ops", "text", "model", "training",
    "decoding", "tasks", "predictor", "box", "interop", "serve", "scale", "view", "lab", "cli",
)  # fmt: skip
EXEMPT = ("__init__", "__main__")  # at the top: the lazy facade, and `python -m regard`
MODEL_MAY_IMPORT = ("errors", "config", "ops", "text", "model")
MOST_TOP_MODULES, MOST_LINES = 6, 450
SOURCE = Path(regard.__file__).parent


@dataclass(frozen=True)
class Import:
    path: Path  # of the importing file, below src/regard
    line: int
    target: str  # dotted, without "regard."
    lazy: bool  # inside a function or under TYPE_CHECKING

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: imports regard.{self.target}"


def files(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in root.rglob("*.py"))


def module_name(path: Path) -> str:
    """text/store.py -> text.store; text/__init__.py -> text"""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(root: Path) -> list[Import]:
    """All imports of modules of the package regard, which is at `root`."""
    paths = files(root)
    modules = {module_name(path) for path in paths}
    return list(
        dict.fromkeys(statement for path in paths for statement in _imports(root, path, modules))
    )


def _imports(root: Path, path: Path, modules: set[str]) -> Iterator[Import]:
    tree = ast.parse((root / path).read_text(encoding="utf-8"))
    eager = set(map(id, _eager(tree)))
    for node in ast.walk(tree):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            folder = ["regard", *path.parent.parts]
            base = folder[: len(folder) - node.level + 1] if node.level else []
            base = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:  # `from regard.text import store` names a module
                inner = f"{base}.{alias.name}"
                targets.append(inner if inner.removeprefix("regard.") in modules else base)
        for target in targets:
            if target.startswith("regard."):  # `from regard import __version__` is not a module
                yield Import(
                    path, node.lineno, target.removeprefix("regard."), id(node) not in eager
                )


def _eager(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported."""
    for node in ast.iter_child_nodes(tree):
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not (function or checking):
            yield node
            yield from _eager(node)


def layer(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def upward_imports(root: Path) -> list[str]:
    layers = {layer(path) for path in files(root)} - set(EXEMPT)
    wrong = [f"{name} is not in the order of the layers" for name in sorted(layers - set(ORDER))]
    for statement in imports(root):
        own = layer(statement.path)
        if own in ORDER:
            allowed = MODEL_MAY_IMPORT if own == "model" else ORDER[: ORDER.index(own) + 1]
            if statement.target.split(".")[0] not in allowed:
                wrong.append(str(statement))
    return wrong


def import_cycles(root: Path) -> list[str]:
    """Modules that import one another while they are loaded, as `a -> b -> a`."""
    graph: dict[str, set[str]] = {}
    for statement in imports(root):
        if not statement.lazy and statement.target != module_name(statement.path):
            graph.setdefault(module_name(statement.path), set()).add(statement.target)
    cycles: list[str] = []
    visited: set[str] = set()

    def visit(name: str, way: list[str]) -> None:
        if name in way:
            cycles.append(" -> ".join([*way[way.index(name) :], name]))
        elif name not in visited:
            for target in sorted(graph.get(name, ())):
                visit(target, [*way, name])
            visited.add(name)

    for name in sorted(graph):
        visit(name, [])
    return cycles


def hardware_names(root: Path) -> list[str]:
    """The lines of a file of `model/` that query the hardware or bind hardware-specific code."""
    wrong = []
    for path in files(root / "model"):
        for node in ast.walk(ast.parse((root / "model" / path).read_text(encoding="utf-8"))):
            name = ""
            if isinstance(node, ast.Attribute):
                name = "device.type" if _is_device_type(node) else node.attr
            elif isinstance(node, ast.Name):
                name = node.id
            elif isinstance(node, ast.Import):
                name = node.names[0].name.split(".")[0]
            elif isinstance(node, ast.ImportFrom):
                name = (node.module or "").split(".")[0]
            if name in ("is_cuda", "device.type", "ctypes", "triton"):
                wrong.append(f"model/{path}:{node.lineno}: {name}")
    return wrong


def _is_device_type(node: ast.Attribute) -> bool:
    owner = node.value
    return node.attr == "type" and "device" in (
        getattr(owner, "attr", ""),
        getattr(owner, "id", ""),
    )


def test_no_import_points_upwards():
    wrong = upward_imports(SOURCE)
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_one_another_while_they_are_loaded():
    wrong = import_cycles(SOURCE)
    assert not wrong, "\n".join(wrong)


def test_the_model_names_no_hardware():
    wrong = hardware_names(SOURCE)
    assert not wrong, "\n".join(wrong)


def test_the_top_of_the_package_is_small():
    top = [path.stem for path in files(SOURCE) if len(path.parts) == 1 and path.stem not in EXEMPT]
    assert len(top) <= MOST_TOP_MODULES, top


def test_no_file_is_too_long():
    lines = {path: len((SOURCE / path).read_bytes().splitlines()) for path in files(SOURCE)}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


# ---- the checks themselves, on small trees ----------------------------------------------


@pytest.fixture
def tree(tmp_path):
    """tree({"text/a.py": "import regard.cli"}): the root of a package with these files."""

    def write(sources: dict[str, str]) -> Path:
        for name, source in sources.items():
            path = tmp_path / "regard" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return tmp_path / "regard"

    return write


@pytest.mark.parametrize(
    "source",
    [
        "import regard.cli.main",
        "from regard.cli.main import main",
        "from regard.cli import main",
        "from regard import cli",
        "from ..cli import main",
        "from ..cli.main import main",
        "from .. import cli",
        "def f():\n    from regard.cli.main import main",
        "class A:\n    def f(self):\n        import regard.cli",
        "if TYPE_CHECKING:\n    from regard.cli.main import main",
    ],
)
def test_every_form_of_an_upward_import_is_reported(tree, source):
    root = tree({"text/a.py": source, "cli/__init__.py": "", "cli/main.py": "main = 1"})
    (line,) = upward_imports(root)
    assert line.startswith(f"text/a.py:{source.count(chr(10)) + 1}: imports regard.cli")


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        "from regard.errors import InputError",
        "from regard import __version__",
        "from .b import c",
        "from . import b",
        "from cli import main",
    ],
)
def test_imports_that_point_downwards_are_allowed(tree, source):
    root = tree({"text/a.py": source, "text/b.py": "", "errors.py": "", "cli/main.py": ""})
    assert upward_imports(root) == []


def test_the_model_may_import_only_what_it_is_built_from(tree):
    root = tree({"model/a.py": "import regard.files\nimport regard.ops", "files.py": ""})
    assert upward_imports(root) == ["model/a.py:1: imports regard.files"]


def test_a_package_without_a_place_in_the_order_is_reported(tree):
    assert upward_imports(tree({"new/a.py": ""})) == ["new is not in the order of the layers"]


def test_a_cycle_is_reported_unless_it_is_lazy(tree):
    a = "from regard.text.b import f"
    cycle = tree({"text/a.py": a, "text/b.py": "import regard.text.a"})
    assert import_cycles(cycle) == ["text.a -> text.b -> text.a"]
    lazy = tree({"text/b.py": "def f():\n    import regard.text.a"})
    assert import_cycles(lazy) == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("x = y.is_cuda", "is_cuda"),
        ("x = y.device.type == 'cpu'", "device.type"),
        ("x = device.type", "device.type"),
        ("import ctypes", "ctypes"),
        ("from triton.language import load", "triton"),
    ],
)
def test_hardware_in_the_model_is_reported(tree, source, name):
    assert hardware_names(tree({"model/a.py": source})) == [f"model/a.py:1: {name}"]
    assert hardware_names(tree({"model/a.py": "x = config.type  # not is_cuda"})) == []
