"""Task assignors: decide which member owns each task and keeps its standbys."""
