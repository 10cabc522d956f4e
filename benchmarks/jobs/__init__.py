"""Jobs of the suite `throughput`: inputs and correct results (pure, without Kafka)."""
