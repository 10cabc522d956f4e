"""Keys and values that survive; knows bytes and positions, no Kafka client, no task."""
