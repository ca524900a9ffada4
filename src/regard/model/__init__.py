"""The architecture: positions, attention, block, Transformer, cache."""
