"""Adapters from the ports of `tidewheel.tasks.ports` to confluent-kafka; nothing else imports that client."""
