"""Benchmarks: one command, fixed names, and results comparable over years."""
