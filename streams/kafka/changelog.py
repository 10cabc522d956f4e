"""Reads changelogs to restore state, and topics of global stores: the port `tasks.ports.ChangelogReader`."""

from streams.kafka.consumer import AssignedConsumer


class KafkaChangelogReader(AssignedConsumer):
    """Changelog records by position: read_committed, big fetches, no headers. One thread calls it."""

    noun = "changelog"
    next_step = "the local state behind it is too old or from another life of the topic; restore it from the beginning"
    with_headers = False


class KafkaGlobalReader(AssignedConsumer):
    """The topics of global stores by position: read_committed, with headers, which processors may ask for."""

    noun = "global topic"
    next_step = "the global stores are read again from the beginning"
