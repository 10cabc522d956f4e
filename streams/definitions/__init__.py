"""Declarations of a program, checked: stores, serdes, names and arguments."""
