"""Public interface and processes: DSL, serdes, configuration, Kafka clients, commands."""
