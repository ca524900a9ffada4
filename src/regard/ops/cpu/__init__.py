"""C++ implementations of operations, their build, and the Python binding."""
