"""The suite `latency`: time from a record's scheduled moment to its readable result."""
