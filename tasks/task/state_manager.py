"""The stores of one task: opened together, committed together.

Persistent stores share one RocksDB, in-memory ones one sorted dictionary. Every change of a commit goes to a database
in one write, the changelog positions last, so disk may lag the changelog and never lead it.
"""

import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer, Drained, write_rows
from tidewheel.state_stores.buffers.expiry import slowest_time
from tidewheel.state_stores.buffers.in_flight_view import InFlightView
from tidewheel.state_stores.buffers.query_sources import UncommittedRows
from tidewheel.state_stores.buffers.timed_buffer import TimedBuffer
from tidewheel.state_stores.bulk_restore.ingest import ingest_runs
from tidewheel.state_stores.bulk_restore.run_files import BuiltRuns
from tidewheel.state_stores.errors import StoreCorruptedError
from tidewheel.state_stores.layout.key_order import RESET, reject_unsorted_keys
from tidewheel.state_stores.layout.position import Position, store_time_name
from tidewheel.state_stores.layout.versions import key_of_version
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.restore import StoreTime, position_name
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.state_stores.stores.custom_store_host import CustomStore, CustomStoreHost
from tidewheel.state_stores.stores.factory import Store, make_store
from tidewheel.state_stores.stores.key_value_store import KeyValueStore
from tidewheel.state_stores.stores.session_store import SessionStore
from tidewheel.state_stores.stores.versioned_store import VersionedKeyValueStore
from tidewheel.state_stores.stores.window_store import WindowStore
from tidewheel.tasks.errors import TaskCorruptedError
from tidewheel.tasks.internal_topics import changelog_topic

#: Where the id of a database's data is kept, beside the positions.
_IDENTITY: Final = "store-uuid"


class StateSettings(msgspec.Struct, frozen=True, kw_only=True):
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
        directory: Path = Path(),
    ) -> None:
        self.task_id = task_id
        self.specs = {spec.name: spec for spec in specs}
        self._settings = settings
        self._open_persistent = open_persistent
        self._open_in_memory = open_in_memory
        self._now = now
        self.directory = directory
        self._databases: dict[bool, Database] = {}
        #: What stores see of the databases.
        self._views: dict[bool, InFlightView] = {}
        #: Whether changes were staged that are not written yet.
        self._staged = False
        #: Where stores of the user's own stand.
        self._slots: dict[str, CustomStoreHost] = {}
        self.stores: dict[str, Store] = {}
        self.topic_ids: dict[str, bytes] = {}
        self._serde_topics = {
            store: changelog_topic(settings.application_id, store) for store in self.specs
        }
        self._changelog_of = {
            spec.name: TopicPartition(self._serde_topics[spec.name], task_id.partition)
            if spec.logging
            else None
            for spec in specs
        }
        #: Store of each changelog partition.
        self.changelogs: Mapping[TopicPartition, str] = {
            partition: store
            for store, partition in self._changelog_of.items()
            if partition is not None
        }
        #: Store of each input partition that a store without a changelog is restored from.
        self.sources: Mapping[TopicPartition, str] = {
            TopicPartition(spec.source_topic, task_id.partition): spec.name
            for spec in specs
            if spec.source_topic is not None
        }
        #: By what stream time restored rows expire: that of the position of the task's slowest key range, -1 if it is not
        #: known; None while no range is behind what is restored, so that the rows themselves tell.
        self.slowest_position_ms: int | None = None

    def open(self) -> None:
        """Open the databases; raises `StoreCorruptedError` or `StoreLockedError`."""
        if persistent := self._names_in(persistent=True):
            self._databases[True] = self._open_persistent(persistent)
        if in_memory := self._names_in(persistent=False):
            self._databases[False] = self._open_in_memory(in_memory)
        self._views = {each: InFlightView(database) for each, database in self._databases.items()}
        for spec in self.specs.values():
            if spec.kind is StoreKind.CUSTOM:
                self._slots[spec.name] = self._open_slot(spec)
            self.stores[spec.name] = self._store(spec)

    def _names_in(self, *, persistent: bool) -> list[str]:
        """Return the names of the stores in one of the two databases, in order."""
        return sorted(name for name in self.specs if self._is_in(name, persistent=persistent))

    def _is_in(self, store: str, *, persistent: bool) -> bool:
        spec = self.specs[store]
        return spec.kind is not StoreKind.CUSTOM and spec.persistent is persistent

    def _open_slot(self, spec: StoreSpec) -> CustomStoreHost:
        return CustomStoreHost(
            spec,
            task_id=str(self.task_id),
            directory=self.directory,
            changelog=self.changelog(spec.name),
            now=self._now,
        )

    @property
    def is_open(self) -> bool:
        """Return whether the databases are open."""
        return len(self.stores) == len(self.specs)

    def renew(self, now: Callable[[], int]) -> None:
        """Begin anew over the open databases, as for a new task: what was not committed is forgotten."""
        self._now = now
        self._staged = False
        for view in self._views.values():
            view.hide()
        for spec in self.specs.values():
            self.stores[spec.name] = self._store(spec)

    def identity(self) -> str:
        """Return an id of the data that is here: kept with it, and another one once any of it was wiped."""
        found: list[str] = []
        for database in self._databases.values():
            kept = database.position(_IDENTITY)
            if not kept:
                kept = secrets.token_hex(16).encode()
                database.write({}, {_IDENTITY: kept})
            found.append(kept.decode())
        return "-".join([*found, *(slot.identity for slot in self._slots.values())])

    def _store(self, spec: StoreSpec) -> Store:
        if spec.kind is StoreKind.CUSTOM:
            return self._slots[spec.name].begin(self._now)
        return make_store(
            spec,
            self._views[spec.persistent],
            topic=self.serde_topic(spec.name),
            keep_bytes=self._settings.keep_bytes_per_store,
            now=self._now,
            is_cached=spec.caching and self._settings.cache_enabled,
        )

    def stores_of_range(
        self,
        over: Callable[[Database, Sequence[str]], Database],
        now: Callable[[], int],
        *,
        ranges: int,
        divided: bool,
    ) -> dict[str, Store]:
        """Return store objects of one key range over the open databases.

        Args:
            over: Given a database and the names of its stores, returns what the range sees of it.
            now: Gives the timestamp of the record that the range processes.
            ranges: How many key ranges share the stores.
            divided: Whether some rows on disk may be those of faster ranges, of this life or of a former one.
        """
        assert not self._slots, "a custom store is refused where tasks run in key ranges"
        seen = {
            persistent: over(
                database, [name for name in self.specs if self._is_in(name, persistent=persistent)]
            )
            for persistent, database in self._databases.items()
        }
        return {
            spec.name: make_store(
                spec,
                seen[spec.persistent],
                topic=self.serde_topic(spec.name),
                keep_bytes=self._settings.keep_bytes_per_store // ranges,
                now=now,
                is_cached=spec.caching and self._settings.cache_enabled,
                in_range=divided,
            )
            for spec in self.specs.values()
        }

    def uncommitted(self, store: str) -> UncommittedRows:
        """Return the uncommitted rows of a store, for the thread that owns the stores."""
        buffer = self.stores[store].buffer
        assert isinstance(buffer, CommitBuffer), "custom stores are not queried"
        return UncommittedRows(buffer, self._views[self.specs[store].persistent])

    def reject_unsorted_keys(self, advice: str = RESET) -> None:
        """Raise `StoredRowError` for a store whose rows are under other bytes than their keys have now."""
        for spec in self.specs.values():
            store = self.stores[spec.name]
            key_of: Callable[[bytes], bytes]
            if isinstance(store, KeyValueStore):
                key_of = bytes
            elif isinstance(store, WindowStore | SessionStore):
                key_of = store.buffer.layout.key_of
            elif isinstance(store, VersionedKeyValueStore):
                key_of = key_of_version
            else:
                continue  # a store of the user's own
            reject_unsorted_keys(
                spec, self.database(spec.name), self.serde_topic(spec.name), key_of, advice
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

    def serde_topic(self, store: str) -> str:
        """Return the topic that the serdes of a store are told."""
        return self._serde_topics[store]

    def changelog(self, store: str) -> TopicPartition | None:
        """Return the changelog partition of a store, or None if it has none."""
        return self._changelog_of[store]

    def slowest_ms(self, store: str) -> int | None:
        """Return the time of a store at `slowest_position_ms`; None where that is, or for a store without expiry."""
        if self.slowest_position_ms is None:
            return None
        return slowest_time(self.specs[store], self.slowest_position_ms)

    def scratch_store(self, store: str) -> Any:
        """Return a second store object over the same data, without a cache, to restore into."""
        return self._store(replace(self.specs[store], caching=False))

    def _backup(self, store: str) -> TopicPartition | None:
        """Return what a store is restored from: its changelog or an input."""
        source = self.specs[store].source_topic
        if source is not None:
            return TopicPartition(source, self.task_id.partition)
        return self.changelog(store)

    def position(self, store: str) -> Position | None:
        """Return how far a store's data on disk has come, or None if that is not known."""
        if store in self._slots:
            return self._slots[store].position
        partition = self._backup(store)
        if partition is None:
            return None
        return Position.decode(self.database(store).position(position_name(*partition)))

    def has_rows_of_its_own(self, store: str) -> bool:
        """Return whether a store without any backup has rows on disk."""
        if store in self._slots or self._backup(store) is not None:
            return False
        return next(self.database(store).iterate(store, None, None), None) is not None

    def forget(self, store: str) -> None:
        """Empty a store that is restored from the beginning; its position goes first, so that it never leads."""
        if store in self._slots:
            self._slots[store].forget()
            return
        partition = self._backup(store)
        gone = {store_time_name(store): b"", _IDENTITY: b""}
        if partition is not None:
            gone[position_name(*partition)] = b""
        self.database(store).write({}, gone)
        self.database(store).clear(store)
        self.stores[store].buffer.discard()

    @property
    def uncommitted_bytes(self) -> int:
        """Return about how much memory the uncommitted changes hold."""
        return sum(store.buffer.uncommitted_bytes for store in self.stores.values())

    @property
    def expired_puts(self) -> int:
        """Return how many puts the stores have dropped because their time was over."""
        return sum(store.expired_puts for store in self.stores.values())

    def drain(self) -> dict[str, Drained]:
        """Return the changes of every store since the last commit; unchanged stores are left out."""
        return {
            name: store.buffer.drain()
            for name, store in self.stores.items()
            if store.buffer.has_changes()
        }

    def _of_database(
        self, drained: Mapping[str, Drained], *, persistent: bool
    ) -> dict[str, Drained]:
        """Return the changes of the stores in one of the two databases."""
        return {
            name: changed
            for name, changed in drained.items()
            if self._is_in(name, persistent=persistent)
        }

    @property
    def may_be_ahead(self) -> bool:
        """Return whether processing may go on between `stage` and `apply`.

        A store of the user's own is told of a commit when it has happened, and takes all it was given before for committed.
        """
        return not self._slots

    @property
    def cached_stores(self) -> frozenset[str]:
        """Return the names of stores whose changes a record cache keeps from downstream."""
        return frozenset(
            name
            for name, store in self.stores.items()
            if not isinstance(store, CustomStore) and store.cache is not None
        )

    def stage(self, drained: Mapping[str, Drained], *, joins: bool = False) -> None:
        """Have the stores go on as if drained changes were written: a commit is under way that will write them (`apply`).

        `joins`: they are those that are staged already and what was drained since, as one.
        """
        assert self._staged == joins, "one commit at a time"
        self._staged = True
        for persistent, view in self._views.items():
            mine = self._of_database(drained, persistent=persistent)
            buffers = {name: self.stores[name].buffer for name in mine}
            added = {
                name: buffer.entries_added()
                for name, buffer in buffers.items()
                if isinstance(buffer, CommitBuffer)
            }
            view.show(mine, added)
        for name, store in self.stores.items():
            # Also where nothing changed: what was only read is kept within the budget at the same moment.
            if name in drained or not store.buffer.dirty:
                store.buffer.applied()

    def apply(
        self,
        drained: Mapping[str, Drained],
        positions: Mapping[TopicPartition, int],
        *,
        now_ms: int,
    ) -> None:
        """Write committed changes with the positions they reach; called AFTER the transaction committed.

        They may have been staged when it began. `positions` are those of changelogs, and the committed offsets of inputs that
        stores are restored from.
        """
        if not self._staged:
            self.stage(drained)
        for persistent, database in self._databases.items():
            mine = self._of_database(drained, persistent=persistent)
            changes = {name: changed.stored for name, changed in mine.items()}
            stored = self._encoded(positions, now_ms, persistent=persistent)
            if changes or stored:
                write_rows(database, changes, stored, drained)
        for name, slot in self._slots.items():
            reached = self._reached(name, positions, now_ms)
            if name in drained or reached is not None:
                slot.commit(reached)
        self._staged = False
        for view in self._views.values():
            view.hide()

    def _encoded(
        self, positions: Mapping[TopicPartition, int], now_ms: int, *, persistent: bool
    ) -> dict[str, bytes]:
        if not positions:
            return {}
        changelogs = {**self.changelogs, **self.sources}
        return {
            position_name(*partition): self._at(partition, offset, now_ms).encode()
            for partition, offset in positions.items()
            if partition in changelogs and self._is_in(changelogs[partition], persistent=persistent)
        }

    def _at(self, partition: TopicPartition, offset: int, now_ms: int) -> Position:
        topic_id = self.topic_ids[partition.topic]
        return Position(offset=offset, topic_id=topic_id, written_at_ms=now_ms)

    def _reached(
        self, store: str, positions: Mapping[TopicPartition, int], now_ms: int
    ) -> Position | None:
        """Return the position of a store's changelog among these, if it is."""
        partition = self.changelog(store)
        if partition is None or partition not in positions:
            return None
        return self._at(partition, positions[partition], now_ms)

    def write_restored(
        self,
        changes: Mapping[str, Sequence[tuple[bytes, bytes | None]]],
        positions: Mapping[TopicPartition, int],
        *,
        now_ms: int,
        times: Mapping[str, StoreTime] = MappingProxyType({}),
    ) -> None:
        """Write restored rows and the positions they reach.

        `times`: how far the records behind the rows bring the time of a store, where the rows don't tell.
        """
        for name, time in times.items():
            buffer = self.stores[name].buffer
            assert isinstance(buffer, TimedBuffer), "only stores that know time have any"
            buffer.observe(time.observed_ms)
        for persistent, database in self._databases.items():
            mine = {
                name: rows
                for name, rows in changes.items()
                if self._is_in(name, persistent=persistent)
            }
            stored = self._encoded(positions, now_ms, persistent=persistent)
            if mine or stored:
                restored = {
                    name: self.stores[name].buffer.restored(rows, slowest_ms=self.slowest_ms(name))
                    for name, rows in mine.items()
                }
                write_rows(database, mine, stored, restored)
        for name, slot in self._slots.items():
            slot.restore(changes.get(name, ()))
            reached = self._reached(name, positions, now_ms)
            if reached is not None:
                slot.commit(reached)

    def ingest(
        self, store: str, runs: BuiltRuns, *, offset: int, caught_up_at_ms: int, from_nothing: bool
    ) -> None:
        """Take sorted runs into a persistent store, and then the position that they reach.

        Args:
            store: Its name.
            runs: The files, which are moved.
            offset: Where the tail begins.
            caught_up_at_ms: When that was the end of the log.
            from_nothing: They begin at the start of the log: the store is emptied first.
        """
        partition = self.changelog(store)
        assert partition is not None, "runs are those of a changelog"
        ingest_runs(
            self.database(store),
            self.specs[store],
            runs.files,
            time=runs.time,
            position_name=position_name(*partition),
            position=Position(
                offset=offset,
                topic_id=self.topic_ids[partition.topic],
                written_at_ms=caught_up_at_ms,
            ),
            from_nothing=from_nothing,
            also_forget=(_IDENTITY,) if from_nothing else (),
            slowest_ms=self.slowest_ms(store),
        )
        self.stores[store].buffer.discard()

    def refresh_positions(self, *, now_ms: int) -> None:
        """Write the known positions again as of now; called when it is certain that nothing newer is in the log."""
        known = {
            partition: position.offset
            for partition, store in {**self.changelogs, **self.sources}.items()
            if (position := self.position(store)) is not None
        }
        self.apply({}, known, now_ms=now_ms)

    def close(self) -> None:
        """Close the databases; what was not committed is forgotten. Idempotent."""
        with ExitStack() as closing:  # all of them, whatever fails
            for database in self._databases.values():
                closing.callback(database.close)
            for slot in self._slots.values():
                closing.callback(slot.close)
            self._databases = {}
            self._views = {}
            self._slots = {}
            self.stores.clear()
