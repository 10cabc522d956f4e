"""Restoring and following state, where tasks begin to read, and global stores."""
