"""SentencePiece vocabularies."""
