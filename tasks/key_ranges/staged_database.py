"""What a key range sees of its task's database: what is committed, with the range's own sealed rows on top.

A range's stores hand their changes out before the commit that writes them (`RangeWorker.seal`), and go on as if they had
been written. Until they are, they stand here. Nobody takes a lock: the range's thread stages, reads and forgets; the loop's
thread writes the rows to the database below and then says so, with one number.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from tidewheel.state_stores.buffers.in_flight_view import DatabaseView, OrderedRows, on_top
from tidewheel.state_stores.buffers.rows import SortedRows
from tidewheel.state_stores.errors import InvalidStateStoreError
from tidewheel.state_stores.ports import Database
from tidewheel.tasks.key_ranges.own_keys import OwnKeys

#: What a commit has taken, and what was sealed since.
_LAYERS_MAX: Final = 2


class _Layer:
    """Rows that were sealed, the last of them by seal `number`."""

    __slots__ = ("number", "rows")

    def __init__(self, number: int) -> None:
        self.number = number
        self.rows: dict[bytes, bytes | None] = {}


class StagedDatabase(DatabaseView):
    """A `tidewheel.state_stores.ports.Database` of one key range, over the database that all ranges of the task share.

    A row that was deleted by an expired range of keys below is not hidden here: whoever reads rows that expire knows the
    time, and does not look.

    Args:
        below: The database.
        families: Names of the stores in it.
        own: Which rows are the range's, where users' processors may scan a store; None if all are.

    Attributes:
        families: Names of the stores in it.
        applied: Number of the last seal whose rows are in the database below. Set by the loop's thread.
        closed: Whether the range is over: every further call raises.
    """

    def __init__(
        self, below: Database, families: Collection[str], own: OwnKeys | None = None
    ) -> None:
        super().__init__(below)
        self._own = own
        self.families = frozenset(families)
        self.applied = 0
        self.closed = False
        #: Per family what is sealed, older rows before newer ones, in two layers at most.
        self._layers: dict[str, deque[_Layer]] = {}
        #: Per family the keys of its layers in order, and their values, made when somebody iterates.
        self._ordered: dict[str, OrderedRows] = {}

    def stage(
        self, number: int, changes: Mapping[str, SortedRows], notes: Mapping[str, bytes]
    ) -> None:
        """Take the rows of a seal, and forget what is in the database below by now.

        Args:
            number: Number of the seal, more than that of any before.
            changes: Puts and deletes (value None) by family.
            notes: What the stores keep beside the positions.
        """
        applied = self.applied
        for family, rows in changes.items():
            if self._own is not None:
                self._own.check(family, rows.keys)
            layers = self._layers.setdefault(family, deque())
            while layers and layers[0].number <= applied:
                layers.popleft()
            if len(layers) < _LAYERS_MAX:
                layers.append(_Layer(number))
            # Else the newest layer grows: it is forgotten when all of it is in the database below.
            layers[-1].number = number
            layers[-1].rows.update(zip(rows.keys, rows.values, strict=True))
            self._ordered.pop(family, None)
        self._notes.update(notes)

    # -- reading ---------------------------------------------------------------------------------------------------

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys`, in their order; None where absent."""
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
        """Yield (key, value) with lower <= key < upper, as of now, in key order or backwards."""
        self._check_open()
        mine = self.rows_on_top(family)
        below = self._below.iterate(family, lower, upper, reverse=reverse)
        own = self._own
        if own is not None and own.limits(family):
            below = (row for row in below if own.holds(family, row[0]))
        return below if mine is None else on_top(mine, below, lower, upper, reverse=reverse)

    def rows_on_top(self, family: str) -> OrderedRows | None:
        """Return the staged rows of a family, if there are any."""
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
        """Return what a store keeps beside the positions, or a position; None if never written."""
        self._check_open()
        return super().position(name)

    def approximate_num_entries(self, family: str) -> int:
        """Return about how many keys a family holds, of all ranges."""
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
