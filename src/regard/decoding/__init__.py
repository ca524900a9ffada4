"""Decoding: beam search and sampling, from requests to predictions."""
