"""`regard lab recall`: accuracy over distance."""
