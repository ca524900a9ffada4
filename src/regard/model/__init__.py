"""The architecture, and nothing else: configuration, positions, attention, block, Transformer."""
