"""OpenTelemetry: metrics, and traces of batches, commits and restores."""
