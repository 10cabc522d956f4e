"""Checked declarations of a program: stores, serdes, names and arguments."""
