"""State of one task: opens and commits its stores together.

Persistent stores share one RocksDB, in-memory stores one sorted dictionary. A commit writes each
once, after its transaction: the disk may lag behind the changelog, but never lead it.
"""

import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from tidewheel.rebalance.model import ShardInput, TaskId, TopicPartition
from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer, Drained, write_rows
from tidewheel.state_stores.buffers.expiry import slowest_time
from tidewheel.state_stores.buffers.in_flight_view import InFlightView
from tidewheel.state_stores.buffers.query_sources import UncommittedRows
from tidewheel.state_stores.buffers.timed_buffer import TimedBuffer
from tidewheel.state_stores.bulk_restore.ingest import ingest_runs
from tidewheel.state_stores.bulk_restore.run_files import BuiltRuns
from tidewheel.state_stores.errors import DiskFullError, StoreCorruptedError
from tidewheel.state_stores.failpoints import failpoint
from tidewheel.state_stores.layout.key_order import RESET, reject_unsorted_keys
from tidewheel.state_stores.layout.position import Position, store_time_name
from tidewheel.state_stores.layout.restore import StoreTime, position_name
from tidewheel.state_stores.layout.versions import key_of_version
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.state_stores.stores.custom_store_host import CustomStore, CustomStoreHost
from tidewheel.state_stores.stores.factory import Store, make_store
from tidewheel.state_stores.stores.key_value_store import KeyValueStore
from tidewheel.state_stores.stores.session_store import SessionStore
from tidewheel.state_stores.stores.versioned_store import VersionedKeyValueStore
from tidewheel.state_stores.stores.window_store import WindowStore
from tidewheel.tasks.errors import TaskCorruptedError
from tidewheel.tasks.kafka.internal_topics import changelog_topic

_IDENTITY: Final = "store-uuid"


class StateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Application settings for stores.

    Attributes:
        read_cache_bytes_per_store: Bytes of committed entries that one store caches for reads.
    """

    application_id: str
    cache_enabled: bool
    read_cache_bytes_per_store: int


class StateManager:
    """Stores of one task. The restoring thread owns them first, then the processing thread.

    Attributes:
        sources: Store of each input that serves as its changelog.
        slowest_position_ms: Stream time at the slowest key range's position, by which restored rows
            expire; -1 if unknown. None if no range lags: they expire by their store's time.
    """

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
        #: Keys: True for persistent stores, False for in-memory ones.
        self._databases: dict[bool, Database] = {}
        #: Databases overlaid with the changes of the commit in progress; stores read through these.
        self._views: dict[bool, InFlightView] = {}
        self._is_staged = False
        self._custom_hosts: dict[str, CustomStoreHost] = {}
        self.stores: dict[str, Store] = {}
        self.topic_ids: dict[str, bytes] = {}
        self._serde_topics = {
            store: changelog_topic(settings.application_id, store) for store in self.specs
        }
        self._changelog_of = {
            spec.name: ShardInput.of(
                TopicPartition(self._serde_topics[spec.name], task_id.partition), task_id.shard
            )
            if spec.logging
            else None
            for spec in specs
        }
        self.changelogs: Mapping[TopicPartition, str] = {
            partition: store
            for store, partition in self._changelog_of.items()
            if partition is not None
        }
        self.sources: Mapping[TopicPartition, str] = {
            TopicPartition(spec.source_topic, task_id.partition): spec.name
            for spec in specs
            if spec.source_topic is not None
        }
        self._position_names: dict[TopicPartition, str] = {}
        self.slowest_position_ms: int | None = None

    def open(self) -> None:
        """Open the databases; raise `StoreCorruptedError` or `StoreLockedError`."""
        self._position_names = {
            partition: position_name(*partition.whole)
            for partition in (*self.changelogs, *self.sources)
        }
        if persistent := self._store_names(persistent=True):
            self._databases[True] = self._open_persistent(persistent)
        if in_memory := self._store_names(persistent=False):
            self._databases[False] = self._open_in_memory(in_memory)
        self._views = {
            persistent: InFlightView(database) for persistent, database in self._databases.items()
        }
        for spec in self.specs.values():
            if spec.kind is StoreKind.CUSTOM:
                self._custom_hosts[spec.name] = self._open_custom_host(spec)
            self.stores[spec.name] = self._make_store(spec)

    def _store_names(self, *, persistent: bool) -> list[str]:
        return sorted(name for name in self.specs if self._is_in(name, persistent=persistent))

    def _is_in(self, store: str, *, persistent: bool) -> bool:
        spec = self.specs[store]
        return spec.kind is not StoreKind.CUSTOM and spec.persistent is persistent

    def _open_custom_host(self, spec: StoreSpec) -> CustomStoreHost:
        return CustomStoreHost(
            spec,
            task_id=str(self.task_id),
            directory=self.directory,
            changelog=self.changelog(spec.name),
            now=self._now,
        )

    @property
    def is_open(self) -> bool:
        return len(self.stores) == len(self.specs)

    def renew(self, now: Callable[[], int]) -> None:
        self._now = now
        self._is_staged = False
        for view in self._views.values():
            view.hide()
        for spec in self.specs.values():
            self.stores[spec.name] = self._make_store(spec)

    def identity(self) -> str:
        """Return the id of this copy of the data; emptying a store changes it."""
        identities: list[str] = []
        for database in self._databases.values():
            identity = database.position(_IDENTITY)
            if not identity:
                identity = secrets.token_hex(16).encode()
                database.write({}, {_IDENTITY: identity})
            identities.append(identity.decode())
        identities += (host.identity for host in self._custom_hosts.values())
        return "-".join(identities)

    def _make_store(self, spec: StoreSpec) -> Store:
        if spec.kind is StoreKind.CUSTOM:
            return self._custom_hosts[spec.name].begin(self._now)
        return make_store(
            spec,
            self._views[spec.persistent],
            topic=self.serde_topic(spec.name),
            read_cache_bytes=self._settings.read_cache_bytes_per_store,
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
        """Return the stores of one of `ranges` key ranges.

        Args:
            over: Returns the range's view of a database, given store names.
            divided: True if ranges, now or before the start, may have written rows ahead of others.
        """
        assert not self._custom_hosts, "key ranges reject custom stores"
        views = {
            persistent: over(
                database, [name for name in self.specs if self._is_in(name, persistent=persistent)]
            )
            for persistent, database in self._databases.items()
        }
        return {
            spec.name: make_store(
                spec,
                views[spec.persistent],
                topic=self.serde_topic(spec.name),
                read_cache_bytes=self._settings.read_cache_bytes_per_store // ranges,
                now=now,
                is_cached=spec.caching and self._settings.cache_enabled,
                in_range=divided,
            )
            for spec in self.specs.values()
        }

    def uncommitted(self, store: str) -> UncommittedRows:
        buffer = self.stores[store].buffer
        assert isinstance(buffer, CommitBuffer), "custom stores are not queried"
        return UncommittedRows(buffer, self._views[self.specs[store].persistent])

    def reject_unsorted_keys(self, advice: str = RESET) -> None:
        """Raise `StoredRowError` for keys stored in another field order: reads would miss them."""
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
                continue  # custom store
            reject_unsorted_keys(
                spec, self.database(spec.name), self.serde_topic(spec.name), key_of, advice
            )

    @contextmanager
    def trusted(self) -> Generator[None]:
        try:
            yield
        except StoreCorruptedError as error:
            raise TaskCorruptedError(
                f"task {self.task_id}: {error}", task_id=str(self.task_id)
            ) from error
        except DiskFullError as error:
            error.task_id = str(self.task_id)
            raise

    def database(self, store: str) -> Database:
        return self._databases[self.specs[store].persistent]

    def serde_topic(self, store: str) -> str:
        return self._serde_topics[store]

    def changelog(self, store: str) -> TopicPartition | None:
        return self._changelog_of[store]

    def slowest_ms(self, store: str) -> int | None:
        """Return a store's stream time at the slowest key range; None if that is not needed."""
        if self.slowest_position_ms is None:
            return None
        return slowest_time(self.specs[store], self.slowest_position_ms)

    def scratch_store(self, store: str) -> Any:
        """Return an uncached store over the same data, for a restore."""
        return self._make_store(replace(self.specs[store], caching=False))

    def _restore_source(self, store: str) -> TopicPartition | None:
        source = self.specs[store].source_topic
        if source is not None:
            return TopicPartition(source, self.task_id.partition)
        return self.changelog(store)

    def position(self, store: str) -> Position | None:
        if store in self._custom_hosts:
            return self._custom_hosts[store].position
        partition = self._restore_source(store)
        if partition is None:
            return None
        return Position.decode(self.database(store).position(position_name(*partition.whole)))

    def has_unrestorable_rows(self, store: str) -> bool:
        """Return True if a store that no topic restores has rows on disk."""
        if store in self._custom_hosts or self._restore_source(store) is not None:
            return False
        return next(self.database(store).iterate(store, None, None), None) is not None

    def forget(self, store: str) -> None:
        """Empty a store for a full restore. A crash must leave no position without its rows."""
        if store in self._custom_hosts:
            self._custom_hosts[store].forget()
            return
        partition = self._restore_source(store)
        cleared = {store_time_name(store): b"", _IDENTITY: b""}
        if partition is not None:
            cleared[position_name(*partition.whole)] = b""
        self.database(store).write({}, cleared)
        self.database(store).clear(store)
        self.stores[store].buffer.discard()

    @property
    def uncommitted_bytes(self) -> int:
        return sum(store.buffer.uncommitted_bytes for store in self.stores.values())

    @property
    def expired_puts(self) -> int:
        return sum(store.expired_puts for store in self.stores.values())

    def drain(self) -> dict[str, Drained]:
        return {
            name: store.buffer.drain()
            for name, store in self.stores.items()
            if store.buffer.has_changes()
        }

    def _changes_of_database(
        self, drained: Mapping[str, Drained], *, persistent: bool
    ) -> dict[str, Drained]:
        return {
            name: changed
            for name, changed in drained.items()
            if self._is_in(name, persistent=persistent)
        }

    @property
    def may_be_ahead(self) -> bool:
        """Return True if processing may continue between `stage` and `apply`.

        False with custom stores: their commit would include the later writes.
        """
        return not self._custom_hosts

    @property
    def cached_stores(self) -> frozenset[str]:
        return frozenset(
            name
            for name, store in self.stores.items()
            if not isinstance(store, CustomStore) and store.cache is not None
        )

    def stage(self, drained: Mapping[str, Drained], *, joins: bool = False) -> None:
        """Let stores read drained changes until `apply` writes them to disk.

        With `joins`, `drained` merges the changes staged before with later ones.
        """
        assert self._is_staged == joins, "one commit at a time"
        self._is_staged = True
        for persistent, view in self._views.items():
            changes = self._changes_of_database(drained, persistent=persistent)
            buffers = {name: self.stores[name].buffer for name in changes}
            added = {
                name: buffer.entries_added()
                for name, buffer in buffers.items()
                if isinstance(buffer, CommitBuffer)
            }
            view.show(changes, added)
        for name, store in self.stores.items():
            # Unchanged stores too: this drops cached reads beyond the memory limit.
            if name in drained or not store.buffer.dirty:
                store.buffer.applied()

    def apply(
        self,
        drained: Mapping[str, Drained],
        positions: Mapping[TopicPartition, int],
        *,
        now_ms: int,
    ) -> None:
        """Write committed changes and positions, AFTER the transaction committed.

        `positions` are of changelogs, and committed offsets of inputs in `sources`.
        """
        if not self._is_staged:
            self.stage(drained)
        if drained:
            failpoint("before_apply")
        for persistent, database in self._databases.items():
            database_changes = self._changes_of_database(drained, persistent=persistent)
            changes = {name: changed.stored for name, changed in database_changes.items()}
            stored = self._encoded_positions(positions, now_ms, persistent=persistent)
            if changes or stored:
                write_rows(database, changes, stored, drained)
        for name, host in self._custom_hosts.items():
            position = self._restored_position(name, positions, now_ms)
            if name in drained or position is not None:
                host.commit(position)
        self._is_staged = False
        for view in self._views.values():
            view.hide()
        if drained:
            failpoint("after_apply")

    def _encoded_positions(
        self, positions: Mapping[TopicPartition, int], now_ms: int, *, persistent: bool
    ) -> dict[str, bytes]:
        if not positions:
            return {}
        changelogs = {**self.changelogs, **self.sources}
        return {
            self._position_names[partition]: self._position_at(partition, offset, now_ms).encode()
            for partition, offset in positions.items()
            if partition in changelogs and self._is_in(changelogs[partition], persistent=persistent)
        }

    def _position_at(self, partition: TopicPartition, offset: int, now_ms: int) -> Position:
        topic_id = self.topic_ids[partition.topic]
        return Position(offset=offset, topic_id=topic_id, written_at_ms=now_ms)

    def _restored_position(
        self, store: str, positions: Mapping[TopicPartition, int], now_ms: int
    ) -> Position | None:
        partition = self.changelog(store)
        if partition is None or partition not in positions:
            return None
        return self._position_at(partition, positions[partition], now_ms)

    def write_restored(
        self,
        changes: Mapping[str, Sequence[tuple[bytes, bytes | None]]],
        positions: Mapping[TopicPartition, int],
        *,
        now_ms: int,
        times: Mapping[str, StoreTime] = MappingProxyType({}),
    ) -> None:
        """Write restored rows and their positions.

        `times`: stream time by store, which deleted and overwritten rows do not show.
        """
        for name, time in times.items():
            buffer = self.stores[name].buffer
            assert isinstance(buffer, TimedBuffer), "only stores with stream time have any"
            buffer.observe(time.observed_ms)
        for persistent, database in self._databases.items():
            database_changes = {
                name: rows
                for name, rows in changes.items()
                if self._is_in(name, persistent=persistent)
            }
            stored = self._encoded_positions(positions, now_ms, persistent=persistent)
            if database_changes or stored:
                restored = {
                    name: self.stores[name].buffer.restored(rows, slowest_ms=self.slowest_ms(name))
                    for name, rows in database_changes.items()
                }
                write_rows(database, database_changes, stored, restored)
        for name, host in self._custom_hosts.items():
            host.restore(changes.get(name, ()))
            position = self._restored_position(name, positions, now_ms)
            if position is not None:
                host.commit(position)

    def ingest(
        self, store: str, runs: BuiltRuns, *, offset: int, caught_up_at_ms: int, from_nothing: bool
    ) -> None:
        """Move sorted runs (files) into a persistent store's database.

        Args:
            offset: First offset after the runs, the log end at `caught_up_at_ms`.
            from_nothing: Empties the store first: the runs start at the log start.
        """
        partition = self.changelog(store)
        assert partition is not None, "runs come from a changelog"
        ingest_runs(
            self.database(store),
            self.specs[store],
            runs.files,
            time=runs.time,
            position_name=position_name(*partition.whole),
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
        """Write the positions again as log ends at `now_ms`: old ones force a full restore."""
        positions = {
            partition: position.offset
            for partition, store in {**self.changelogs, **self.sources}.items()
            if (position := self.position(store)) is not None
        }
        self.apply({}, positions, now_ms=now_ms)

    def close(self) -> None:
        with ExitStack() as closing:  # closes all, even if one fails
            for database in self._databases.values():
                closing.callback(database.close)
            for host in self._custom_hosts.values():
                closing.callback(host.close)
            self._databases = {}
            self._views = {}
            self._custom_hosts = {}
            self.stores.clear()
