"""The suite `handoff`: how long records wait while tasks move from one instance to another."""
