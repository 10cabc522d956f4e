"""What a key range hands over at a cut of its work, and how the seals of all ranges are told apart by store. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.record_batch import RecordBatch


class WorkItem(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one range, in order.

    Attributes:
        source: Name of the node that decoded them.
        batch: The records, None if there is none that was accepted.
        times_ms: The task's stream time behind each row of the run that the loop handed out together, to all ranges.
        rows: The rows of that run that are these records.
        end: The row that the range has come to when they are done.
        letters: What the handlers of records that could not be read put out.
        size_bytes: About how much memory they hold, without what is shared with other ranges.
        only_time: There are none; one row stands for all of the run, at which something may become due.
        passed: The row up to which time had passed for this range in a former life: what became due there was called.
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


class AtHand(NamedTuple):
    """A record that a range is at."""

    key_hash: int
    offset: int
    topic: str
    partition: int


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """All that one range has done since its last seal. Nobody changes it.

    Attributes:
        number: Counts the range's seals, from 1.
        rows_done: How many of the rows given to the range are done, since it began.
        outputs: What they put out, in order.
        drained: What they changed, by store.
        operator_times_ms: The stream times of the range's operators and stores.
        size_bytes: About how much memory it takes until it is committed.
    """

    number: int
    rows_done: int
    outputs: Sequence[OutputColumns]
    drained: Mapping[str, Drained]
    operator_times_ms: tuple[int, ...]
    size_bytes: int


def by_store(seals: Iterable[Seal]) -> dict[str, list[Drained]]:
    """Return the changes of some seals by store, in the order of the seals."""
    found: dict[str, list[Drained]] = {}
    for seal in seals:
        for store, drained in seal.drained.items():
            found.setdefault(store, []).append(drained)
    return found
