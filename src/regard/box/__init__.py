"""Models that ship with the package, one folder for each task that has one."""
