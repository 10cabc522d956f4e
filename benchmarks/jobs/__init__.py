"""The jobs of the suite `throughput`: what their inputs hold and what the right result is; pure, without Kafka."""
