"""Group topics: read-only access to the two control topics.

The state topic is read from its start, the inbox from a given time; later calls continue there.
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
from tidewheel.tasks.kafka.ports import ChangelogReader, OffsetOutOfRangeError, TopicDescription
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

_POLL_S: Final = 0.2
_RECORDS: Final = 1_000
_TIMEOUT_S: Final = 30.0


_Row = tuple[int, int, bytes | None]


class ReceivedMessage(NamedTuple):
    """Inbox message with its timestamp (ms since the epoch)."""

    timestamp_ms: int
    message: AnyMessage | RejectedRecord


class LogAdmin(Protocol):
    def describe_topics(
        self, names: Sequence[str], *, config: Sequence[str] = ()
    ) -> dict[str, TopicDescription]: ...

    def beginning_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]: ...

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]: ...

    def stable_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]: ...


class TopicsAdmin(LogAdmin, Protocol):
    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]: ...


class LogTopic:
    """Reader of the group log from the last offset read, read-committed; for one thread."""

    def __init__(self, application_id: str, admin: LogAdmin, reader: ChangelogReader) -> None:
        self._admin = admin
        self._partition = TopicPartition(state_topic(application_id), 0)
        self._topic = _GroupTopic(self._partition, admin, reader)

    def to_end(self, *, decided: bool = False) -> list[LogEntry | RejectedRecord]:
        """Return new entries up to the present end.

        Args:
            decided: Stop at the last stable offset instead of waiting for open transactions. Only for
                display, never for decisions.

        Raises:
            StreamsError: A transaction below the end stays open.
        """
        if not self._topic.is_begun:
            self._topic.begin(self._admin.beginning_offsets([self._partition]))
        return self._entries(self._topic.rows(decided=decided))

    def fetched(self) -> list[LogEntry | RejectedRecord]:
        """Return new entries fetched so far, without waiting."""
        return self._entries(self._topic.fetched_rows())

    def close(self) -> None:
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
    """Reader of group log and inbox from the last offset read; for one thread."""

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
        self._inbox = _GroupTopic(TopicPartition(inbox_topic(application_id), 0), admin, inbox)

    def topic_ids(self) -> Mapping[str, str]:
        names = [state_topic(self._application_id), inbox_topic(self._application_id)]
        return {
            name: topic.topic_id.hex() for name, topic in self._admin.describe_topics(names).items()
        }

    def log(self, *, decided: bool = False) -> list[LogEntry | RejectedRecord]:
        return self._state.to_end(decided=decided)

    def inbox(self, since_ms: int) -> list[ReceivedMessage]:
        if not self._inbox.is_begun:
            self._inbox.begin(self._admin.offsets_at([self._inbox.partition], since_ms))
        return self._messages(self._inbox.rows())

    def listen(self) -> None:
        """Start at the present end: no clock decides which messages are new."""
        self._inbox.begin(self._admin.end_offsets([self._inbox.partition]))

    def new_messages(self) -> list[ReceivedMessage]:
        return self._messages(self._inbox.fetched_rows())

    def _messages(self, rows: Iterable[_Row]) -> list[ReceivedMessage]:
        messages: list[ReceivedMessage] = []
        for offset, timestamp_ms, value in rows:
            message = read_message(value)
            if isinstance(message, Rejection):
                rejected = _rejected(self._inbox.partition, offset, timestamp_ms, message)
                messages.append(ReceivedMessage(timestamp_ms, rejected))
            elif message is not None and message.app == self._application_id:
                messages.append(ReceivedMessage(timestamp_ms, message))
        return messages

    def close(self) -> None:
        self._state.close()
        self._inbox.close()


class _GroupTopic:
    def __init__(self, partition: TopicPartition, admin: LogAdmin, reader: ChangelogReader) -> None:
        self.partition = partition
        self._admin = admin
        self._reader = reader
        self.is_begun = False

    def begin(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._reader.assign(offsets)
        self.is_begun = True

    def rows(self, *, decided: bool = False) -> Iterator[_Row]:
        read_ends = self._admin.stable_offsets if decided else self._admin.end_offsets
        end = read_ends([self.partition])[self.partition]
        deadline_s = time.monotonic() + _TIMEOUT_S
        while self._reader.positions()[self.partition] < end:
            for run in self._poll(_POLL_S):
                deadline_s = time.monotonic() + _TIMEOUT_S
                yield from zip(run.offsets, run.timestamps, run.raw_values, strict=True)
            if time.monotonic() > deadline_s:
                stable = self._admin.stable_offsets([self.partition])[self.partition]
                raise StreamsError(
                    f"topic {self.partition.topic}: a transaction is open in it from offset {stable} on, and later records "
                    f"can't be read, up to offset {end}; `tidewheel status` names it and the command that ends it"
                    if stable < end
                    else f"topic {self.partition.topic}: no record arrived for {_TIMEOUT_S:g} s, though it has more; check "
                    "the brokers, and try again"
                )

    def fetched_rows(self) -> Iterator[_Row]:
        while runs := self._poll(0.0):
            for run in runs:
                yield from zip(run.offsets, run.timestamps, run.raw_values, strict=True)

    def close(self) -> None:
        self._reader.close()

    def _poll(self, wait_s: float) -> list[SourceRecords]:
        try:
            return self._reader.poll(_RECORDS, wait_s)
        except OffsetOutOfRangeError:
            # Retention deleted the records meanwhile: continue with the remaining ones.
            self._reader.assign(self._admin.beginning_offsets([self.partition]))
            return []
