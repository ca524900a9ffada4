"""Searches by CUDA graphs for requests that join a continuous batch at the same time.

The shapes in which a request is computed depend on that request alone: groups have a fixed number
of rows and lengths that are rounded up, and they never shrink. So its result is bit-identical in
any combination of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from regard.decoding.engines.cuda_graph import FIXED_ROWS, GraphSearch, buffer_sizes
from regard.decoding.requests import Job
from regard.model.transformer import Transformer


class GraphGroup:
    """One search with fixed shapes for several jobs of one sentence each, with the same options and
    the same `buffer_sizes`. `rows` are the searches of the jobs."""

    def __init__(self, model: Transformer, jobs: Sequence[Job]) -> None:
        merged: dict[str, Any] = {"options": jobs[0].options, "eos": jobs[0].eos}
        for name in ("limits", "prefixes", "noise_keys", "read", "newest"):
            merged[name] = [value for job in jobs for value in getattr(job, name)]
        sources = [tokens for job in jobs for tokens in job.sources or ()]
        self.search = GraphSearch(model, Job(sources=sources or None, **merged), fixed=True)
        self.steps = iter(self.search)
        self.rows = [GraphRow(self, i) for i in range(len(jobs))]

    def close(self) -> None:
        """Release the buffers, and the rows, which refer to this group."""
        self.rows = []
        if self.search.time:
            self.steps.close()
        else:  # a generator that has not started runs no code when it is closed
            self.search.buffers.busy = False

    def step(self) -> list[GraphRow]:
        """Run one step; returns the rows that have finished since the last one."""
        ended = next(self.steps, self) is self
        done = [True] * len(self.rows) if ended else self.search.buffers.done.tolist()
        finished = [row for row in self.rows if done[row.index] and row.saved is None]
        if finished:
            records = self.search.records()
            for row in finished:
                row.saved = records[:, row.index : row.index + 1].copy()
        return finished


class GraphRow:
    """One row of a `GraphGroup`."""

    def __init__(self, group: GraphGroup, index: int) -> None:
        self.group, self.index = group, index
        self.saved: NDArray[Any] | None = None  # the records, when it has finished

    def records(self) -> NDArray[Any]:
        """The candidates of all steps so far: [steps, 1, C, 4]."""
        if self.saved is not None:
            return self.saved
        return self.group.search.records()[:, self.index : self.index + 1]


def start_groups(model: Transformer, jobs: Sequence[Job]) -> list[GraphRow]:
    """Start a search for each job of one sentence; those with the same shapes share a group."""
    shapes: dict[Any, list[int]] = {}
    for i, job in enumerate(jobs):
        shapes.setdefault((repr(job.options), job.eos, *buffer_sizes(job)), []).append(i)
    rows: dict[int, GraphRow] = {}
    groups: list[GraphGroup] = []
    try:
        for indices in shapes.values():
            for start in range(0, len(indices), FIXED_ROWS):
                members = indices[start : start + FIXED_ROWS]
                groups.append(GraphGroup(model, [jobs[i] for i in members]))
                rows.update(zip(members, groups[-1].rows, strict=True))
    except BaseException:  # for example out of memory: no group can be used
        for group in groups:
            group.close()
        raise
    return [rows[i] for i in range(len(jobs))]
