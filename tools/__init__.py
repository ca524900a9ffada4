"""Generators of pages under docs/. The text is in tools/templates, the figures in data files.

`python -m tools --help` lists the commands.
"""
