"""A seeded fuzzer of the command line: `python -m tests.fuzz --help`, CONTRIBUTING.md "Fuzzing".

A call is a function of (seed, number): `calls.py` builds its arguments from the parser of
`regard.cli.main`, `values.py` provides hostile values, `damage.py` changes files, and `stock.py` creates
the small corpora and models that calls start from. `server.py` runs each call in a fork of a process that
has imported everything, and `oracles.py` decides what is a fault.
"""
