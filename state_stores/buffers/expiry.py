"""What has expired of a window or session store whose keys are cut into ranges.

A range that is ahead must not delete what one behind it still needs, so no range deletes anything: whoever commits for
all of them does, by the time of the one that is furthest behind. Whoever restores rows that ranges have written goes by
that time too, as it was committed (`time_at`).
"""

from collections.abc import Iterable

from tidewheel.state_stores.buffers.commit_buffer import Drained, Restored
from tidewheel.state_stores.buffers.segmented_buffer import segments_on_disk
from tidewheel.state_stores.buffers.timed_buffer import (
    decode_note,
    encode_note,
    note_name,
    read_note,
)
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreSpec


def time_at(spec: StoreSpec, position_ms: int) -> int:
    """Return the time that the store of a whole task has at least, where the task's stream time is `position_ms`.

    A record there is in windows that began a window's length before at the earliest, so all of the store's rows might be
    as old: the store of a whole task goes by the latest of them. -1 for a position before the first record, or none.
    """
    return max(position_ms - spec.window_size_ms, -1)


def slowest_time(spec: StoreSpec, position_ms: int | None) -> int | None:
    """Return by what time rows of a store expire that are restored, at most (`SegmentLayout.first_restored`).

    Args:
        spec: The store.
        position_ms: The stream time of the position that the slowest key range of its task has come to, -1 if that is not
            known; None where no range is behind.
    """
    if position_ms is None or spec.kind not in SEGMENTED_KINDS:
        return None
    return time_at(spec, position_ms)


class StoreExpiry:
    """Expiry and note of one store of one task.

    Args:
        spec: A window or session store.
        database: The task's, which all ranges share.
    """

    def __init__(self, spec: StoreSpec, database: Database) -> None:
        self._spec = spec
        self._database = database
        self._layout = SegmentLayout.of(spec)
        self._noted = read_note(database, spec.name)
        #: No segment before this one is on disk.
        self._first = -1

    def extras(self, drained: Iterable[Drained], position_ms: int) -> Restored:
        """Return what is written along with the changes of some ranges: the range that has expired, and the note.

        Args:
            drained: What the ranges have changed, with their own notes; perhaps nothing.
            position_ms: The stream time before the first record that some range has not done, -1 for none.
        """
        mine = note_name(self._spec.name)
        notes = [decode_note(changed.notes.get(mine)) for changed in drained]
        newest = (
            max([self._noted[0], *(observed for observed, _ in notes)]),
            max([self._noted[1], *(seq for _, seq in notes)]),
        )
        written = {mine: encode_note(*newest)} if newest != self._noted else {}
        self._noted = newest
        return Restored(delete_range=self._expired(position_ms), notes=written)

    def _expired(self, position_ms: int) -> tuple[bytes, bytes] | None:
        """Return the range to delete, if there is anything in it."""
        live_from = self._layout.live_from_ms(time_at(self._spec, position_ms))
        dead = self._layout.segment(live_from)
        if dead <= self._first:
            return None
        first = next(segments_on_disk(self._database, self._spec.name, self._layout), None)
        if first is None:  # what comes now may be of any time
            return None
        if first >= dead:
            self._first = dead
            return None
        return self._layout.prefix(first), self._layout.prefix(dead)
