"""Bytes on disk: layouts of keys, values, headers, versions and positions."""
