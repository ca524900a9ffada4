"""Models of Marian and Bergamot."""
