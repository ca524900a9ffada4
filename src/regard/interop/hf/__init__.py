"""Hugging Face folders: models and tokenizers of transformers and sentence-transformers."""
