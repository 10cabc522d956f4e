"""Staged database: a task's database with a key range's own sealed rows on top.

No lock is needed: the range's thread stages, reads and drops rows; the loop's sets one number.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from tidewheel.state_stores.buffers.in_flight_view import DatabaseView, OrderedRows, on_top
from tidewheel.state_stores.buffers.rows import SortedRows
from tidewheel.state_stores.errors import InvalidStateStoreError
from tidewheel.state_stores.ports import Database
from tidewheel.tasks.key_ranges.own_keys import OwnKeys

#: Layers of sealed rows per family: those of the commit in progress, and later ones.
_LAYERS_MAX: Final = 2


class _Layer:
    """Rows of consecutive seals; seal `number` is the last."""

    __slots__ = ("number", "rows")

    def __init__(self, number: int) -> None:
        self.number = number
        self.rows: dict[bytes, bytes | None] = {}


class StagedDatabase(DatabaseView):
    """View of a task's database with a key range's sealed rows on top.

    Expired rows that a seal deletes stay visible until the commit: readers check the time.

    Args:
        own: Rows of the range, if user processors may scan a store; None for all.

    Attributes:
        applied: Number of the last seal that the database contains. Set by the loop's thread.
    """

    def __init__(
        self, below: Database, families: Collection[str], own: OwnKeys | None = None
    ) -> None:
        super().__init__(below)
        self._own = own
        self.families = frozenset(families)
        self.applied = 0
        self.closed = False
        #: Layers per column family, oldest first.
        self._layers: dict[str, deque[_Layer]] = {}
        #: Sorted rows per family, built by the first iteration.
        self._ordered: dict[str, OrderedRows] = {}

    def stage(
        self, number: int, changes: Mapping[str, SortedRows], notes: Mapping[str, bytes]
    ) -> None:
        """Add the rows of seal `number`, and drop rows that the database below contains."""
        applied = self.applied
        for family, rows in changes.items():
            if self._own is not None:
                self._own.check(family, rows.keys)
            layers = self._layers.setdefault(family, deque())
            while layers and layers[0].number <= applied:
                layers.popleft()
            if len(layers) < _LAYERS_MAX:
                layers.append(_Layer(number))
            # A layer that grows is dropped when the database has its last seal.
            layers[-1].number = number
            layers[-1].rows.update(zip(rows.keys, rows.values, strict=True))
            self._ordered.pop(family, None)
        self._notes.update(notes)

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check_open()
        found: Mapping[bytes, bytes | None] = {}
        for layer in self._layers.get(family, ()):
            if not layer.rows.keys().isdisjoint(keys):
                mine = {key: layer.rows[key] for key in keys if key in layer.rows}
                found = {**found, **mine}
        if not found:
            return self._below.get_many(family, keys)
        missing = [key for key in keys if key not in found]
        below = dict(zip(missing, self._below.get_many(family, missing), strict=True))
        return [found[key] if key in found else below[key] for key in keys]

    def iterate(
        self, family: str, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        mine = self.rows_on_top(family)
        below = self._below.iterate(family, lower, upper, reverse=reverse)
        own = self._own
        if own is not None and own.limits(family):
            below = (row for row in below if own.holds(family, row[0]))
        return below if mine is None else on_top(mine, below, lower, upper, reverse=reverse)

    def rows_on_top(self, family: str) -> OrderedRows | None:
        layers = self._layers.get(family)
        if not layers:
            return None
        known = self._ordered.get(family)
        if known is None:
            rows: dict[bytes, bytes | None] = {}
            for layer in layers:
                rows.update(layer.rows)
            known = self._ordered[family] = (sorted(rows), rows)
        return known

    def position(self, name: str) -> bytes | None:
        self._check_open()
        return super().position(name)

    def approximate_num_entries(self, family: str) -> int:
        self._check_open()
        return self._below.approximate_num_entries(family)

    def close(self) -> None:
        """End reading; the database below stays open. Idempotent."""
        self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise InvalidStateStoreError(
                "this key range is over: its task has stopped or moved while a call was still running"
            )
