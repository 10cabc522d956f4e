"""Changelog reading for all restores of a worker: one client, turns, stall detection."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, Protocol

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.kafka.open_transactions import OpenTransaction
from tidewheel.tasks.kafka.ports import ChangelogReader, Clock
from tidewheel.tasks.kafka.shard_inputs import of_inputs
from tidewheel.tasks.kafka.shared_reader import SharedReader
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.restore.store_restore import RestoringTask

#: A restore without progress for this long is stalled; reports repeat every `_AGAIN_S`.
STALL_S: Final = 5.0
_AGAIN_S: Final = 60.0


_RECORDS_MIN: Final = 100
_RECORDS_FIRST: Final = 1_000
#: While tasks run: seconds to apply one poll's records, then to pause and leave them the GIL.
_SLICE_S: Final = 0.004
#: While an active task restores: length of a reading round, and of its first part without copies.
_ROUND_S: Final = 0.5
_COPIES_WAIT_S: Final = 0.4
#: Reading pauses for a copy with more buffered records beyond the committed offset.
_BUFFERED_MAX: Final = 20_000


#: Longest wait of a poll for records, and of new orders for the poll.
_POLL_S: Final = 0.01


class Restoring(Protocol):
    """Restore of one partition; `end` is None for a copy."""

    @property
    def partition(self) -> TopicPartition: ...

    @property
    def end(self) -> int | None: ...

    @property
    def held(self) -> int: ...


class Pausing(Protocol):
    def pause(self, partitions: Sequence[TopicPartition]) -> None: ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None: ...


class ReadingTurns:
    """Shares one reader: running tasks come first, then active restores, then copies.

    `wait` sleeps for some seconds, or until the thread is stopped.
    """

    def __init__(self, clock: Clock, wait: Callable[[float], object]) -> None:
        self._clock = clock
        self._wait = wait
        self._fitting = _RECORDS_FIRST
        self._paused: AbstractSet[TopicPartition] = frozenset()
        #: Start of the first round; None while only copies are read.
        self._rounds_s: float | None = None

    def records(self, most: int, *, busy: bool) -> int:
        return min(self._fitting, most) if busy else most

    def share(self, reader: Pausing, entries: Iterable[Restoring]) -> None:
        entries = list(entries)
        waits = self._copies_wait(entries)
        pause = {
            entry.partition
            for entry in entries
            if (waits and entry.end is None) or entry.held > _BUFFERED_MAX
        }
        if pause != self._paused:
            reading = {entry.partition for entry in entries}
            reader.resume(sorted(reading & self._paused - pause))
            reader.pause(sorted(pause - self._paused))
            self._paused = pause

    def _copies_wait(self, entries: Iterable[Restoring]) -> bool:
        if all(entry.end is None for entry in entries):
            self._rounds_s = None
            return False
        now_s = self._clock.monotonic_s()
        if self._rounds_s is None:
            self._rounds_s = now_s
        return (now_s - self._rounds_s) % _ROUND_S < _COPIES_WAIT_S

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused = self._paused - set(partitions)

    def pause_after_poll(self, records: int, took_s: float) -> None:
        """Pause as long as the last poll's records took; fit the next poll's into a slice."""
        fitting = int(records / max(took_s, 1e-6) * _SLICE_S)
        self._fitting = max(_RECORDS_MIN, min(fitting, 2 * self._fitting))
        self._wait(min(took_s, _SLICE_S))


class ReaderOffsets(NamedTuple):
    """Offsets of the partitions that are read, as the client has cached them."""

    positions: Mapping[TopicPartition, int]
    stable: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


class StoreChangelogReader:
    def __init__(self, make: Callable[[], ChangelogReader], turns: ReadingTurns) -> None:
        self._make = make
        self._turns = turns
        self._reader: ChangelogReader | None = None
        self._shared: SharedReader | None = None
        self.tasks: dict[TopicPartition, RestoringTask] = {}

    def start(self, task: RestoringTask) -> None:
        positions = {
            partition: restore.position
            for partition, restore in task.entries.items()
            if not restore.is_done and not restore.awaits_runs and partition not in self.tasks
        }
        if not positions:
            return
        if self._reader is None or self._shared is None:
            self._reader = self._make()
            self._reader.assign({})
            # Copies of other shards wait for an active restore; pausing them must not pause it.
            self._shared = SharedReader(self._reader, parks=True)
        self._shared.add(positions)
        self.tasks.update(dict.fromkeys(positions, task))
        self._choose_headers(self._reader)

    def stop(self, task: RestoringTask, partitions: Iterable[TopicPartition]) -> None:
        stopped = [partition for partition in partitions if self.tasks.get(partition) is task]
        for partition in stopped:
            del self.tasks[partition]
        self._turns.forget(stopped)
        if stopped and self._reader is not None and self._shared is not None:
            self._shared.remove(stopped)
            self._choose_headers(self._reader)

    def _choose_headers(self, reader: ChangelogReader) -> None:
        reader.with_headers = any(
            task.entries[partition].needs_headers for partition, task in self.tasks.items()
        )

    def poll(self, records_max: int, *, busy: bool) -> list[SourceRecords]:
        """Return records of the stores whose turn it is; `busy`: tasks process records.

        Raises:
            OffsetOutOfRangeError: The log has lost the next records of a partition.
        """
        reader, shared = self._reader, self._shared
        assert reader is not None, "a task is read"
        assert shared is not None, "a task is read"
        self._turns.share(
            shared, [task.entries[partition] for partition, task in self.tasks.items()]
        )
        return reader.poll(self._turns.records(records_max, busy=busy), _POLL_S)

    def pause_after_poll(self, records: int, took_s: float) -> None:
        self._turns.pause_after_poll(records, took_s)

    def offsets(self) -> ReaderOffsets:
        reader, shared = self._reader, self._shared
        if reader is None or shared is None:
            return ReaderOffsets({}, {}, {})
        return ReaderOffsets(
            shared.positions(),
            shared.of_inputs(reader.stable_offsets()),
            shared.of_inputs(reader.end_offsets()),
        )

    def shares(self, run: SourceRecords) -> list[tuple[TopicPartition, SourceRecords]]:
        return [] if self._shared is None else self._shared.shares(run)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = self._shared = None


class ReadProgress(NamedTuple):
    position: int
    end: int


class Stall(NamedTuple):
    partition: TopicPartition
    progress: ReadProgress
    for_s: float


class _WatchedPosition(NamedTuple):
    position: int
    since_s: float
    due_s: float


class Stalls:
    """Watches restores; `check` reports each stall once, and again every minute."""

    def __init__(self) -> None:
        self._watched: dict[TopicPartition, _WatchedPosition] = {}

    def check(
        self, progress_by_partition: Mapping[TopicPartition, ReadProgress], now_s: float
    ) -> list[Stall]:
        watched: dict[TopicPartition, _WatchedPosition] = {}
        due: list[Stall] = []
        for partition, progress in progress_by_partition.items():
            if progress.position >= progress.end:
                continue
            before = self._watched.get(partition)
            if before is None or before.position != progress.position:
                before = _WatchedPosition(progress.position, now_s, now_s + STALL_S)
            if now_s >= before.due_s:
                due.append(Stall(partition, progress, now_s - before.since_s))
                before = before._replace(due_s=now_s + _AGAIN_S)
            watched[partition] = before
        self._watched = watched
        return due

    def is_stalled(self, partition: TopicPartition, now_s: float) -> bool:
        watched = self._watched.get(partition)
        return watched is not None and now_s - watched.since_s >= STALL_S


class StallsAdmin(Protocol):
    def open_transactions(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OpenTransaction]: ...


def explained(stalls: Sequence[Stall], admin: StallsAdmin) -> list[str]:
    if not stalls:
        return []
    try:
        causes = of_inputs(admin.open_transactions, [stall.partition for stall in stalls])
    except StreamsError as error:
        return [reason_of(stall, None, str(error)) for stall in stalls]
    return [reason_of(stall, causes.get(stall.partition)) for stall in stalls]


def reason_of(stall: Stall, cause: OpenTransaction | None, problem: str = "") -> str:
    """Return a stall's log text; `problem`: error of the request for its cause.

    >>> stall = Stall(TopicPartition("log", 0), ReadProgress(5, 9), 7.2)
    >>> reason_of(stall, None)
    'no progress for 7 s at offset 5 of log-0, which is to be read to offset 9: check the brokers'
    """
    at, end = stall.progress
    text = f"no progress for {stall.for_s:.0f} s at offset {at} of {stall.partition}, which is to be read to offset {end}"
    if cause is not None:
        return f"{text}: {cause}"
    if problem:
        return f"{text}; the cluster could not be asked why: {problem}"
    return f"{text}: check the brokers"
