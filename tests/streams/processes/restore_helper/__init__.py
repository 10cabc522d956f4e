"""Tests of the restore helper."""
