"""Group log on Kafka: the port `tidewheel.rebalance.runtime.ports.GroupLog`, and a leader's other requests.

Only the leader writes the state topic, in transactions of `<app>-leader`; a claim
(`init_transactions`) fences the previous leader. Members write the inbox without transactions and
read it uncommitted, so no open transaction can block it (H3).
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message

from tidewheel.rebalance.model import TopicPartition, parse_position_key, position_key
from tidewheel.rebalance.producer_ids import own_ids
from tidewheel.rebalance.protocol.decoding import RejectedRecord, Rejection
from tidewheel.rebalance.protocol.messages import AnyMessage, encode_message, read_message
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    SnapshotBegin,
    SnapshotEnd,
    encode_record,
    read_record,
    record_keys,
)
from tidewheel.rebalance.runtime.ports import (
    ControlTopicsChangedError,
    GroupLogAwayError,
    LeadershipLostError,
    LoggedRecord,
    LogRead,
)
from tidewheel.state_stores.failpoints import failpoint, reach
from tidewheel.streams.errors import FencedError, MissingSourceTopicError, StreamsError
from tidewheel.streams.kafka.admin.admin import KafkaAdmin
from tidewheel.streams.kafka.client.advice import missing_right
from tidewheel.streams.kafka.client.client_log import ClientLog, LeaderLog, error_of
from tidewheel.streams.kafka.client.codes import is_transient
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.client.waits import OnWait, reported_wait
from tidewheel.streams.kafka.consumers.control_topics import ControlTopicsReader
from tidewheel.streams.kafka.producers.producer import ProducerClient, RefusedError, StalledError
from tidewheel.tasks.kafka.ports import NewTopic, OffsetOutOfRangeError
from tidewheel.tasks.kafka.shard_inputs import all_committed
from tidewheel.tasks.key_ranges.progress_vector import Progress, is_foreign

_T = TypeVar("_T")

_log: Final = logging.getLogger("tidewheel.group")

_MIB: Final = 1024 * 1024
_PREPARE_S: Final = 2.0
_ASK_TIMEOUT_S: Final = 10.0
#: Seconds for a leader's request. Waiting longer is useless: another process claims leadership.
_LEADER_TIMEOUT_S: Final = 10.0
#: Longest time-out of a transaction, which brokers may limit.
_TRANSACTION_MS_MAX: Final = 60_000
#: Attempts to fence a producer id: another process may fence it at the same moment.
_FENCE_TRIES: Final = 3

#: The broker sets all timestamps: producers' clocks are not comparable.
_TIMESTAMPS: Final = "message.timestamp.type"
_BROKERS_TIME: Final = "LogAppendTime"

#: An hour of history for `tidewheel group history`; then compaction.
STATE_TOPIC_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": "3600000",
    "delete.retention.ms": "86400000",
    "segment.bytes": str(16 * _MIB),
    _TIMESTAMPS: _BROKERS_TIME,
}
INBOX_TOPIC_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "3600000",
    "retention.bytes": str(64 * _MIB),
    # `tidewheel state delete` sends the key through this topic. Kafka never deletes the active
    # segment, so with the default of 7 days a quiet group would keep the key for days.
    "segment.ms": "3600000",
    "segment.bytes": str(8 * _MIB),
    _TIMESTAMPS: _BROKERS_TIME,
}


def state_topic(app: str) -> str:
    """Return the name of an application's state topic.

    >>> state_topic("shop")
    'shop-group-state'
    """
    return f"{app}-group-state"


def inbox_topic(app: str) -> str:
    """Return the name of an application's inbox.

    >>> inbox_topic("shop")
    'shop-group-inbox'
    """
    return f"{app}-group-inbox"


def new_control_topics(app: str, replication_factor: int, missing: Iterable[str]) -> list[NewTopic]:
    configs = {state_topic(app): STATE_TOPIC_CONFIG, inbox_topic(app): INBOX_TOPIC_CONFIG}
    return [
        NewTopic(
            name=name, partitions=1, replication_factor=replication_factor, config=configs[name]
        )
        for name in missing
    ]


def leader_transactional_id(app: str) -> str:
    """Return the transactional id of an application's leader.

    >>> leader_transactional_id("shop")
    'shop-leader'
    """
    return f"{app}-leader"


class KafkaGroupLog:
    """Group log and inbox of one application; `GroupLog` lists the methods of each thread."""

    def __init__(self, settings: ClientSettings, *, replication_factor: int = -1) -> None:
        self._settings = settings
        self._replication_factor = replication_factor
        app = settings.application_id
        self._state = TopicPartition(state_topic(app), 0)
        self._inbox = TopicPartition(inbox_topic(app), 0)
        self._admin = KafkaAdmin(settings, timeout_s=_ASK_TIMEOUT_S)
        self._reader: ControlTopicsReader | None = None
        self._position = 0
        #: Records, with offsets, of a transaction whose last record is not read yet.
        self._unfinished: list[tuple[int, LoggedRecord]] = []
        self._leader: LeaderProducer | None = None
        self._inbox_producer = _InboxProducer(settings, self._inbox)

    def open(self, *, create: bool, inbox_back_ms: int) -> Mapping[str, str]:
        return _tried(lambda: self._open(create=create, inbox_back_ms=inbox_back_ms))

    def _open(self, *, create: bool, inbox_back_ms: int) -> Mapping[str, str]:
        ids = self._ids()
        missing = [
            partition.topic
            for partition in (self._state, self._inbox)
            if partition.topic not in ids
        ]
        if missing and not create:
            raise ControlTopicsChangedError(
                f"topic {missing[0]} is gone; it holds the group's decisions"
            )
        if missing:
            app = self._settings.application_id
            self._admin.create_topics(new_control_topics(app, self._replication_factor, missing))
            ids = self._ids()
        if len(missing) < len(ids):
            self._use_brokers_time()
        self._position = self._admin.beginning_offsets([self._state])[self._state]
        recent = self._admin.offsets_of_age({self._inbox: inbox_back_ms})[self._inbox]
        self._reader = ControlTopicsReader(
            self._settings, (self._state, self._position), (self._inbox, recent), self._inbox_end
        )
        self._inbox_producer.prepare()
        return ids

    def _use_brokers_time(self) -> None:
        names = [self._state.topic, self._inbox.topic]
        try:
            descriptions = self._admin.describe_topics(names, config=[_TIMESTAMPS])
            for name, topic in sorted(descriptions.items()):
                if topic.config.get(_TIMESTAMPS, _BROKERS_TIME) != _BROKERS_TIME:
                    self._admin.alter_topic(name, {_TIMESTAMPS: _BROKERS_TIME})
                    _log.info("topic %s: set %s=%s", name, _TIMESTAMPS, _BROKERS_TIME)
        except StreamsError as error:
            _log.warning(
                "topics %s could not be checked for %s=%s, and a process whose clock is an hour ahead of the broker's can't "
                "lead where it is not set; permit DESCRIBE_CONFIGS and ALTER_CONFIGS on them, or set it by kafka-configs: %s",
                ", ".join(names),
                _TIMESTAMPS,
                _BROKERS_TIME,
                error,
            )

    def _ids(self) -> dict[str, str]:
        descriptions = self._admin.describe_topics([self._state.topic, self._inbox.topic])
        return {name: topic.topic_id.hex() for name, topic in descriptions.items()}

    def poll(self, timeout_s: float) -> LogRead:
        reader = self._reader
        assert reader is not None, "open the log first"
        try:
            arrivals = reader.receive(timeout_s)
        except (OffsetOutOfRangeError, MissingSourceTopicError) as error:
            raise ControlTopicsChangedError(str(error)) from error
        except StreamsError as error:
            raise GroupLogAwayError(str(error)) from error
        records: list[LoggedRecord] = []
        inbox_rows: list[tuple[int, bytes | None]] = []
        for arrival in arrivals:
            if arrival.partition == self._state:
                for run in arrival.runs:
                    columns = zip(run.offsets, run.raw_keys, run.raw_values, strict=True)
                    self._unfinished += [(row[0], self._logged(*row)) for row in columns]
                self._position = arrival.position
                records += self._pop_committed()
                continue
            for run in arrival.runs:
                inbox_rows += zip(run.offsets, run.raw_values, strict=True)
        if not arrivals and self._unfinished and self._position >= self._stable_offset():
            # No marker follows these records: no leader's transaction wrote them.
            records += [logged for _, logged in self._unfinished]
            self._unfinished.clear()
        messages = [(offset, read_message(value)) for offset, value in inbox_rows]
        valid = [
            message for _, message in messages if message and not isinstance(message, Rejection)
        ]
        return LogRead(
            records=tuple(records),
            messages=tuple(valid),
            state_offset=self._state_offset(),
            dropped=len(messages) - len(valid),
            rejected=tuple(
                _rejected(self._inbox, offset, message)
                for offset, message in messages
                if isinstance(message, Rejection)
            ),
        )

    def _logged(self, offset: int, key: bytes | None, value: bytes | None) -> LoggedRecord:
        text = (key or b"").decode(errors="replace")
        record = read_record(value)
        if isinstance(record, Rejection):
            return LoggedRecord(
                text, None, rejected=_rejected(self._state, offset, record), offset=offset
            )
        return LoggedRecord(text, record, tombstone=value is None, offset=offset)

    def _pop_committed(self) -> list[LoggedRecord]:
        """Return the unfinished records once the position is past their transaction's marker."""
        if not self._unfinished or self._position == self._unfinished[-1][0] + 1:
            return []
        committed = [logged for _, logged in self._unfinished]
        self._unfinished.clear()
        return committed

    def _state_offset(self) -> int:
        return self._unfinished[0][0] if self._unfinished else self._position

    def _stable_offset(self) -> int:
        return _tried(lambda: self._admin.stable_offsets([self._state])[self._state])

    def _inbox_end(self) -> int:
        return self._admin.end_offsets([self._inbox])[self._inbox]

    def state_end(self) -> int:
        return _tried(lambda: self._admin.end_offsets([self._state])[self._state])

    def topic_ids(self) -> Mapping[str, str]:
        return _tried(self._ids)

    def send(self, messages: Sequence[AnyMessage]) -> None:
        self._inbox_producer.send(messages)
        _reach("sent", messages)

    def claim(self) -> int:
        self.resign()
        self._leader = LeaderProducer(self._settings, self._state)
        self._leader.init()
        return self.state_end()

    def append(self, records: Sequence[AnyRecord]) -> None:
        self._written(
            record_keys(records),
            list(map(encode_record, records)),
            lambda: _reach("appending", records),
        )
        _reach("appended", records)

    def forget(self, keys: Sequence[str]) -> None:
        self._written([key.encode() for key in keys], [None] * len(keys))

    def _written(
        self,
        keys: list[bytes],
        values: Sequence[bytes | None],
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        if self._leader is None:
            raise LeadershipLostError("resigned")
        self._leader.write(keys, values, before_commit)

    def resign(self) -> None:
        leader, self._leader = self._leader, None
        if leader is not None:
            leader.close()

    def close(self) -> None:
        self._inbox_producer.close()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        self.resign()
        self._admin.close()


class LeaderProducer:
    """The leader's producer.

    Args:
        timeout_s: Seconds for each call. A leader resigns early, so that another member leads; a
            command can wait longer.
        on_wait: Reports a long wait.
    """

    def __init__(
        self,
        settings: ClientSettings,
        state: TopicPartition,
        *,
        timeout_s: float = _LEADER_TIMEOUT_S,
        on_wait: OnWait | None = None,
    ) -> None:
        self._state = state
        self._timeout_s = timeout_s
        self._on_wait = on_wait
        app = settings.application_id
        config = settings.leader(
            leader_transactional_id(app), min(int(timeout_s * 1000), _TRANSACTION_MS_MAX)
        )
        self._log = LeaderLog(config["client.id"], with_debug="debug" in settings.producer)
        self._producer = ProducerClient(config, self._log, stall_timeout_s=timeout_s)

    def init(self) -> None:
        with reported_wait(f"a first transaction on {self._state.topic}", self._on_wait):
            self._tried(self._producer.named("init_transactions"))
            _fetch_topic_metadata(self._producer, self._state.topic)

    def write(
        self,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        if not keys:
            return
        with reported_wait(f"a transaction on {self._state.topic}", self._on_wait):
            self._write(keys, values, before_commit)

    def _write(
        self,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        before_commit: Callable[[], None],
    ) -> None:
        self._producer.serve()
        self._log.transaction_begins()
        deadline_s = time.monotonic() + self._timeout_s
        try:
            self._producer.client.begin_transaction()
            self._producer.send_columns(
                *self._state,
                keys,
                values,
                [time.time_ns() // 1_000_000] * len(keys),
                stop=len(keys),
            )
            if not self._producer.flush(deadline_s):
                raise LeadershipLostError("the cluster accepted no records for too long")
            before_commit()
            self._producer.call(self._producer.named("commit_transaction"), deadline_s=deadline_s)
        except KafkaException as exception:
            raise LeadershipLostError(self._error_text(error_of(exception))) from exception
        except RefusedError as refused:
            raise LeadershipLostError(
                f"a record was refused: {self._error_text(refused.error)}"
            ) from refused
        except StalledError as stalled:
            raise LeadershipLostError("the cluster accepted no records for too long") from stalled
        self._producer.serve()
        # An unanswered EndTxn request may reach the broker late and end the next transaction.
        if self._log.doubt:
            raise LeadershipLostError(f"a transaction's outcome is unknown: {self._log.doubt}")

    def close(self) -> None:
        self._producer.drop()

    def _tried(self, operation: Callable[..., Any]) -> None:
        try:
            self._producer.call(operation, deadline_s=time.monotonic() + self._timeout_s)
        except KafkaException as exception:
            raise LeadershipLostError(self._error_text(error_of(exception))) from exception

    def _error_text(self, error: KafkaError) -> str:
        cause = f"; {self._log.failure}" if self._log.failure else ""
        step = missing_right(error, "WRITE", self._state.topic)
        return f"{error.name()}: {error.str()}{cause}{step and f'; {step}'}"


class _InboxProducer:
    """Sends a member's inbox messages, for one thread; replaces a failed client."""

    def __init__(self, settings: ClientSettings, inbox: TopicPartition) -> None:
        self._settings = settings
        self._inbox = inbox
        self._producer: ProducerClient | None = None
        self._is_warned = False

    def prepare(self) -> None:
        if self._producer is None:
            self._producer = self._new_client()
            _fetch_topic_metadata(self._producer, self._inbox.topic)

    def _new_client(self) -> ProducerClient:
        config = self._settings.inbox()
        log = ClientLog(config["client.id"], with_debug="debug" in self._settings.producer)
        return ProducerClient(config, log, stall_timeout_s=0.0)

    def send(self, messages: Sequence[AnyMessage]) -> None:
        producer = self._producer
        if producer is None:
            self._producer = producer = self._new_client()
        keys = [message.member.encode() for message in messages]
        values = list(map(encode_message, messages))
        try:
            # 1 is a placeholder: the broker replaces timestamps by its own time.
            producer.send_columns(
                *self._inbox, keys, values, [1] * len(keys), stop=len(keys), callback=self._warn
            )
        except StalledError:
            return
        except RefusedError as refused:
            if refused.error.fatal():
                self._producer = None
                return
        producer.serve()

    def _warn(self, error: KafkaError | None, _: Message) -> None:
        step = "" if error is None else missing_right(error, "WRITE", self._inbox.topic)
        if step and not self._is_warned:
            self._is_warned = True
            _log.warning(
                "no message reaches topic %s, and its sender no group; %s", self._inbox.topic, step
            )

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaException):
                producer.flush(time.monotonic() + 1.0)
            producer.drop()


class KafkaGroupAdmin:
    def __init__(self, settings: ClientSettings) -> None:
        self._group_id = settings.application_id
        self._admin = KafkaAdmin(settings, timeout_s=_ASK_TIMEOUT_S)

    def fence(self, transactional_ids: Sequence[str]) -> None:
        own = own_ids(self._group_id, transactional_ids)
        if len(own) < len(set(transactional_ids)):
            _log.warning(
                "group %s: %d transactional ids in the group log are not of a form that this application uses; their "
                "producers are not fenced",
                self._group_id,
                len(set(transactional_ids)) - len(own),
            )
        for left in reversed(range(_FENCE_TRIES)):
            try:
                self._admin.fence(own)
            except FencedError:
                if not left:
                    raise
            else:
                return

    def ends(self, positions: Sequence[str]) -> Mapping[str, int]:
        partitions = [partition for text in positions for partition in _partitions(text)]
        try:
            ends = self._admin.end_offsets(partitions)
        except MissingSourceTopicError:
            descriptions = self._admin.describe_topics(
                [partition.topic for partition in partitions]
            )
            ends = self._admin.end_offsets(
                [
                    partition
                    for partition in partitions
                    if partition.topic in descriptions
                    and partition.partition < descriptions[partition.topic].partitions
                ]
            )
        return {position_key(partition): offset for partition, offset in ends.items()}

    def foreign_offsets(self, partitions: Mapping[str, int]) -> tuple[str, ...]:
        inputs = [
            TopicPartition(topic, number)
            for topic, count in sorted(partitions.items())
            for number in range(count)
        ]
        committed = all_committed(self._admin, self._group_id, inputs)
        return tuple(
            str(partition)
            for partition, (offset, metadata) in sorted(committed.items())
            if is_foreign(metadata, offset, f"{self._group_id}-")
        )

    def was_used(self) -> bool:
        committed = all_committed(self._admin, self._group_id)
        progress = [
            Progress.decode(committed_offset.metadata, committed_offset=committed_offset.offset)
            for committed_offset in committed.values()
        ]
        return any(commit is not None and commit.task_epoch > 0 for commit in progress)

    def close(self) -> None:
        self._admin.close()


def _partitions(text: str) -> list[TopicPartition]:
    try:
        return [parse_position_key(text)]
    except ValueError:
        return []


def _fetch_topic_metadata(producer: ProducerClient, topic: str) -> None:
    """Fetch a topic's metadata; otherwise the first record waits half a second."""
    with contextlib.suppress(KafkaException):
        producer.client.list_topics(topic, timeout=_PREPARE_S)


def _reach(moment: str, items: Sequence[AnyRecord] | Sequence[AnyMessage]) -> None:
    """Reach the failpoints of messages or decisions; a snapshot only repeats decisions."""
    if failpoint is not reach:
        return
    in_snapshot = False
    for item in items:
        in_snapshot = in_snapshot and not isinstance(item, SnapshotEnd)
        tag = type(item).__struct_config__.tag
        if not in_snapshot:
            failpoint(moment, *{tag, getattr(item, "event", tag), getattr(item, "phase", tag)})
        in_snapshot = in_snapshot or isinstance(item, SnapshotBegin)


def _rejected(partition: TopicPartition, offset: int, rejection: Rejection) -> RejectedRecord:
    return RejectedRecord(
        topic=partition.topic, partition=partition.partition, offset=offset, rejection=rejection
    )


def _tried(call: Callable[[], _T]) -> _T:
    """Return a call's result; replace its errors by those that `GroupLog` documents.

    The caller retries after `GroupLogAwayError`.
    """
    try:
        return call()
    except MissingSourceTopicError as error:
        raise ControlTopicsChangedError(str(error)) from error
    except StreamsError as error:
        raise GroupLogAwayError(str(error)) from error
    except KafkaException as exception:
        kafka_error = error_of(exception)
        if not is_transient(kafka_error):
            raise
        raise GroupLogAwayError(f"{kafka_error.name()}: {kafka_error.str()}") from exception
