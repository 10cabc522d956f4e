"""What a key range hands over at a cut of its work, and how the seals of all ranges are told apart by store. Pure."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.tasks.processing.engine.output import OutputColumns


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
