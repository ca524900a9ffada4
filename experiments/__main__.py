"""`python -m experiments NAME [options]`: run one experiment."""

import sys

from benchmarks.commands import run_command

PURPOSE = "Train the recipes and measure the results in docs/results."
COMMANDS = {
    "run": "prepare the data of recipes, train and evaluate them, and ship the packaged models",
    "ablate": "reproduce the paper's Table 3 on Multi30k (regard lab ablate)",
    "ingredients": "measure the contribution of each part of the Multi30k recipe",
    "styles": "compare the three model styles on the built-in corpus (regard lab styles)",
}

if __name__ == "__main__":
    sys.exit(run_command("experiments", PURPOSE, COMMANDS))
