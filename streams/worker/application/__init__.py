"""Application: settings and state that threads share."""
