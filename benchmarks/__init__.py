"""Speed and memory, always beside a peer in the same run; never part of the tests.

`python -m benchmarks` lists what there is. Every benchmark prints a ratio and the fraction of
what the machine could do.
"""
