"""The architecture, and nothing else: positions, attention, block, Transformer, cache."""
