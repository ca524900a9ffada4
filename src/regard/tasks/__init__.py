"""One file a task: what an example is, its loss, its metric, how its answer is shown."""
