"""Punctuation schedules (Kafka Streams: PunctuationQueue, PunctuationSchedule).

On stream time without a start, calls are due at multiples of the interval. Missed ones become one.
Schedules with equal due times run in the order of Java's `PriorityQueue`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from tidewheel.tasks.processing.api.processor import Cancellable
from tidewheel.tasks.processing.engine.java_queue import JavaQueue


class Schedule(Cancellable):
    def __init__(
        self, interval_ms: int, callback: Callable[[int], None], next_ms: int, node: str
    ) -> None:
        self.interval_ms = interval_ms
        self.callback = callback
        self.next_ms = next_ms
        self.node = node
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@runtime_checkable
class Punctuated(Protocol):
    def punctuate(self, schedule: Schedule, now_ms: int) -> None: ...


def first_due_ms(
    interval_ms: int, now_ms: int, start_ms: int | None, *, aligned_at_zero: bool
) -> int:
    """Return the first due time of a new schedule.

    With `start_ms` (KIP-1146), that time or, if past, the next `start_ms + n * interval_ms`.
    Without it, stream time is due with the first record, the wall clock after one interval.

    >>> first_due_ms(10, 25, None, aligned_at_zero=False)
    35
    >>> first_due_ms(10, 25, 3, aligned_at_zero=False)
    33
    """
    if start_ms is not None:
        if start_ms >= now_ms:
            return start_ms
        return start_ms + ((now_ms - start_ms) // interval_ms + 1) * interval_ms
    return 0 if aligned_at_zero else now_ms + interval_ms


class PunctuationQueue:
    def __init__(self) -> None:
        self._schedules = _by_due_time(())

    def __len__(self) -> int:
        return len(self._schedules)

    def add(self, schedule: Schedule) -> None:
        self._schedules.offer(schedule)

    def next_due_ms(self) -> int | None:
        self._forget_cancelled()
        return self._schedules.peek().next_ms if len(self._schedules) else None

    def due_times(self, times: Sequence[int], start: int, stop: int) -> Iterator[int]:
        """Yield the time of each row at which a callback is due; the caller runs it immediately.

        A key range sees its own records only, but its callbacks follow the whole task's `times` (ms per row).

        >>> queue = PunctuationQueue()
        >>> queue.add(Schedule(10, print, 0, "node"))
        >>> [len(queue.pop_due(now)) and now for now in queue.due_times([3, 7, 12, 15, 31], 0, 5)]
        [3, 12, 31]
        """
        while start < stop and (due := self.next_due_ms()) is not None and due <= times[stop - 1]:
            start = bisect_left(times, due, start, stop)
            yield times[start]
            start += 1

    def pop_due(self, now_ms: int) -> list[Schedule]:
        """Return due schedules, the earliest first; each now has its next due time after now."""
        self._forget_cancelled()
        due: list[Schedule] = []
        while len(self._schedules) and self._schedules.peek().next_ms <= now_ms:
            schedule = self._schedules.poll()
            steps = (now_ms - schedule.next_ms) // schedule.interval_ms + 1
            schedule.next_ms += steps * schedule.interval_ms
            self._schedules.offer(schedule)
            due.append(schedule)
        return due

    def _forget_cancelled(self) -> None:
        if any(schedule.cancelled for schedule in self._schedules):
            self._schedules = _by_due_time(
                schedule for schedule in self._schedules if not schedule.cancelled
            )


def _by_due_time(schedules: Iterable[Schedule]) -> JavaQueue[Schedule]:
    queue: JavaQueue[Schedule] = JavaQueue(lambda schedule: schedule.next_ms)
    for schedule in schedules:
        queue.offer(schedule)
    return queue
