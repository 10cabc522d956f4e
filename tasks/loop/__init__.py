"""The worker's loop: orders, poll, processing in slices, commits."""
