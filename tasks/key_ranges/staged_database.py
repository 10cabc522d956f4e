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
        self, below: Database, families: Collection[str], own_keys: OwnKeys | None = None
    ) -> None:
        super().__init__(below)
        self._own_keys = own_keys
        self.families = frozenset(families)
        self.applied = 0
        self.closed = False
        #: Layers per column family, oldest first.
        self._layers: dict[str, deque[_Layer]] = {}
        #: Sorted rows per family, built by the first iteration.
        self._ordered: dict[str, OrderedRows] = {}

    def stage(
        self, number: int, changes: Mapping[str, SortedRows], metadata: Mapping[str, bytes]
    ) -> None:
        """Add the rows of seal `number`, and drop rows that the database below contains."""
        applied = self.applied
        for family, rows in changes.items():
            if self._own_keys is not None:
                self._own_keys.check(family, rows.keys)
            layers = self._layers.setdefault(family, deque())
            while layers and layers[0].number <= applied:
                layers.popleft()
            if len(layers) < _LAYERS_MAX:
                layers.append(_Layer(number))
            # A layer that grows is dropped when the database has its last seal.
            layers[-1].number = number
            layers[-1].rows.update(zip(rows.keys, rows.values, strict=True))
            self._ordered.pop(family, None)
        self._metadata.update(metadata)

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check_open()
        staged: Mapping[bytes, bytes | None] = {}
        for layer in self._layers.get(family, ()):
            if not layer.rows.keys().isdisjoint(keys):
                layer_rows = {key: layer.rows[key] for key in keys if key in layer.rows}
                staged = {**staged, **layer_rows}
        if not staged:
            return self._below.get_many(family, keys)
        missing = [key for key in keys if key not in staged]
        below = dict(zip(missing, self._below.get_many(family, missing), strict=True))
        return [staged[key] if key in staged else below[key] for key in keys]

    def iterate(
        self, family: str, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        staged = self.rows_on_top(family)
        below = self._below.iterate(family, lower, upper, reverse=reverse)
        own_keys = self._own_keys
        if own_keys is not None and own_keys.limits(family):
            below = (row for row in below if own_keys.holds(family, row[0]))
        return below if staged is None else on_top(staged, below, lower, upper, reverse=reverse)

    def rows_on_top(self, family: str) -> OrderedRows | None:
        layers = self._layers.get(family)
        if not layers:
            return None
        ordered = self._ordered.get(family)
        if ordered is None:
            rows: dict[bytes, bytes | None] = {}
            for layer in layers:
                rows.update(layer.rows)
            ordered = self._ordered[family] = (sorted(rows), rows)
        return ordered

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
