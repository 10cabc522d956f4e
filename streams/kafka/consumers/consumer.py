"""Consumers without a group: the worker's input, and the base of changelog readers.

The caller sets the offset to read from; there is no automatic commit or reset. `poll` raises a
partition's error after it has returned all earlier records.
"""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import MissingSourceTopicError, StreamsError
from tidewheel.streams.gc_tuning import collection_paused
from tidewheel.streams.kafka.client.client_log import ClientLog, error_of, make_client
from tidewheel.streams.kafka.client.codes import (
    NO_OFFSET,
    NO_PARTITION,
    PARTITION_EOF,
    READ_FORBIDDEN,
    is_transient,
)
from tidewheel.streams.kafka.client.records import to_runs
from tidewheel.streams.kafka.client.settings import Config
from tidewheel.tasks.kafka.ports import OffsetOutOfRangeError
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

_PREPARE_S: Final = 2.0

#: Least real offset: negative ones are librdkafka's markers, such as "no position yet".
_FIRST_OFFSET: Final = 0

#: Topic and partition in the text of an error that belongs to no message.
_NAMED_PARTITION: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]+) \[(?P<partition>\d+)\]: ")


class AssignedConsumer:
    noun = "partition"
    next_step = "read again from an offset that exists"
    with_headers = True

    def __init__(self, config: Config) -> None:
        self._log = ClientLog(config["client.id"], with_debug="debug" in config)
        config = dict(config)
        users_error_cb = config.pop("error_cb", None)
        self._users_error_cb = users_error_cb
        config["error_cb"] = self._on_error
        self._consumer: Any = make_client(Consumer, "consumer", config, self._log)
        self._servers: str = config["bootstrap.servers"]
        self._next: dict[TopicPartition, int] = {}
        #: The client keeps a pause when a partition is removed, so removal resumes it first.
        self._paused: set[TopicPartition] = set()
        self._ends: dict[TopicPartition, int] = {}
        #: Errors that the next polls raise, one each, after earlier records were returned.
        self._failures: deque[StreamsError] = deque()
        self._only_topic: str | None = None

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._end_pauses([*self._paused])
        self._consumer.assign(_with_offsets(positions))
        self._next = dict(positions)
        self._ends.clear()
        self._failures.clear()
        self._set_topics()

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        new = {
            partition: offset
            for partition, offset in positions.items()
            if partition not in self._next
        }
        if new:
            self._consumer.incremental_assign(_with_offsets(new))
            self._next |= new
            self._set_topics()

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        removed = [partition for partition in partitions if partition in self._next]
        if removed:
            self._end_pauses(removed)
            self._consumer.incremental_unassign(
                [KafkaPartition(*partition) for partition in removed]
            )
            for partition in removed:
                del self._next[partition]
                self._ends.pop(partition, None)
            self._set_topics()

    def prepare(self, topics: Sequence[str]) -> None:
        """Prefetch the topics' metadata; otherwise their first record comes a second later."""
        for topic in topics:
            try:
                self._consumer.list_topics(topic, timeout=_PREPARE_S)
            except KafkaException as exception:
                self._log.on_error(error_of(exception))

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]:
        self._raise_failure()
        with collection_paused():
            runs = self._consume(None, max_records)
        if runs is None and timeout_s > 0:
            # `consume` waits for max_records; `poll` returns with the first record.
            first = self._consumer.poll(timeout_s)
            if first is not None:
                with collection_paused():
                    runs = self._consume(first, max_records - 1)
        if not runs:
            self._raise_failure()
        return runs or []

    def _consume(self, first: Message | None, max_records: int) -> list[SourceRecords] | None:
        messages: list[Message] = [] if first is None else [first]
        if max_records > 0:
            messages += self._consumer.consume(max_records, 0)
        if not messages:
            return None
        if any(map(Message.error, messages)):
            messages = self._without_events(messages)
        if not messages:
            return []
        topic = self._only_topic
        if topic is not None and not messages[0].topic() == messages[-1].topic() == topic:
            topic = None
        return self._accepted(to_runs(messages, topic=topic, with_headers=self.with_headers))

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._consumer.pause([KafkaPartition(*partition) for partition in partitions])
        self._paused.update(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Fetch these partitions again.

        The client's `resume` does not wake its fetching thread, which may sleep for a second; a new
        assignment does.
        """
        resumed = self._end_pauses(partitions)
        if resumed:
            self._consumer.incremental_unassign(
                [KafkaPartition(*partition) for partition in resumed]
            )
            positions = {partition: self._next[partition] for partition in resumed}
            self._consumer.incremental_assign(_with_offsets(positions))

    def _end_pauses(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        paused = [partition for partition in partitions if partition in self._paused]
        if paused:
            self._consumer.resume([KafkaPartition(*partition) for partition in paused])
            self._paused.difference_update(paused)
        return paused

    def positions(self) -> dict[TopicPartition, int]:
        if not self._next:
            return {}
        client_positions = self._consumer.position(
            [KafkaPartition(*partition) for partition in self._next]
        )
        positions = dict(self._next)
        for partition in client_positions:
            key = TopicPartition(partition.topic, partition.partition)
            positions[key] = max(positions[key], partition.offset, self._ends.get(key, 0))
        return positions

    def end_offsets(self) -> dict[TopicPartition, int]:
        ends: dict[TopicPartition, int] = {}
        for partition, position in self.positions().items():
            _, high = self._consumer.get_watermark_offsets(KafkaPartition(*partition), cached=True)
            if high >= _FIRST_OFFSET:
                ends[partition] = max(high, position)
            elif self._ends.get(partition) == position:
                ends[partition] = position
        return ends

    def stable_offsets(self) -> dict[TopicPartition, int]:
        """Return the last stable offset of partitions that were read to their end.

        For others return the high watermark, which is too high while a transaction is open.
        """
        ends = self.end_offsets()
        ends.update(
            (partition, position)
            for partition, position in self.positions().items()
            if self._ends.get(partition) == position
        )
        return ends

    def close(self) -> None:
        self._next = {}
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _accepted(self, runs: list[SourceRecords]) -> list[SourceRecords]:
        """Return the assigned partitions' records; raise if any would be processed twice (H16)."""
        accepted: list[SourceRecords] = []
        for run in runs:
            key = TopicPartition(run.topic, run.partition)
            position = self._next.get(key)
            if position is None:
                continue  # from a replaced assignment
            if run.offsets[0] < position:
                raise StreamsError(
                    f"{self.noun} {key}: the client handed out offset {run.offsets[0]} after position {position} was "
                    "asked for; this is a bug of the client, restart the worker"
                )
            self._next[key] = run.offsets[-1] + 1
            accepted.append(run)
        return accepted

    def _without_events(self, messages: list[Message]) -> list[Message]:
        records: list[Message] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() == PARTITION_EOF:
                self._ends[_partition_of(message)] = _offset_of(message)
            else:
                failure = self._failure_of(error, message)
                if failure is not None:
                    self._failures.append(failure)
        return records

    def _failure_of(self, error: KafkaError, message: Message) -> StreamsError | None:
        if message.partition() is None or not message.topic():
            self._on_error(error)
            return None
        where = _partition_of(message)
        if where not in self._next:
            return None
        if error.code() in NO_OFFSET:
            offset = max(_offset_of(message), self._next[where])
            return OffsetOutOfRangeError(
                f"{self.noun} {where}: offset {offset} is not in the log; its records were deleted, or the topic was "
                f"created again or truncated ({error.name()}: {error.str()}); {self.next_step}",
                partition=where,
                offset=offset,
            )
        if error.code() in NO_PARTITION:
            return _missing(self.noun, where.topic, where.partition)
        if is_transient(error):
            self._log.on_error(error)
            return None
        return StreamsError(
            f"{self.noun} {where}: can't be read at offset {self._next[where]}: {error.name()}: {error.str()}; "
            f"{_next_step_of(error)} (cluster {self._servers})"
        )

    def _on_error(self, error: KafkaError) -> None:
        if self._users_error_cb is not None:
            self._users_error_cb(error)
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return  # partitions are assigned
        named = _NAMED_PARTITION.search(error.str())
        if error.code() in NO_PARTITION and named is not None:
            where = TopicPartition(named["topic"], int(named["partition"]))
            if where in self._next:
                self._failures.append(_missing(self.noun, *where))
            return
        if error.fatal() or error.code() in READ_FORBIDDEN:
            self._failures.append(
                StreamsError(
                    f"{self.noun}: {error.name()}: {error.str()}; {_next_step_of(error)} (cluster {self._servers})"
                )
            )
            return
        self._log.on_error(error)

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures.popleft()

    def _set_topics(self) -> None:
        topics = {partition.topic for partition in self._next}
        self._only_topic = topics.pop() if len(topics) == 1 else None


class KafkaRecordSource(AssignedConsumer):
    noun = "input"
    next_step = "set its offsets with `tidewheel reset`, and raise the topic's retention if it was overtaken"


class KafkaInputReader(AssignedConsumer):
    """Reader of processed input records whose output failed, for their dead letters."""

    noun = "input"
    next_step = "nothing is to be done, it was processed"


def _with_offsets(positions: Mapping[TopicPartition, int]) -> list[KafkaPartition]:
    for partition, offset in positions.items():
        assert offset >= _FIRST_OFFSET, f"{partition} needs an explicit offset, not {offset}"
    return [
        KafkaPartition(topic, partition, offset) for (topic, partition), offset in positions.items()
    ]


def _partition_of(message: Message) -> TopicPartition:
    return TopicPartition(message.topic() or "", message.partition() or 0)


def _offset_of(message: Message) -> int:
    offset = message.offset()
    return -1 if offset is None else offset


def _missing(noun: str, topic: str, partition: int) -> MissingSourceTopicError:
    return MissingSourceTopicError(
        f"{noun} {topic}-{partition} does not exist (any more); if the topic was deleted, create it again and reset "
        "the application with `tidewheel reset`",
        topic=topic,
    )


def _next_step_of(error: KafkaError) -> str:
    if error.code() in READ_FORBIDDEN:
        return "grant this principal READ and DESCRIBE on the topic"
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return "raise consumer={'receive.message.max.bytes': ...}"
    return "nothing is skipped; once the brokers return the records, a new start continues there"
