"""Expiry of a window or session store whose task is split into key ranges.

The task's commit deletes a row only after the slowest range needs it no longer.
"""

from collections.abc import Iterable

from tidewheel.state_stores.buffers.commit_buffer import Drained, RestoreExtras
from tidewheel.state_stores.buffers.segmented_buffer import segments_on_disk
from tidewheel.state_stores.buffers.timed_buffer import (
    decode_store_time,
    encode_store_time,
    read_store_time,
)
from tidewheel.state_stores.layout.position import store_time_name
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreSpec


def time_at(spec: StoreSpec, position_ms: int) -> int:
    """Return the lowest store time that stream time `position_ms` can give; -1 if unknown.

    Store times are window starts, up to one window size before their record.
    """
    return max(position_ms - spec.window_size_ms, -1)


def slowest_time(spec: StoreSpec, position_ms: int | None) -> int | None:
    """Return the store time from which a restore counts back the retention.

    `position_ms` is the slowest key range's stream time. None: use the latest row's time.
    """
    if position_ms is None or spec.kind not in SEGMENTED_KINDS:
        return None
    return time_at(spec, position_ms)


class StoreExpiry:
    def __init__(self, spec: StoreSpec, database: Database) -> None:
        self._spec = spec
        self._database = database
        self._layout = SegmentLayout.of(spec)
        self._stored_time = read_store_time(database, spec.name)
        #: No segment before this one is on disk.
        self._first = -1

    def extras(self, drained: Iterable[Drained], position_ms: int) -> RestoreExtras:
        """Return the task commit's additions: expired rows to delete, and the store's time.

        `position_ms` is the stream time up to which all key ranges have finished.
        """
        name = store_time_name(self._spec.name)
        metadata = [decode_store_time(changed.metadata.get(name)) for changed in drained]
        newest = (
            max([self._stored_time[0], *(observed for observed, _ in metadata)]),
            max([self._stored_time[1], *(seq for _, seq in metadata)]),
        )
        written = {name: encode_store_time(*newest)} if newest != self._stored_time else {}
        self._stored_time = newest
        return RestoreExtras(delete_range=self._expired(position_ms), metadata=written)

    def _expired(self, position_ms: int) -> tuple[bytes, bytes] | None:
        live_from = self._layout.live_from_ms(time_at(self._spec, position_ms))
        dead = self._layout.segment(live_from)
        if dead <= self._first:
            return None
        first = next(segments_on_disk(self._database, self._spec.name, self._layout), None)
        if first is None:  # the store is empty, and its next rows may have any time
            return None
        if first >= dead:
            self._first = dead
            return None
        return self._layout.prefix(first), self._layout.prefix(dead)
