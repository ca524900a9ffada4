"""`regard lab styles`: the three styles on one task."""
