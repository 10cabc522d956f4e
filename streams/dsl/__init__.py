"""The DSL classes: `StreamsBuilder`, `KStream`, `KTable` and related types."""
