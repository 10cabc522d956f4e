"""What `make check` and the Makefile's environment are made of; not part of the wheel."""
