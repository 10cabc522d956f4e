"""Kafka clients and topics."""
