"""Loss, optimiser and schedule, the loop, checkpoints, processes."""
