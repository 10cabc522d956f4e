"""Sinks outside Kafka."""
