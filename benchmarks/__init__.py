"""Speed and memory, measured next to a peer in the same run. Not part of the tests.

`python -m benchmarks --help` lists the benchmarks. Each benchmark prints a ratio to a peer and the
fraction of the hardware limit.
"""
