"""Triton implementations of operations and their Python wrappers."""
