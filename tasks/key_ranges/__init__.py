"""Key ranges: parts of one partition's keys that threads process concurrently."""
