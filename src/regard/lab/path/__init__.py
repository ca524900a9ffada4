"""`regard lab path`: gradients over distance."""
