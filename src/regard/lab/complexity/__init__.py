"""`regard lab complexity`: table 1 of the paper, measured."""
