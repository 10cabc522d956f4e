"""Engine of assigned tasks: processing, state, commits."""
