"""`python -m tools NAME [options]`: write one generated page."""

import sys

from benchmarks.commands import run_command

PURPOSE = "Write the generated pages of the documentation."
COMMANDS = {
    "results": "write docs/results.md from docs/results/*.json",
    "performance": "write docs/performance.md from benchmarks/ratios.json",
    "configuration": "write docs/reference/configuration.md from the dataclasses",
    "cli": "write docs/reference/cli.md from the argument parsers",
    "api": "write docs/api.md from the docstrings",
    "screenshots": "write docs/assets/serve-*.png from the page of regard serve",
    "examples": "run the commands in README.md and docs/ and write their output below them",
}

if __name__ == "__main__":
    sys.exit(run_command("tools", PURPOSE, COMMANDS))
