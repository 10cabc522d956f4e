"""Reads changelogs to restore state: the port `tasks.ports.ChangelogReader`."""

from streams.kafka.consumer import AssignedConsumer


class KafkaChangelogReader(AssignedConsumer):
    """Changelog records by position: read_committed, big fetches, no headers. One thread calls it."""

    noun = "changelog"
    next_step = "the local state behind it is too old or from another life of the topic; restore it from the beginning"
    with_headers = False
