"""Pictures and tables to look at."""
