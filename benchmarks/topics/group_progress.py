"""Progress of a running consumer group, to detect its end; not a measurement."""

import time
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

ADMIN_TIMEOUT_S = 30.0
LOOK_TIMEOUT_S = 5.0


class GroupProgress:
    def __init__(self, bootstrap_servers: str, group: str) -> None:
        self._group = group
        # Reads of offsets ignore open transactions; reads of records behind them do not.
        self._asker = _consumer(bootstrap_servers, group, "read_uncommitted")
        self._reader = _consumer(bootstrap_servers, group, "read_committed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._asker.close()
        self._reader.close()

    def committed(self, places: list[TopicPartition]) -> int:
        """Return the sum of committed offsets; 0 while the group has no coordinator."""
        try:
            answer = self._asker.committed(places, timeout=ADMIN_TIMEOUT_S)
        except KafkaException:
            return 0
        return sum(max(0, place.offset) for place in answer)

    def own_topics_done(self) -> bool:
        """Return True if no record waits in the group's internal topics.

        Offsets alone do not prove it: transaction markers follow the last record. So the records
        behind each commit are read, in the order of the topics.
        """
        try:
            topics = self._asker.list_topics(timeout=ADMIN_TIMEOUT_S).topics
            return all(
                self._nothing_left(name, len(topics[name].partitions))
                for name in own_topics(list(topics), self._group)
            )
        except KafkaException:
            return False

    def _nothing_left(self, topic: str, partitions: int) -> bool:
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        ends: dict[int, int] = {}
        behind: list[TopicPartition] = []
        for place in self._asker.committed(places, timeout=ADMIN_TIMEOUT_S):
            marks = self._asker.get_watermark_offsets(place, timeout=ADMIN_TIMEOUT_S)
            if marks is None:
                return False
            first = max(place.offset, marks[0])
            if first < marks[1]:
                ends[place.partition] = marks[1]
                behind.append(TopicPartition(topic, place.partition, first))
        if not behind:
            return True
        self._reader.assign(behind)
        try:
            return self._only_ends(ends)
        finally:
            self._reader.unassign()

    def _only_ends(self, ends: dict[int, int]) -> bool:
        deadline = time.monotonic() + LOOK_TIMEOUT_S
        while ends and time.monotonic() < deadline:
            message = self._reader.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None or error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
                return False
            if (message.offset() or 0) >= ends.get(message.partition() or 0, 0):
                ends.pop(message.partition() or 0, None)
        return not ends


def own_topics(names: list[str], group: str) -> list[str]:
    """Return the internal topics that records pass, in order.

    These are repartition topics and the two of a foreign-key join, by Kafka Streams' names.

    >>> own_topics(["app-counts-changelog", "app-out", "app-words-repartition", "lines"], "app")
    ['app-words-repartition']
    """
    return sorted(
        name
        for name in names
        if group in name
        and "changelog" not in name
        and ("repartition" in name or name.endswith("-topic"))
    )


def _consumer(bootstrap_servers: str, group: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            # Records purged between two polls are done, so reading must not jump to the end.
            "auto.offset.reset": "earliest",
        }
    )
