"""State of a call belongs to that call: it does not reach other threads, and it ends."""

from concurrent.futures import ThreadPoolExecutor

import torch

from regard.ops.common import cast, cast_once
from regard.ops.cuda.training import Dropout, seeded_dropout

CPU = torch.device("cpu")


def test_cast_once_copies_parameters_for_this_thread_and_this_block():
    weight = torch.nn.Parameter(torch.randn(6, 4))
    with ThreadPoolExecutor(1) as elsewhere, cast_once([weight], torch.bfloat16):
        copy = cast(weight, torch.bfloat16)
        assert cast(weight, torch.bfloat16).data_ptr() == copy.data_ptr()
        part = cast(weight[2:4], torch.bfloat16)
        assert part.data_ptr() == copy[2:4].data_ptr()
        assert torch.equal(part, weight[2:4].bfloat16())
        other = elsewhere.submit(cast, weight, torch.bfloat16).result()
        assert other.data_ptr() != copy.data_ptr()
        assert cast(weight, torch.float16).dtype == torch.float16
    assert cast(weight, torch.bfloat16).data_ptr() != copy.data_ptr()


def test_the_seed_of_dropout_is_added_in_this_thread_and_this_block():
    seed = torch.tensor([7])
    with ThreadPoolExecutor(1) as elsewhere, seeded_dropout(seed):
        assert Dropout(0.1, CPU).added is seed
        assert int(elsewhere.submit(Dropout, 0.1, CPU).result().added) == 0
    assert int(Dropout(0.1, CPU).added) == 0
