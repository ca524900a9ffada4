"""Recipes, data preparation, trained results and the models that ship with the package.

`python -m experiments --help` lists the commands.
"""
