"""The tensors of files: errors name the folder."""

import re

import pytest
import torch
from safetensors.torch import save_file

from regard.errors import InputError
from regard.interop.tensors import Weights, convert


def test_tied_tensors_that_differ_name_the_folder(tmp_path):
    save_file({"a": torch.zeros(2), "b": torch.ones(2)}, tmp_path / "x.safetensors")

    def conversion(take):
        take.copy_of("b", "a", 2)
        return {"a": take("a", 2)}

    message = f"^{re.escape(str(tmp_path))}: b differs from a, but config.json"
    with pytest.raises(InputError, match=message):
        convert(Weights([tmp_path / "x.safetensors"]), conversion)
