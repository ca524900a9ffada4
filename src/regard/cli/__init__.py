"""The command line: `regard VERB`."""
