"""Records as columns, operators, and the executable graph of a sub-topology."""
