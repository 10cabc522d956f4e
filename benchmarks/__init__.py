"""The benchmark program: one command, fixed names, results that can be compared over years."""
