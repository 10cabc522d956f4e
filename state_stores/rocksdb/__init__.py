"""Databases on disk; the only importer of rocksdict."""
