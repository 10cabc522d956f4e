"""The stores of one task: opened together, committed together.

Persistent stores share one RocksDB, in-memory ones one sorted dictionary. Every change of a commit goes to a database
in one write, the changelog positions last, so disk may lag the changelog and never lead it.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from rebalance.model import TaskId, TopicPartition
from state_stores.commit_buffer import CommitBuffer, Drained
from state_stores.errors import StoreCorruptedError
from state_stores.key_value_store import KeyValueStore, TimestampedKeyValueStore
from state_stores.ports import Database
from state_stores.position import Position
from state_stores.restore import position_name
from state_stores.spec import StoreKind, StoreSpec
from tasks.errors import TaskCorruptedError
from tasks.internal_topics import changelog_topic


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """What stores need to know of the application.

    Attributes:
        application_id: Prefix of the changelog topics.
        cache_enabled: Whether caching stores hold results back from downstream (`statestore_cache_max_bytes` > 0).
        keep_bytes_per_store: Budget of clean entries kept in memory per store.
    """

    application_id: str
    cache_enabled: bool
    keep_bytes_per_store: int


class StateManager:
    """The stores of one task. Owned by one thread at a time: first the one that restores, then the one that processes."""

    def __init__(
        self,
        task_id: TaskId,
        specs: tuple[StoreSpec, ...],
        settings: StateSettings,
        *,
        open_persistent: Callable[[list[str]], Database],
        open_in_memory: Callable[[list[str]], Database],
        now: Callable[[], int],
    ) -> None:
        self.task_id = task_id
        self.specs = {spec.name: spec for spec in specs}
        self._settings = settings
        self._open_persistent = open_persistent
        self._open_in_memory = open_in_memory
        self._now = now
        self._databases: dict[bool, Database] = {}
        self.stores: dict[str, KeyValueStore[Any, Any]] = {}
        self.topic_ids: dict[str, bytes] = {}

    def open(self) -> None:
        """Open the databases; raises `StoreCorruptedError` or `StoreLockedError`."""
        persistent = sorted(spec.name for spec in self.specs.values() if spec.persistent)
        in_memory = sorted(spec.name for spec in self.specs.values() if not spec.persistent)
        if persistent:
            self._databases[True] = self._open_persistent(persistent)
        if in_memory:
            self._databases[False] = self._open_in_memory(in_memory)
        for spec in self.specs.values():
            self.stores[spec.name] = self._store(spec)

    def _store(self, spec: StoreSpec) -> KeyValueStore[Any, Any]:
        buffer = CommitBuffer(
            spec,
            self.database(spec.name),
            topic=changelog_topic(self._settings.application_id, spec.name),
            keep_bytes=self._settings.keep_bytes_per_store,
        )
        may_hold_back = spec.caching and self._settings.cache_enabled
        match spec.kind:
            case StoreKind.KEY_VALUE:
                return KeyValueStore[Any, Any](buffer, self._now, may_hold_back=may_hold_back)
            case StoreKind.TIMESTAMPED_KEY_VALUE:
                return TimestampedKeyValueStore[Any, Any](
                    buffer, self._now, may_hold_back=may_hold_back
                )

    @contextmanager
    def trusted(self) -> Generator[None]:
        """Work with the stores; damage found meanwhile is raised as `TaskCorruptedError`, which names the task."""
        try:
            yield
        except StoreCorruptedError as error:
            raise TaskCorruptedError(
                f"task {self.task_id}: {error}", task_id=str(self.task_id)
            ) from error

    def database(self, store: str) -> Database:
        """Return the database a store lives in."""
        return self._databases[self.specs[store].persistent]

    def changelog(self, store: str) -> TopicPartition | None:
        """Return the changelog partition of a store, or None if it has none."""
        if not self.specs[store].logging:
            return None
        return TopicPartition(
            changelog_topic(self._settings.application_id, store), self.task_id.partition
        )

    @property
    def changelogs(self) -> dict[TopicPartition, str]:
        """Return the store of each changelog partition."""
        return {
            partition: store
            for store in self.specs
            if (partition := self.changelog(store)) is not None
        }

    def position(self, store: str) -> Position | None:
        """Return how far a store's data on disk has come, or None if that is not known."""
        partition = self.changelog(store)
        if partition is None:
            return None
        return Position.decode(self.database(store).position(position_name(*partition)))

    def forget(self, store: str) -> None:
        """Empty a store that is restored from the beginning; its position goes first, so that it never leads."""
        partition = self.changelog(store)
        if partition is not None:
            self.database(store).write({}, {position_name(*partition): b""})
        self.database(store).clear(store)

    @property
    def uncommitted_bytes(self) -> int:
        """Return about how much memory the uncommitted changes hold."""
        return sum(store.buffer.uncommitted_bytes for store in self.stores.values())

    def drain(self) -> dict[str, Drained]:
        """Return the changes of every store since the last commit; unchanged stores are left out."""
        return {
            name: store.buffer.drain() for name, store in self.stores.items() if store.buffer.dirty
        }

    def apply(
        self,
        drained: Mapping[str, Drained],
        positions: Mapping[TopicPartition, int],
        *,
        now_ms: int,
    ) -> None:
        """Write committed changes with the changelog positions they reach; called AFTER the transaction committed."""
        for persistent, database in self._databases.items():
            changes = {
                name: changed.stored
                for name, changed in drained.items()
                if self.specs[name].persistent is persistent
            }
            stored = self._encoded(positions, now_ms, persistent=persistent)
            if changes or stored:
                database.write(changes, stored)
        for name, store in self.stores.items():
            # Also where nothing changed: what was only read is kept within the budget at the same moment.
            if name in drained or not store.buffer.dirty:
                store.buffer.applied()

    def _encoded(
        self, positions: Mapping[TopicPartition, int], now_ms: int, *, persistent: bool
    ) -> dict[str, bytes]:
        changelogs = self.changelogs
        return {
            position_name(*partition): Position(
                offset=offset, topic_id=self.topic_ids[partition.topic], written_at_ms=now_ms
            ).encode()
            for partition, offset in positions.items()
            if partition in changelogs
            and self.specs[changelogs[partition]].persistent is persistent
        }

    def write_restored(
        self,
        changes: Mapping[str, list[tuple[bytes, bytes | None]]],
        positions: Mapping[TopicPartition, int],
        *,
        now_ms: int,
    ) -> None:
        """Write restored rows and the positions they reach."""
        for persistent, database in self._databases.items():
            mine = {
                name: rows
                for name, rows in changes.items()
                if self.specs[name].persistent is persistent
            }
            stored = self._encoded(positions, now_ms, persistent=persistent)
            if mine or stored:
                database.write(mine, stored)

    def refresh_positions(self, *, now_ms: int) -> None:
        """Write the known positions again as of now; called when it is certain that nothing newer is in the log."""
        known = {
            partition: position.offset
            for partition, store in self.changelogs.items()
            if (position := self.position(store)) is not None
        }
        self.apply({}, known, now_ms=now_ms)

    def close(self) -> None:
        """Close the databases; what was not committed is forgotten. Idempotent."""
        with ExitStack() as closing:  # all of them, whatever fails
            for database in self._databases.values():
                closing.callback(database.close)
            self._databases = {}
            self.stores.clear()
