"""The executable graph: batches, sources, operators, sinks, error policy."""
