"""The suite `handoff`: record delays while tasks move between instances."""
