"""Classes of the DSL: `StreamsBuilder`, `KStream`, `KTable` and their relatives."""
