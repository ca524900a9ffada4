"""`regard lab ablate`: table 3 of the paper on the user's data."""
