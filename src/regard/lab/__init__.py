"""Measurements of the architecture itself."""
