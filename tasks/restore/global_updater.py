"""Global updater: restores global stores before any task runs, then follows their topics.

A partition is restored when the reader's position progress an end that is fixed before reading. A
stored position serves only while compaction can't have removed tombstones after it. One reader
serves until the process ends, so no record is lost between restoring and following. After
`GlobalStoreDamagedError` the process wipes the stores and restarts.
"""

import logging
import threading
from collections.abc import Callable

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.errors import StoreCorruptedError
from tidewheel.state_stores.layout.restore import StartFrom, restore_start
from tidewheel.tasks.calls.call_watch import GLOBAL, CallWatch, Limits
from tidewheel.tasks.errors import GlobalStoreDamagedError, MissingSourceTopicError
from tidewheel.tasks.kafka.ports import Admin, ChangelogReader, Clock, OffsetOutOfRangeError
from tidewheel.tasks.restore.global_stores import GlobalStores
from tidewheel.tasks.restore.store_changelog_reader import ReadProgress, Stalls, explained
from tidewheel.tasks.restore.store_restore import DELETE_RETENTION_MS, EventKind, RestoreEvent

_log = logging.getLogger(__name__)

_POLL_RECORDS = 10_000
_POLL_S = 0.1
_IDLE_S = 0.001
#: Period of rewriting positions of quiet topics: with an old one, a start reads all again.
_REFRESH_S = 3_600.0
_STALLS_EVERY_S = 1.0


class _Restoring(msgspec.Struct):
    store: str
    start: int
    end: int
    restored: int = 0

    def event(self, kind: EventKind, partition: TopicPartition) -> RestoreEvent:
        return RestoreEvent(
            kind=kind,
            store=self.store,
            topic=partition.topic,
            partition=partition.partition,
            start=self.start,
            end=self.end,
            restored=self.restored,
        )


class GlobalUpdater:
    def __init__(
        self,
        stores: GlobalStores,
        *,
        admin: Admin,
        make_reader: Callable[[], ChangelogReader],
        clock: Clock,
        wipe: Callable[[], None],
        on_event: Callable[[RestoreEvent], None],
        limits: Limits,
    ) -> None:
        self._stores = stores
        self._limits = limits
        self._turns = 0
        self.watch: CallWatch | None = None
        self._admin = admin
        self._make_reader = make_reader
        self._clock = clock
        self._wipe = wipe
        self._on_event = on_event
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._restored = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="tidewheel-global-updater", daemon=True
        )
        self._wanted: dict[TopicPartition, _Restoring] = {}
        #: Wall-clock ms when the store last had all of a partition's records before its position. A
        #: start compares it with the retention of tombstones.
        self._known_ms: dict[TopicPartition, int] = {}
        self._next_refresh_s = 0.0
        self._next_stalls_s = 0.0
        self._stalls = Stalls()
        #: Records left to restore before tasks may run.
        self.remaining_records = 0

    def start(self) -> None:
        self._thread.start()

    def wait(self, stopped: threading.Event) -> bool:
        """Wait until all stores are restored; False if `stopped` is set first."""
        while not self._restored.wait(0.05):
            if stopped.is_set():
                return False
        self.check()
        return not stopped.is_set()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        # Close only now: running tasks must see the thread's error, not a closed store.
        self._stores.close()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        self.watch = watch = CallWatch(
            lambda: self._turns,
            range_threads=lambda: (),
            receiver=None,
            limits=self._limits,
            effect=GLOBAL,
        )
        watch.start()
        try:
            try:
                self._open()
                self._work()
            finally:
                self._stores.stop()  # processors and their event loop belong to this thread
        except StoreCorruptedError as error:
            self._error = GlobalStoreDamagedError(f"a global store is damaged: {error}")
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._error = error
        finally:
            self._restored.set()
            watch.close()

    def _open(self) -> None:
        try:
            self._stores.open()
        except StoreCorruptedError as error:
            _log.warning("global stores: %s; wiping them and reading their topics again", error)
            self._wipe()
            self._stores.open()

    def _work(self) -> None:
        starts = self._plan()
        self._stores.start()
        reader = self._make_reader()
        try:
            reader.assign(starts)
            for partition, entry in self._wanted.items():
                self._on_event(entry.event("start", partition))
            while not self._stop.is_set():
                if not self._wanted and not self._restored.is_set():
                    self._restored.set()
                self._turn(reader)
        except OffsetOutOfRangeError as error:
            raise GlobalStoreDamagedError(
                f"records of a global topic are gone before they were read: {error}"
            ) from error
        finally:
            for partition, entry in self._wanted.items():
                self._on_event(entry.event("suspended", partition))
            self.remaining_records = 0
            reader.close()

    def _plan(self) -> dict[TopicPartition, int]:
        """Return each partition's start offset; empty the stores that restart at the log start."""
        manager = self._stores.manager
        partitions = manager.changelogs
        topics = self._admin.describe_topics(
            sorted(self._stores.specs), config=["delete.retention.ms"]
        )
        logs = self._admin.beginning_offsets(list(partitions))
        ends = self._admin.end_offsets(list(partitions))
        now_ms = self._clock.now_ms()
        starts: dict[TopicPartition, int] = {}
        restarting: set[str] = set()
        for partition, store in partitions.items():
            topic = topics.get(partition.topic)
            if topic is None:
                raise MissingSourceTopicError(
                    f"global topic {partition.topic} does not exist (any more); create it again"
                )
            manager.topic_ids[partition.topic] = topic.topic_id
            position = manager.position_of(partition)
            begin, reason = restore_start(
                position,
                topic_id=topic.topic_id,
                log_start=logs[partition],
                log_end=ends[partition],
                tombstone_retention_ms=int(
                    topic.config.get("delete.retention.ms", DELETE_RETENTION_MS)
                ),
                now_ms=now_ms,
            )
            _log.info("global store %s, %s: from %s: %s", store, partition, begin.value, reason)
            starts[partition] = 0 if position is None else position.offset
            if begin is StartFrom.BEGINNING:
                # Read all its partitions again: a row does not show from which one it is.
                restarting.add(store)
        for store in sorted(restarting):
            manager.forget(store)
        for partition, store in partitions.items():
            if store in restarting:
                starts[partition] = logs[partition]
            self._known_ms[partition] = now_ms
            if starts[partition] < ends[partition]:
                self._wanted[partition] = _Restoring(store, starts[partition], ends[partition])
            else:
                self._stores.commit({partition: starts[partition]}, known_ms=now_ms)
        self._next_refresh_s = self._clock.monotonic_s() + _REFRESH_S
        return starts

    def _turn(self, reader: ChangelogReader) -> None:
        self._turns += 1
        runs = reader.poll(_POLL_RECORDS, _POLL_S)
        for run in runs:
            partition = TopicPartition(run.topic, run.partition)
            entry = self._wanted.get(partition)
            self._stores.apply(run, known_ms=self._known_ms[partition], position=entry is None)
            if entry is not None:
                entry.restored += len(run)
                self._on_event(entry.event("batch", partition))
        if self._wanted:
            self._finish(reader.positions())
            self._report_stalls(reader.positions())
        elif not runs:
            self._stop.wait(_IDLE_S)
        if self._clock.monotonic_s() >= self._next_refresh_s:
            self._refresh(reader.positions())

    def _finish(self, positions: dict[TopicPartition, int]) -> None:
        done = [
            partition
            for partition, entry in self._wanted.items()
            if positions.get(partition, 0) >= entry.end
        ]
        for partition in done:
            entry = self._wanted.pop(partition)
            self._stores.commit(
                {partition: positions[partition]}, known_ms=self._known_ms[partition]
            )
            self._on_event(entry.event("end", partition))
        self.remaining_records = sum(
            max(entry.end - positions.get(partition, entry.start), 0)
            for partition, entry in self._wanted.items()
        )

    def _report_stalls(self, positions: dict[TopicPartition, int]) -> None:
        now_s = self._clock.monotonic_s()
        if now_s < self._next_stalls_s:
            return
        self._next_stalls_s = now_s + _STALLS_EVERY_S
        progress = {
            partition: ReadProgress(positions.get(partition, entry.start), entry.end)
            for partition, entry in self._wanted.items()
        }
        stalls = self._stalls.check(progress, now_s)
        for stall, text in zip(stalls, explained(stalls, self._admin), strict=True):
            store = self._wanted[stall.partition].store
            _log.warning("global store %s: restoring has made %s", store, text)

    def _refresh(self, positions: dict[TopicPartition, int]) -> None:
        """Store the positions of fully read partitions again: old ones force a full restore."""
        self._next_refresh_s = self._clock.monotonic_s() + _REFRESH_S
        now_ms = self._clock.now_ms()
        # Compaction stops at the stable offset: a store that is there has missed no tombstone.
        ends = self._admin.stable_offsets(list(positions))
        current = {
            partition: position
            for partition, position in positions.items()
            if position >= ends[partition] and partition not in self._wanted
        }
        self._known_ms |= dict.fromkeys(current, now_ms)
        if current:
            self._stores.commit(current, known_ms=now_ms)
