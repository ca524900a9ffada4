"""Training: losses, optimiser, trainer, checkpoints, CUDA graphs, processes and the run folder."""
