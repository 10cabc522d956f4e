"""Adapters from `tidewheel.tasks.kafka.ports` to confluent-kafka, the only importer of that client."""
