"""Dropped records: how many a rule left out, of which operator, why, and where the first one is.

Called only where records are dropped, with one number for a batch. A warning comes at most once a minute for each operator.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from tidewheel.tasks.processing.api.record import RecordMetadata

_log: Final = logging.getLogger(__name__)

#: Seconds between two warnings of one operator.
WARN_EVERY_S: Final = 60.0


class Drop(msgspec.Struct):
    """What one operator has dropped for one reason.

    Attributes:
        count: How many records, or windows of records.
        first: Input record behind the first of them; None for one without (a punctuation, a cache flush).
    """

    count: int
    first: RecordMetadata | None


#: By node and reason.
Drops = dict[tuple[str, str], Drop]


def shown_drop(node: str, reason: str, drop: Drop) -> str:
    """Return a drop in words, without the record's data.

    >>> shown_drop("KSTREAM-AGGREGATE-0000000002", "null key", Drop(3, RecordMetadata("orders", 1, 17)))
    '3 records at KSTREAM-AGGREGATE-0000000002: null key (first orders-1 offset 17)'
    """
    first = drop.first
    where = (
        "" if first is None else f" (first {first.topic}-{first.partition} offset {first.offset})"
    )
    return f"{drop.count:,} record{'' if drop.count == 1 else 's'} at {node}: {reason}{where}"


def most_frequent(drops: Drops) -> str:
    """Return the most frequent of several drops in words, empty for none."""
    if not drops:
        return ""
    (node, reason), drop = max(drops.items(), key=lambda each: each[1].count)
    return shown_drop(node, reason, drop)


class DropLog:
    """Warns of dropped records with each commit, if that is due. Any thread may call it.

    Args:
        clock: Seconds that never jump; for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: What was dropped since the last warning of each node.
        self._waiting: dict[str, dict[str, Drop]] = {}
        self._warned_s: dict[str, float] = {}

    def add(self, node: str, reason: str, drop: Drop) -> None:
        """Take in what was dropped."""
        with self._lock:
            reasons = self._waiting.setdefault(node, {})
            known = reasons.get(reason)
            if known is None:
                reasons[reason] = drop
            else:
                known.count += drop.count

    def report(self, *, at_end: bool = False) -> None:
        """Warn of what waits for it and is due; `at_end`: of all that waits."""
        if not self._waiting:
            return
        now_s = self._clock()
        with self._lock:
            due = [
                node
                for node in self._waiting
                if at_end or now_s - self._warned_s.get(node, -WARN_EVERY_S) >= WARN_EVERY_S
            ]
            told = [(node, self._waiting.pop(node)) for node in due]
            self._warned_s.update(dict.fromkeys(due, now_s))
        for node, reasons in told:
            for reason, drop in reasons.items():
                _log.warning("dropped %s", shown_drop(node, reason, drop))
