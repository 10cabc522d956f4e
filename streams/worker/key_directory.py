"""Key directory: follows the group log to answer which worker has a key."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tidewheel.rebalance.inspect.describe import LogEntry, LogFold
from tidewheel.rebalance.protocol.decoding import RejectedRecord
from tidewheel.rebalance.protocol.group import Group
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
    """Reader of a group log that continues at its last position."""

    def to_end(self, *, decided: bool = False) -> Sequence[LogEntry | RejectedRecord]:
        """Return new entries up to the end of the log, or to the last stable offset (`decided`)."""
        ...

    def fetched(self) -> Sequence[LogEntry | RejectedRecord]:
        """Return new entries that the client has already fetched."""
        ...

    def close(self) -> None: ...


class GroupDirectory:
    """State of the group as read from its log, for any thread.

    The first call reads the whole log; later ones read only entries already fetched.
    """

    def __init__(self, application: Application, follow: Callable[[], FollowedLog | None]) -> None:
        self._spec = application.spec
        self._config = application.config
        self._application = application
        self._follow = follow
        self._lock = threading.Lock()
        self._log: FollowedLog | None = None
        self._fold = LogFold()
        self._closed = False

    def group(self) -> Group:
        """Return the group as of now; raise `StreamsError` if unreadable or closed."""
        with self._lock:
            if self._closed:
                raise StreamsError(
                    "the application is closed; make a new KafkaStreams to ask where keys are"
                )
            try:
                for entry in self._new_entries():
                    self._fold.add(entry)
            except StreamsError:
                self._close_log()  # the next call reads the log from its start
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
        choose = (
            partitioner_of(serde) if partitioner is None else without_headers(partitioner, headers)
        )
        endpoint = self._application.endpoint
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
        return all_clients(self.group(), self._spec, self._config.application_id)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._close_log()

    def _new_entries(self) -> Sequence[LogEntry | RejectedRecord]:
        if self._log is not None:
            return self._log.fetched()
        self._fold = LogFold()
        self._log = self._follow()
        return [] if self._log is None else self._log.to_end(decided=True)

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


class _KafkaLog(LogTopic):
    def __init__(self, application_id: str, admin: KafkaAdmin, reader: KafkaGroupReader) -> None:
        super().__init__(application_id, admin, reader)
        self._client = admin

    def close(self) -> None:
        super().close()
        self._client.close()


def group_directory(application: Application) -> GroupDirectory:
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
