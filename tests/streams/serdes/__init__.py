"""Tests of serdes."""
