"""Adapters from the ports of `tasks.ports` to confluent-kafka; nothing else imports that client."""
