"""Sealed work: data that a key range receives, and finished data it returns for a commit."""

import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.record_batch import RecordBatch


class WorkItem(msgspec.Struct, frozen=True, kw_only=True):
    """Records that the loop gives to one key range, in order.

    Attributes:
        batch: Decoded records; None if there are only dead letters, or only time.
        times_ms: Stream time per row of the run (records distributed together to all ranges).
        rows: Indexes of these records in the run.
        end: After this item, the range's stream time is that of the row before `end`.
        size_bytes: Approximate memory, without data shared with other ranges.
        only_time: True without records: one row represents the run, for callbacks that become due.
        passed: Row up to which the former owner already ran the due callbacks.
    """

    source: str
    batch: RecordBatch | None
    times_ms: Sequence[int]
    rows: Sequence[int]
    end: int
    letters: Sequence[OutputColumns] = ()
    size_bytes: int = 0
    only_time: bool = False
    passed: int = 0


class CurrentRecord(NamedTuple):
    key_hash: int
    offset: int
    topic: str
    partition: int


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """Immutable finished work of a key range since its last seal, for the next commit.

    Attributes:
        rows_done: Number of finished rows since the range started.
    """

    number: int
    rows_done: int
    outputs: Sequence[OutputColumns]
    drained: Mapping[str, Drained]
    operator_times_ms: tuple[int, ...]
    size_bytes: int


def by_store(seals: Iterable[Seal]) -> dict[str, list[Drained]]:
    by_name: dict[str, list[Drained]] = {}
    for seal in seals:
        for store, drained in seal.drained.items():
            by_name.setdefault(store, []).append(drained)
    return by_name


class SealBarrier:
    """Barrier that opens when all awaited ranges have sealed (handed over) their work.

    >>> barrier = SealBarrier({"a", "b"})
    >>> barrier.sealed("a"); barrier.wait(0.0)
    False
    >>> barrier.sealed("b"); barrier.wait(0.0)
    True
    """

    def __init__(self, awaited: Iterable[Hashable]) -> None:
        self._awaited = set(awaited)
        self._all = threading.Event()
        if not self._awaited:
            self._all.set()

    def sealed(self, range_: Hashable) -> None:
        """Record that a range has sealed. Called in ranges' threads."""
        self._awaited.discard(range_)
        if not self._awaited:
            self._all.set()

    def wait(self, seconds: float) -> bool:
        return self._all.wait(max(seconds, 0.0))
