"""Dropped records: their count, operator and reason, and the first one's offset."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from tidewheel.tasks.processing.api.record import RecordMetadata

_log: Final = logging.getLogger(__name__)

WARN_EVERY_S: Final = 60.0


class Drop(msgspec.Struct):
    """Records, or (record, window) pairs, that one operator dropped for one reason.

    `first` locates the input record of the first one.
    """

    count: int
    first: RecordMetadata | None


Drops = dict[tuple[str, str], Drop]


def drop_text(node: str, reason: str, drop: Drop) -> str:
    """Return the text of a drop, without the record's data.

    >>> drop_text("KSTREAM-AGGREGATE-0000000002", "null key", Drop(3, RecordMetadata("orders", 1, 17)))
    '3 records at KSTREAM-AGGREGATE-0000000002: null key (first orders-1 offset 17)'
    """
    first = drop.first
    where = (
        "" if first is None else f" (first {first.topic}-{first.partition} offset {first.offset})"
    )
    return f"{drop.count:,} record{'' if drop.count == 1 else 's'} at {node}: {reason}{where}"


def most_frequent(drops: Drops) -> str:
    if not drops:
        return ""
    (node, reason), drop = max(drops.items(), key=lambda item: item[1].count)
    return drop_text(node, reason, drop)


class DropLog:
    """Warns of dropped records, at most once a minute per operator; any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[str, Drop]] = {}
        self._warned_s: dict[str, float] = {}

    def add(self, node: str, reason: str, drop: Drop) -> None:
        with self._lock:
            reasons = self._waiting.setdefault(node, {})
            counted = reasons.get(reason)
            if counted is None:
                reasons[reason] = drop
            else:
                counted.count += drop.count

    def report(self, *, at_end: bool = False) -> None:
        if not self._waiting:
            return
        now_s = self._clock()
        with self._lock:
            due = [
                node
                for node in self._waiting
                if at_end or now_s - self._warned_s.get(node, -WARN_EVERY_S) >= WARN_EVERY_S
            ]
            drops_by_node = [(node, self._waiting.pop(node)) for node in due]
            self._warned_s.update(dict.fromkeys(due, now_s))
        for node, reasons in drops_by_node:
            for reason, drop in reasons.items():
                _log.warning("dropped %s", drop_text(node, reason, drop))
