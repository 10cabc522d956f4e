"""Follows the group log for a program that asks where keys are: begun by the first question, read on by the others."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tidewheel.rebalance.group import Group
from tidewheel.rebalance.inspect.describe import LogEntry, LogFold
from tidewheel.rebalance.protocol.decoding import RejectedRecord
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.group.discovery import all_clients, partitioner_of, where_is, without_headers
from tidewheel.streams.group.key_metadata import (
    HostInfo,
    KeyQueryMetadata,
    PartitionerWithHeaders,
    StreamsMetadata,
)
from tidewheel.streams.group.topics import LogTopic
from tidewheel.streams.kafka.admin.admin import KafkaAdmin
from tidewheel.streams.kafka.admin.group_log import state_topic
from tidewheel.streams.kafka.consumers.group_reader import KafkaGroupReader
from tidewheel.streams.kafka.portable_settings import settings_of
from tidewheel.streams.serdes import SerdeLike
from tidewheel.streams.worker.application.application import Application
from tidewheel.tasks.processing.api.topology_spec import Partitioner


class FollowedLog(Protocol):
    """A group log by position (`tidewheel.streams.group.topics.LogTopic`)."""

    def to_end(self, *, decided: bool = False) -> Sequence[LogEntry | RejectedRecord]:
        """Return what was not returned yet, up to the end as it is now, or as far as it is decided."""
        ...

    def at_hand(self) -> Sequence[LogEntry | RejectedRecord]:
        """Return what has come by itself since."""
        ...

    def close(self) -> None:
        """Let the clients go."""
        ...


class GroupDirectory:
    """The group as the log tells it. May be asked from any thread.

    The first question reads the log to its end, and so takes a few round trips; later ones take what the client has
    fetched by itself meanwhile, and cost microseconds.

    Args:
        application: What runs.
        follow: Opens the log; None where it is not there yet, since no member has started.
    """

    def __init__(self, application: Application, follow: Callable[[], FollowedLog | None]) -> None:
        self._spec = application.spec
        self._config = application.config
        self._follow = follow
        self._lock = threading.Lock()
        self._log: FollowedLog | None = None
        self._fold = LogFold()
        self._closed = False

    def group(self) -> Group:
        """Return the group, read on; an empty one before it has begun.

        Raises:
            StreamsError: The log can't be read, or this was closed.
        """
        with self._lock:
            if self._closed:
                raise StreamsError(
                    "the application is closed; make a new KafkaStreams to ask where keys are"
                )
            try:
                for entry in self._new():
                    self._fold.add(entry)
            except StreamsError:
                self._let_go()  # the next question begins anew
                raise
            return self._fold.group

    def where_is(
        self,
        store: str,
        key: object,
        serde: SerdeLike[Any],
        partitioner: Partitioner | PartitionerWithHeaders | None,
        headers: object = (),
    ) -> KeyQueryMetadata:
        """Return who has the state of a key (`KafkaStreams.query_metadata_for_key`)."""
        choose = (
            partitioner_of(serde) if partitioner is None else without_headers(partitioner, headers)
        )
        endpoint = self._config.application_server
        return where_is(
            self.group(),
            self._spec,
            self._config.application_id,
            store,
            key,
            choose,
            None if endpoint is None else HostInfo.of(endpoint),
        )

    def all_clients(self) -> list[StreamsMetadata]:
        """Return what each process has (`KafkaStreams.metadata_for_all_clients`)."""
        return all_clients(self.group(), self._spec, self._config.application_id)

    def close(self) -> None:
        """Let the clients go; idempotent."""
        with self._lock:
            self._closed = True
            self._let_go()

    def _new(self) -> Sequence[LogEntry | RejectedRecord]:
        if self._log is not None:
            return self._log.at_hand()
        self._fold = LogFold()
        self._log = self._follow()
        return [] if self._log is None else self._log.to_end(decided=True)

    def _let_go(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


class _KafkaLog(LogTopic):
    """The real one, with its clients."""

    def __init__(self, application_id: str, admin: KafkaAdmin, reader: KafkaGroupReader) -> None:
        super().__init__(application_id, admin, reader)
        self._client = admin

    def close(self) -> None:
        """Let the clients go."""
        super().close()
        self._client.close()


def group_directory(application: Application) -> GroupDirectory:
    """Return the directory of an application's group; nothing is opened before the first question."""
    config = application.config

    def follow() -> FollowedLog | None:
        settings = settings_of(config, client_id=f"{config.application_id}-directory")
        admin = KafkaAdmin(settings)
        topic = state_topic(config.application_id)
        try:
            if topic in admin.describe_topics([topic]):
                reader = KafkaGroupReader(settings, committed_only=True)
                return _KafkaLog(config.application_id, admin, reader)
        except BaseException:
            admin.close()
            raise
        admin.close()
        return None

    return GroupDirectory(application, follow)
