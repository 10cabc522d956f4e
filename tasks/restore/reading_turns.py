"""Whose turn it is with the one reader of changelogs, and how much is read at a time. No thread of its own."""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.ports import ChangelogReader, Clock

_RECORDS_MIN: Final = 100
_RECORDS_FIRST: Final = 1_000
#: While tasks run, a poll's records take about this long at most, and then as long nothing is done (GIL).
_SLICE_S: Final = 0.004
#: In each round of this length copies wait for so much of it, first, while a task that is to run is restored.
_ROUND_S: Final = 0.5
_COPIES_WAIT_S: Final = 0.4
#: A copy that has read so many records too early stops reading for a while.
_HELD_MAX: Final = 20_000


class Restoring(Protocol):
    """What takes turns: the restore of one partition."""

    @property
    def partition(self) -> TopicPartition:
        """Return what is read."""
        ...

    @property
    def end(self) -> int | None:
        """Return where it is done; None for a copy, which waits for others."""
        ...

    @property
    def held(self) -> int:
        """Return how many records were read too early."""
        ...


class ReadingTurns:
    """Shares a reader among restores: tasks that are to run go first, copies don't starve, tasks that run least of all.

    Args:
        clock: Time.
        wait: Waits for some seconds, or until the thread is to end.
    """

    def __init__(self, clock: Clock, wait: Callable[[float], object]) -> None:
        self._clock = clock
        self._wait = wait
        self._fitting = _RECORDS_FIRST
        self._paused: AbstractSet[TopicPartition] = frozenset()
        #: When the first round began; None while only copies are read.
        self._rounds_s: float | None = None

    def records(self, most: int, *, busy: bool) -> int:
        """Return how many records to poll for; `busy` says that tasks run."""
        return min(self._fitting, most) if busy else most

    def share(self, reader: ChangelogReader, entries: Iterable[Restoring]) -> None:
        """Pause and resume what is read, for this moment."""
        entries = list(entries)
        waits = self._copies_wait(entries)
        pause = {
            entry.partition
            for entry in entries
            if (waits and entry.end is None) or entry.held > _HELD_MAX
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
        """Note that partitions are read no more."""
        self._paused = self._paused - set(partitions)

    def leave_room(self, records: int, took_s: float) -> None:
        """Leave the interpreter to tasks that run, for as long as we had it; fit the next poll into a slice."""
        fitting = int(records / max(took_s, 1e-6) * _SLICE_S)
        self._fitting = max(_RECORDS_MIN, min(fitting, 2 * self._fitting))
        self._wait(min(took_s, _SLICE_S))
