"""The suite `latency`: from a record's scheduled moment until its result can be read."""
