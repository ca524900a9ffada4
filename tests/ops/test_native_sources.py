"""The C++ sources compile. Other tests skip, or use PyTorch, if they do not."""

import platform
import shutil
import subprocess

import pytest

from regard.ops.common import ACTIVATION_CODES
from regard.ops.cpu import build

COMPILER = next(filter(None, map(shutil.which, build.COMPILERS)), None)
X86 = platform.machine() in ("x86_64", "AMD64")
NAMES = sorted(path.stem for path in build.FOLDER.glob("*.cpp"))

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")


@pytest.mark.parametrize("variant", build.VARIANTS if X86 else build.possible())
@pytest.mark.parametrize("name", NAMES)
def test_source_compiles_in_every_variant(name, variant):
    command = [COMPILER, *build.flags(variant), "-fsyntax-only", str(build.FOLDER / f"{name}.cpp")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=build.SECONDS)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", NAMES)
def test_library_is_available(name):
    if build.variant() is None:
        pytest.skip("REGARD_NATIVE=off")
    assert build.library(name) is not None


def test_activation_codes_equal_enum_in_cpp():
    source = (build.FOLDER / "product.h").read_text("utf-8")
    names = ", ".join(
        name.upper().replace("-", "_")
        for name in sorted(ACTIVATION_CODES, key=ACTIVATION_CODES.get)
    )
    assert list(ACTIVATION_CODES.values()) == list(range(len(ACTIVATION_CODES)))
    assert f"enum Activation : int64_t {{ {names} }};" in source
