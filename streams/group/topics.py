"""Reads an application's two control topics, and only reads: for `status`, `top`, `drain`, `group` and for queries.

No member is asked and nothing is joined: who may read the topics sees the group. The state topic is read from its
beginning to its committed end, the inbox from some moment on; later calls go on from there.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from tidewheel.rebalance.inspect.describe import LogEntry
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.decoding import RejectedRecord, Rejection
from tidewheel.rebalance.protocol.messages import AnyMessage, read_message
from tidewheel.rebalance.protocol.records import read_record
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic
from tidewheel.tasks.ports import ChangelogReader, OffsetOutOfRangeError, TopicDescription
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

#: How long one poll waits for records that are on their way.
_POLL_S: Final = 0.2
_RECORDS: Final = 1_000
#: How long nothing may come while there is something.
_PATIENCE_S: Final = 30.0


#: Offset, time and value of a record.
_Row = tuple[int, int, bytes | None]


class Heard(NamedTuple):
    """A message of the inbox, or what is dropped, and when it was written (ms since the epoch)."""

    timestamp_ms: int
    message: AnyMessage | RejectedRecord


class LogAdmin(Protocol):
    """What reading the log asks of the cluster."""

    def describe_topics(
        self, names: Sequence[str], *, config: Sequence[str] = ()
    ) -> dict[str, TopicDescription]:
        """Return the topics that exist among `names`."""
        ...

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset still in the log per partition."""
        ...

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of the log (high watermark) per partition."""
        ...

    def stable_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offset per partition."""
        ...


class TopicsAdmin(LogAdmin, Protocol):
    """What reading both topics asks of the cluster."""

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the offset of the first record at or after a time; the end where there is none."""
        ...


class LogTopic:
    """The group log of an application, by position. One thread calls it.

    Args:
        application_id: Whose.
        admin: Asked for the topic and its end.
        reader: Reads committed records only.
    """

    def __init__(self, application_id: str, admin: LogAdmin, reader: ChangelogReader) -> None:
        self._admin = admin
        self._partition = TopicPartition(state_topic(application_id), 0)
        self._topic = _Topic(self._partition, admin, reader)

    def to_end(self, *, decided: bool = False) -> list[LogEntry | RejectedRecord]:
        """Return what was not returned yet, up to the end as it is now.

        Args:
            decided: Stop at the last stable offset, and wait for nobody's transaction. To show the group, never to decide by.

        Raises:
            StreamsError: A transaction is open below the end, and stays open.
        """
        if not self._topic.is_begun:
            self._topic.begin(self._admin.beginning_offsets([self._partition]))
        return self._entries(self._topic.rows(decided=decided))

    def fetched(self) -> list[LogEntry | RejectedRecord]:
        """Return what has come by itself since `to_end`: neither asks the brokers nor waits."""
        return self._entries(self._topic.fetched_rows())

    def close(self) -> None:
        """Let the reader go; idempotent."""
        self._topic.close()

    def _entries(self, rows: Iterable[_Row]) -> list[LogEntry | RejectedRecord]:
        entries: list[LogEntry | RejectedRecord] = []
        for offset, timestamp_ms, value in rows:
            record = read_record(value)
            if isinstance(record, Rejection):
                entries.append(_rejected(self._partition, offset, timestamp_ms, record))
            elif record is not None:
                entries.append(LogEntry(offset, timestamp_ms, record))
        return entries


def _rejected(
    partition: TopicPartition, offset: int, timestamp_ms: int, rejection: Rejection
) -> RejectedRecord:
    return RejectedRecord(
        topic=partition.topic,
        partition=partition.partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
        rejection=rejection,
    )


class GroupTopics:
    """The control topics of an application, by position. One thread calls it.

    Args:
        application_id: Whose.
        admin: Asked for the topics and their ends.
        state: Reads committed records only.
        inbox: A reader of its own.
    """

    def __init__(
        self,
        application_id: str,
        admin: TopicsAdmin,
        state: ChangelogReader,
        inbox: ChangelogReader,
    ) -> None:
        self._application_id = application_id
        self._admin = admin
        self._state = LogTopic(application_id, admin, state)
        self._inbox = _Topic(TopicPartition(inbox_topic(application_id), 0), admin, inbox)

    def topic_ids(self) -> Mapping[str, str]:
        """Return the ids of those of the two topics that exist, by name."""
        names = [state_topic(self._application_id), inbox_topic(self._application_id)]
        return {
            name: topic.topic_id.hex() for name, topic in self._admin.describe_topics(names).items()
        }

    def log(self, *, decided: bool = False) -> list[LogEntry | RejectedRecord]:
        """Return what the state topic has that was not returned yet, up to its end as it is now; see `LogTopic.to_end`."""
        return self._state.to_end(decided=decided)

    def inbox(self, since_ms: int) -> list[Heard]:
        """Return what the inbox has that was not returned yet; the first call begins at a time (ms since the epoch)."""
        if not self._inbox.is_begun:
            self._inbox.begin(self._admin.offsets_at([self._inbox.partition], since_ms))
        return self._heard(self._inbox.rows())

    def listen(self) -> None:
        """Begin with what is said in the inbox from now on: no clock of anybody's decides what is new."""
        self._inbox.begin(self._admin.end_offsets([self._inbox.partition]))

    def said(self) -> list[Heard]:
        """Return what has come by itself since `listen`: neither asks the brokers nor waits."""
        return self._heard(self._inbox.fetched_rows())

    def _heard(self, rows: Iterable[_Row]) -> list[Heard]:
        heard: list[Heard] = []
        for offset, timestamp_ms, value in rows:
            message = read_message(value)
            if isinstance(message, Rejection):
                rejected = _rejected(self._inbox.partition, offset, timestamp_ms, message)
                heard.append(Heard(timestamp_ms, rejected))
            elif message is not None and message.app == self._application_id:
                heard.append(Heard(timestamp_ms, message))
        return heard

    def close(self) -> None:
        """Let the readers go; idempotent."""
        self._state.close()
        self._inbox.close()


class _Topic:
    """One of the two, with its place in it."""

    def __init__(self, partition: TopicPartition, admin: LogAdmin, reader: ChangelogReader) -> None:
        self.partition = partition
        self._admin = admin
        self._reader = reader
        self.is_begun = False

    def begin(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Begin to read there."""
        self._reader.assign(offsets)
        self.is_begun = True

    def rows(self, *, decided: bool = False) -> Iterator[_Row]:
        """Yield offset, time and value of each record up to the end as it is now, or up to the last stable offset."""
        ask = self._admin.stable_offsets if decided else self._admin.end_offsets
        end = ask([self.partition])[self.partition]
        give_up_s = time.monotonic() + _PATIENCE_S
        while self._reader.positions()[self.partition] < end:
            for run in self._poll(_POLL_S):
                give_up_s = time.monotonic() + _PATIENCE_S
                yield from zip(run.offsets, run.timestamps, run.raw_values, strict=True)
            if time.monotonic() > give_up_s:
                stable = self._admin.stable_offsets([self.partition])[self.partition]
                raise StreamsError(
                    f"topic {self.partition.topic}: a transaction is open in it from offset {stable} on, and what was written since "
                    f"can't be read, up to offset {end}; `tidewheel status` names it and the command that ends it"
                    if stable < end
                    else f"topic {self.partition.topic}: nothing came for {_PATIENCE_S:g} s, though it has records; look at "
                    "the brokers, and try again"
                )

    def fetched_rows(self) -> Iterator[_Row]:
        """Yield offset, time and value of each record that is here already."""
        while runs := self._poll(0.0):
            for run in runs:
                yield from zip(run.offsets, run.timestamps, run.raw_values, strict=True)

    def close(self) -> None:
        self._reader.close()

    def _poll(self, wait_s: float) -> list[SourceRecords]:
        try:
            return self._reader.poll(_RECORDS, wait_s)
        except OffsetOutOfRangeError:
            # Deleted by age between asking and reading; what is left is all there is.
            self._reader.assign(self._admin.beginning_offsets([self.partition]))
            return []
