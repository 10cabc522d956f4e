"""Settings, errors and logs of all Kafka clients."""
