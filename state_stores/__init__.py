"""State stores: persistent keys and values, without Kafka clients or tasks."""
