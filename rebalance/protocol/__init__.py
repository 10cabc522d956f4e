"""Records and messages of the control topics: types, encoding, checks."""
