"""Adapters from `tidewheel.tasks.ports` to confluent-kafka, the only importer of that client."""
