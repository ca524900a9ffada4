"""`regard lab positions`: section 3.5 of the paper, measured."""
