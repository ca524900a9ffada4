"""Context managers apply to their own thread and block only."""

from concurrent.futures import ThreadPoolExecutor

import torch

from regard.ops.common import cast, cast_once
from regard.ops.cuda.training import Dropout, seeded_dropout

CPU = torch.device("cpu")


def test_cast_once_applies_to_its_thread_and_block():
    weight = torch.nn.Parameter(torch.randn(6, 4))
    with ThreadPoolExecutor(1) as elsewhere, cast_once([weight], torch.bfloat16):
        copy = cast(weight, torch.bfloat16)
        assert cast(weight, torch.bfloat16).data_ptr() == copy.data_ptr()
        part = cast(weight[2:4], torch.bfloat16)
        assert part.data_ptr() == copy[2:4].data_ptr()
        assert torch.equal(part, weight[2:4].bfloat16())
        copy_elsewhere = elsewhere.submit(cast, weight, torch.bfloat16).result()
        assert copy_elsewhere.data_ptr() != copy.data_ptr()
        assert cast(weight, torch.float16).dtype == torch.float16
    assert cast(weight, torch.bfloat16).data_ptr() != copy.data_ptr()


def test_dropout_seed_applies_to_its_thread_and_block():
    seed = torch.tensor([7])
    with ThreadPoolExecutor(1) as elsewhere, seeded_dropout(seed):
        assert Dropout(0.1, CPU).added is seed
        assert int(elsewhere.submit(Dropout, 0.1, CPU).result().added) == 0
    assert int(Dropout(0.1, CPU).added) == 0
