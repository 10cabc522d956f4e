"""Records on the command line: JSON lines, their serdes, and the topics they are in."""
