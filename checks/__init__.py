"""Checks of `make check`, and installation for the Makefile; not part of the wheel."""
