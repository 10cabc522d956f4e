"""Access to an application's group for commands: its two topics, and the brokers."""

import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Protocol

from tidewheel.rebalance.inspect.describe import LogEntry, LogFold
from tidewheel.rebalance.inspect.history import Chronicle
from tidewheel.rebalance.model import WHOLE, Shard, TopicPartition
from tidewheel.rebalance.protocol.decoding import RejectedRecord
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.messages import AnyMessage, encode_message
from tidewheel.rebalance.runtime.ports import LeadershipLostError
from tidewheel.streams.cli.application import application_of
from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.group.alarms import BrokerFacts, foreign_offsets
from tidewheel.streams.group.group_log_writer import GroupLogWriter, group_log_writer
from tidewheel.streams.group.inbox import InboxFold, inbox_back_ms
from tidewheel.streams.group.range_map import progress_of
from tidewheel.streams.group.recovery import LogWriter
from tidewheel.streams.group.reset import ResetAdmin
from tidewheel.streams.group.stalled_transactions import StalledTransactions
from tidewheel.streams.group.status import GroupStatus, group_status
from tidewheel.streams.group.topics import GroupTopics
from tidewheel.streams.kafka.admin.group_log import LeaderProducer, inbox_topic, state_topic
from tidewheel.streams.kafka.admin.reset_admin import TIMEOUT_S, KafkaResetAdmin, show_wait
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.consumers.group_reader import KafkaGroupReader
from tidewheel.streams.kafka.portable_settings import settings_of
from tidewheel.streams.kafka.producers.sink_producer import KafkaSinkProducer
from tidewheel.tasks.kafka.internal_topics import HIDDEN_TOPICS, offsets_group
from tidewheel.tasks.kafka.open_transactions import OpenTransaction
from tidewheel.tasks.kafka.ports import CommittedOffset, SinkProducer
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.processing.engine.output import OutputColumns

#: Seconds between checks of the transactions that were open at a command's first check, until each
#: has ended or counts as stalled (5 s).
_RECHECK_S: Final = 0.5


class GroupConnection(Protocol):
    """Clients of one cluster, created on first use."""

    @property
    def admin(self) -> ResetAdmin: ...

    @property
    def topics(self) -> GroupTopics: ...

    def sink(self) -> SinkProducer: ...

    def leader(self) -> LogWriter:
        """Return a leader's writer of the group log; the connection's `close` closes it."""
        ...

    def group_log(self) -> GroupLogWriter:
        """Return a writer of steps into the group log; the caller closes it."""
        ...

    def close(self) -> None: ...


class KafkaConnection:
    def __init__(self, config: StreamsConfig, *, live: bool) -> None:
        self._settings = settings_of(config, client_id=f"{config.application_id}-operator")
        self._leader: _Leader | None = None
        self._admin = KafkaResetAdmin(self._settings, live=live).found()
        self.admin: ResetAdmin = self._admin
        self.topics = GroupTopics(
            config.application_id,
            self._admin,
            KafkaGroupReader(self._settings, committed_only=True),
            KafkaGroupReader(self._settings, committed_only=False),
        )

    def sink(self) -> SinkProducer:
        return KafkaSinkProducer(self._settings)

    def leader(self) -> LogWriter:
        self._leader = _Leader(self._settings)
        return self._leader

    def group_log(self) -> GroupLogWriter:
        return group_log_writer(self._settings, self._admin)

    def close(self) -> None:
        if self._leader is not None:
            self._leader.close()
        self.topics.close()
        self._admin.close()


class _Leader:
    def __init__(self, settings: ClientSettings) -> None:
        self._topic = state_topic(settings.application_id)
        self._producer = LeaderProducer(
            settings, TopicPartition(self._topic, 0), timeout_s=TIMEOUT_S, on_wait=show_wait
        )

    def init(self) -> None:
        with self._as_streams_error():
            self._producer.init()

    def write(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        with self._as_streams_error():
            self._producer.write(keys, values)

    def close(self) -> None:
        self._producer.close()

    @contextmanager
    def _as_streams_error(self) -> Generator[None]:
        try:
            yield
        except LeadershipLostError as error:
            raise StreamsError(
                f"topic {self._topic} could not be written: {error}; nothing is half done, run the command again"
            ) from error


class GroupAccess:
    """A command's access to a group; each read continues at the offset of the last one."""

    def __init__(
        self, config: StreamsConfig, connection: GroupConnection, now_ms: Callable[[], int]
    ) -> None:
        self.config = config
        self.connection = connection
        self.log = LogFold(state_topic(config.application_id))
        self.inbox = InboxFold()
        #: Set by commands that show the group's history, before the first read. It shares `log`.
        self.chronicle: Chronicle | None = None
        #: Set by commands that show key ranges: their positions are in committed offsets.
        self.shows_ranges = False
        self.now_ms = now_ms
        self.operator = f"operator-{secrets.token_hex(8)}"
        #: Set by commands that read once: they wait until each open transaction ends or stalls.
        self.reads_once = False
        self.pause: Callable[[float], object] = time.sleep
        self._transactions = StalledTransactions()
        self._around = BrokerFacts()

    @property
    def application_id(self) -> str:
        return self.config.application_id

    @property
    def group(self) -> Group:
        return self.log.group

    def check_exists(self) -> None:
        name = state_topic(self.application_id)
        if name not in self.connection.topics.topic_ids():
            raise StreamsError(
                f"application {self.application_id} has no group on {self.config.bootstrap_servers}: there is no topic "
                f"{name}. Check the name and --bootstrap-servers; a group begins when its first member starts, and "
                f"`tidewheel group recover` sets up one whose topic was deleted; {HIDDEN_TOPICS}"
            )

    def read_log(self, *, decided: bool = False) -> list[LogEntry | RejectedRecord]:
        """Read the group log; return new entries, if `decided` only before open transactions."""
        entries = self.connection.topics.log(decided=decided)
        for entry in entries:
            (self.chronicle or self.log).add(entry)
        return entries

    def read_inbox(self, *, whole: bool = False) -> None:
        """Read the inbox to its end.

        The first call starts two session timeouts back, or with `whole` at the oldest message.
        """
        since_ms = 0 if whole else self.now_ms() - inbox_back_ms(self.group)
        for message in self.connection.topics.inbox(since_ms):
            self.inbox.add(message)

    def read_existing_topics(self, *, whole: bool = False) -> Mapping[str, str]:
        """Read those of the group's two topics that exist; return their topic ids by name."""
        ids = self.connection.topics.topic_ids()
        if state_topic(self.application_id) in ids:
            self.read_log()
        if inbox_topic(self.application_id) in ids:
            self.read_inbox(whole=whole)
        return ids

    def read(self) -> list[LogEntry | RejectedRecord]:
        """Read both topics, the log up to the first open transaction; return its new entries."""
        entries = self.read_log(decided=True)
        self.read_inbox()
        return entries

    def read_status(self, *, ask_brokers: bool = True) -> GroupStatus:
        """Read both topics and return the status; `ask_brokers` adds data that only brokers have."""
        self.read()
        self.inbox.forget_old()
        if ask_brokers:
            self._around = self._broker_facts()
        elif self.shows_ranges and not self._around.problem:
            self._around = self._with_ranges()
        return group_status(
            self.application_id, self.log, self.inbox, now_ms=self.now_ms(), around=self._around
        )

    def send(self, message: AnyMessage) -> None:
        sink = self.connection.sink()
        try:
            sink.produce(
                OutputColumns(
                    topic=inbox_topic(self.application_id),
                    partitions=0,
                    keys=[message.incarnation.encode()],
                    values=[encode_message(message)],
                    timestamps=[self.now_ms()],
                )
            )
            failures = sink.flush()
        finally:
            sink.close()
        if failures:
            raise StreamsError(
                f"topic {inbox_topic(self.application_id)} did not take the message: {failures[0].error}; the group "
                "knows nothing of it, try again"
            )

    def _broker_facts(self) -> BrokerFacts:
        try:
            committed = self._committed()
            return BrokerFacts(
                subscribers=self.connection.admin.group_members(self.application_id),
                foreign_offsets=foreign_offsets(self.application_id, committed),
                topic_ids=self.connection.topics.topic_ids(),
                progress=self._progress(committed) if self.shows_ranges else None,
                open_transactions=self._stalled_transactions(),
            )
        except StreamsError as error:
            # A user without rights on the brokers still sees the group, with this problem.
            return BrokerFacts(problem=str(error))

    def _stalled_transactions(self) -> tuple[OpenTransaction, ...]:
        candidates = {
            *self._inputs(),
            *(
                TopicPartition(topic, task.partition)
                for task, shape in self.group.tasks.items()
                for topic in shape.changelogs
            ),
            TopicPartition(state_topic(self.application_id), 0),
        }
        admin = self.connection.admin
        topics = admin.describe_topics(sorted({partition.topic for partition in candidates}))
        partitions = sorted(
            partition
            for partition in candidates
            if partition.topic in topics
            and partition.partition < topics[partition.topic].partitions
        )
        begun_s = time.monotonic()
        self._transactions.update(admin.open_transactions(partitions), begun_s)
        while self.reads_once and self._transactions.is_undecided(begun_s):
            self.pause(_RECHECK_S)
            self._transactions.update(admin.open_transactions(partitions), time.monotonic())
        return self._transactions.stalled

    def _with_ranges(self) -> BrokerFacts:
        try:
            progress = self._progress(self._committed())
        except StreamsError as error:
            # Drop earlier ranges, which would be shown as current.
            return replace(self._around, progress=None, problem=str(error))
        return replace(self._around, progress=progress)

    def _progress(
        self, whole: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[Shard, dict[TopicPartition, Progress]]:
        """Return the progress of whole tasks, and of the shards that the group has."""
        shards = {task.shard for task in self.group.tasks} - {WHOLE}
        committed = {WHOLE: whole} | {shard: self._committed(shard) for shard in shards}
        return {
            shard: progress_of(self.application_id, of_shard)
            for shard, of_shard in committed.items()
        }

    def _inputs(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, number)
            for topic, count in sorted(self.group.about.partitions.items())
            for number in range(count)
        ]

    def _committed(self, shard: Shard = WHOLE) -> dict[TopicPartition, CommittedOffset]:
        inputs = self._inputs()
        if not inputs:
            return {}
        group_id = offsets_group(self.application_id, shard)
        return self.connection.admin.committed(group_id, inputs, stable=False)


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def connect(config: StreamsConfig, *, live: bool = False) -> GroupConnection:
    return KafkaConnection(config, live=live)


@contextmanager
def group_access(
    target: str | None, settings: SettingsOptions | None, *, live: bool = False
) -> Generator[GroupAccess]:
    """Open the group of MODULE:TOPOLOGY, of an application id, or of the settings' application.

    `live`: for a command that reads it again and again.
    """
    config, _ = application_of(target, settings or SettingsOptions())
    with access_to(config, live=live) as access:
        yield access


@contextmanager
def access_to(config: StreamsConfig, *, live: bool = False) -> Generator[GroupAccess]:
    connection = connect(config, live=live)
    try:
        yield GroupAccess(config, connection, wall_clock_ms)
    finally:
        connection.close()


def moment_text(timestamp_ms: int) -> str:
    """Format a time in UTC.

    >>> moment_text(1_795_262_400_123)
    '2026-11-21 12:00:00.123Z'
    """
    text = datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(" ", "milliseconds")
    return text.removesuffix("+00:00") + "Z"
