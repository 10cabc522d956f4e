"""Tasks: active, parallel, learners; their state, input and life cycle."""
