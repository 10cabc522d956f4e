"""How commands reach an application's group: its two topics, and the brokers."""

import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Protocol

from rebalance.describe import LogEntry, LogFold
from rebalance.door import RejectedRecord
from rebalance.group import Group
from rebalance.history import Chronicle
from rebalance.messages import AnyMessage, encode_message
from rebalance.model import TopicPartition
from rebalance.ports import LeadershipLostError
from streams.cli.application import application_of
from streams.cli.settings import SettingsOptions
from streams.config import StreamsConfig
from streams.errors import StreamsError
from streams.group.alarms import Surroundings, foreign_offsets
from streams.group.inbox import InboxFold, inbox_back_ms
from streams.group.range_map import progress_of
from streams.group.recovery import LogWriter
from streams.group.standing import StandingTransactions
from streams.group.status import GroupStatus, group_status
from streams.group.topics import GroupTopics
from streams.kafka.group_log import LeaderProducer, inbox_topic, state_topic
from streams.kafka.group_reader import KafkaGroupReader
from streams.kafka.portable_settings import settings_of
from streams.kafka.reset_admin import KafkaResetAdmin
from streams.kafka.settings import ClientSettings
from streams.kafka.sink_producer import KafkaSinkProducer
from streams.reset import ResetAdmin
from tasks.open_transactions import OpenTransaction
from tasks.ports import CommittedOffset, SinkProducer
from tasks.processing.output import OutputColumns

#: Who looks once looks again at transactions that are open after so long.
_LOOK_AGAIN_S: Final = 0.5


class Connection(Protocol):
    """Clients of one cluster, made when they are needed."""

    @property
    def admin(self) -> ResetAdmin:
        """Return what asks and orders the cluster."""
        ...

    @property
    def topics(self) -> GroupTopics:
        """Return the reader of the group's topics."""
        ...

    def sink(self) -> SinkProducer:
        """Return a producer for the inbox."""
        ...

    def leader(self) -> LogWriter:
        """Return a writer of the state topic; it is let go with all clients."""
        ...

    def close(self) -> None:
        """Let all clients go."""
        ...


class KafkaConnection:
    """The real one."""

    def __init__(self, config: StreamsConfig) -> None:
        self._settings = settings_of(config, client_id=f"{config.application_id}-operator")
        self._leader: _Leader | None = None
        self._admin = KafkaResetAdmin(self._settings).found()
        self.admin: ResetAdmin = self._admin
        self.topics = GroupTopics(
            config.application_id,
            self._admin,
            KafkaGroupReader(self._settings, committed_only=True),
            KafkaGroupReader(self._settings, committed_only=False),
        )

    def sink(self) -> SinkProducer:
        """Return a producer for the inbox."""
        return KafkaSinkProducer(self._settings)

    def leader(self) -> LogWriter:
        """Return a writer of the state topic."""
        self._leader = _Leader(self._settings)
        return self._leader

    def close(self) -> None:
        """Let all clients go."""
        if self._leader is not None:
            self._leader.close()
        self.topics.close()
        self._admin.close()


class _Leader:
    """A leader's producer, whose failures are told to an operator."""

    def __init__(self, settings: ClientSettings) -> None:
        self._topic = state_topic(settings.application_id)
        self._producer = LeaderProducer(settings, TopicPartition(self._topic, 0))

    def init(self) -> None:
        """Fence whoever led before."""
        with self._told():
            self._producer.init()

    def write(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Write records in one transaction."""
        with self._told():
            self._producer.write(keys, values)

    def close(self) -> None:
        """Let the client go."""
        self._producer.close()

    @contextmanager
    def _told(self) -> Generator[None]:
        try:
            yield
        except LeadershipLostError as error:
            raise StreamsError(
                f"topic {self._topic} could not be written: {error}; nothing is half done, run the command again"
            ) from error


class GroupAccess:
    """A group as a command sees it; each look reads on.

    Args:
        config: The application's settings.
        connection: Its cluster.
        now_ms: Tells ms since the epoch.
    """

    def __init__(
        self, config: StreamsConfig, connection: Connection, now_ms: Callable[[], int]
    ) -> None:
        self.config = config
        self.connection = connection
        self.log = LogFold(state_topic(config.application_id))
        self.inbox = InboxFold()
        #: Who wants to tell what happened gives one that takes in what is read of the log.
        self.chronicle: Chronicle | None = None
        #: Who wants to see where each key range stands says so; then every look reads the committed offsets.
        self.shows_ranges = False
        self.now_ms = now_ms
        self.operator = f"operator-{secrets.token_hex(8)}"
        #: Who looks once wants to know at once which transactions stay open, and waits some seconds for it.
        self.looks_once = False
        self.pause: Callable[[float], object] = time.sleep
        self._transactions = StandingTransactions()
        self._around = Surroundings()

    @property
    def application_id(self) -> str:
        """Return whose group it is."""
        return self.config.application_id

    @property
    def group(self) -> Group:
        """Return the group as last read."""
        return self.log.group

    def check_exists(self) -> None:
        """Raise `StreamsError` if the application has no group here."""
        name = state_topic(self.application_id)
        if name not in self.connection.topics.topic_ids():
            raise StreamsError(
                f"application {self.application_id} has no group on {self.config.bootstrap_servers}: there is no topic "
                f"{name}. Check the name and --bootstrap-servers; a group begins when its first member starts, and "
                "`tidewheel group recover` sets up one whose topic was deleted"
            )

    def read_log(self, *, decided: bool = False) -> list[LogEntry | RejectedRecord]:
        """Read the log to its end, or as far as it is decided; return what is new in it."""
        entries = self.connection.topics.log(decided=decided)
        for entry in entries:
            self.log.take(entry)
            if self.chronicle is not None:
                self.chronicle.take(entry)
        return entries

    def read_inbox(self, *, whole: bool = False) -> None:
        """Read the inbox to its end; the first time from two session timeouts back, or the `whole` hour that it keeps."""
        since_ms = 0 if whole else self.now_ms() - inbox_back_ms(self.group)
        for heard in self.connection.topics.inbox(since_ms):
            self.inbox.take(heard)

    def read_what_there_is(self, *, whole: bool = False) -> Mapping[str, str]:
        """Read those of the two topics that exist, to their ends (`read_inbox`); return their ids by name."""
        ids = self.connection.topics.topic_ids()
        if state_topic(self.application_id) in ids:
            self.read_log()
        if inbox_topic(self.application_id) in ids:
            self.read_inbox(whole=whole)
        return ids

    def read(self) -> list[LogEntry | RejectedRecord]:
        """Read both topics, the log as far as it is decided; return what is new in the log."""
        entries = self.read_log(decided=True)
        self.read_inbox()
        return entries

    def look(self, *, ask_brokers: bool = True) -> GroupStatus:
        """Read on, and return what is known now; with `ask_brokers` also what only brokers know."""
        self.read()
        self.inbox.forget_old()
        if ask_brokers:
            self._around = self._surroundings()
        elif self.shows_ranges and not self._around.problem:
            self._around = self._with_ranges()
        return group_status(
            self.application_id, self.log, self.inbox, now_ms=self.now_ms(), around=self._around
        )

    def say(self, message: AnyMessage) -> None:
        """Send a message to the inbox; returns when it is there. Raises `StreamsError` if it can't be."""
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

    def _surroundings(self) -> Surroundings:
        try:
            committed = self._committed()
            return Surroundings(
                subscribers=self.connection.admin.group_members(self.application_id),
                foreign_offsets=foreign_offsets(self.application_id, committed),
                topic_ids=self.connection.topics.topic_ids(),
                progress=progress_of(self.application_id, committed) if self.shows_ranges else None,
                open_transactions=self._standing_transactions(),
            )
        except StreamsError as error:
            # Who may read the two topics but not ask the brokers sees the group all the same, and is told.
            return Surroundings(problem=str(error))

    def _standing_transactions(self) -> tuple[OpenTransaction, ...]:
        """Return the transactions that stay open in the application's topics."""
        wanted = {
            *self._inputs(),
            *(
                TopicPartition(topic, task.partition)
                for task, shape in self.group.tasks.items()
                for topic in shape.changelogs
            ),
            TopicPartition(state_topic(self.application_id), 0),
        }
        admin = self.connection.admin
        there = admin.describe_topics(sorted({each.topic for each in wanted}))
        partitions = sorted(
            each
            for each in wanted
            if each.topic in there and each.partition < there[each.topic].partitions
        )
        begun_s = time.monotonic()
        self._transactions.note(admin.open_transactions(partitions), begun_s)
        while self.looks_once and self._transactions.is_unsure(begun_s):
            self.pause(_LOOK_AGAIN_S)
            self._transactions.note(admin.open_transactions(partitions), time.monotonic())
        return self._transactions.standing

    def _with_ranges(self) -> Surroundings:
        try:
            progress = progress_of(self.application_id, self._committed())
        except StreamsError as error:
            # What is known else stays; ranges as they were once are not shown as if they were those of now.
            return replace(self._around, progress=None, problem=str(error))
        return replace(self._around, progress=progress)

    def _inputs(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, number)
            for topic, count in sorted(self.group.about.partitions.items())
            for number in range(count)
        ]

    def _committed(self) -> dict[TopicPartition, CommittedOffset]:
        inputs = self._inputs()
        if not inputs:
            return {}
        return self.connection.admin.committed(self.application_id, inputs, stable=False)


def wall_clock_ms() -> int:
    """Return ms since the epoch."""
    return time.time_ns() // 1_000_000


def connect(config: StreamsConfig) -> Connection:
    """Return a connection to an application's cluster."""
    return KafkaConnection(config)


@contextmanager
def group_access(target: str | None, settings: SettingsOptions | None) -> Generator[GroupAccess]:
    """Give access to the group of an application: MODULE:TOPOLOGY, its id, or None for what the settings name."""
    config, _ = application_of(target, settings or SettingsOptions())
    with access_to(config) as access:
        yield access


@contextmanager
def access_to(config: StreamsConfig) -> Generator[GroupAccess]:
    """Give access to the group of the application that has these settings."""
    connection = connect(config)
    try:
        yield GroupAccess(config, connection, wall_clock_ms)
    finally:
        connection.close()


def moment_text(timestamp_ms: int) -> str:
    """Return a moment in UTC, to the millisecond.

    >>> moment_text(1_795_262_400_123)
    '2026-11-21 12:00:00.123Z'
    """
    text = datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(" ", "milliseconds")
    return text.removesuffix("+00:00") + "Z"
