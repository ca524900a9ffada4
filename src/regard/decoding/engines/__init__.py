"""Implementations of the decoding loop: PyTorch, C++ on a CPU, and CUDA graphs."""
