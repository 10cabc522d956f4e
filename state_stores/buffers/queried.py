"""One task's store as queries read it: its committed rows, or these with the task's uncommitted rows on top.

A query runs in the caller's thread. Uncommitted rows belong to the thread that processes the task, so that thread is asked
for them: for the row of one key, or for one page of a scan. The database is read in the caller's thread, after the
answer: a row that is committed in between is read twice and never missed.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import merge
from itertools import takewhile
from operator import itemgetter
from typing import Final, NamedTuple, Protocol, TypeVar, cast

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer
from tidewheel.state_stores.buffers.in_flight_view import DatabaseView, OrderedRows, on_top
from tidewheel.state_stores.buffers.timed_buffer import TimedBuffer, read_note
from tidewheel.state_stores.errors import InvalidStateStoreError
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreSpec

#: A page of uncommitted rows ends after so many rows, or after so many bytes.
PAGE_ROWS: Final = 1_000
PAGE_BYTES: Final = 1 << 20

T = TypeVar("T")

_key = itemgetter(0)


class RowReader(Protocol):
    """Rows of a store in the order of their keys; a value of None is an uncommitted delete."""

    def iterate(
        self, family: str, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield (key, value) with lower <= key < upper."""
        ...


@dataclass(frozen=True, slots=True)
class Scan:
    """Selects the rows of a query.

    Attributes:
        rows: Given rows, the last key of the page before (None for the first page) and the store's time, yields those of
            the query behind that key, in the order of their keys.
        reverse: Whether that order is descending.
    """

    rows: Callable[[RowReader, bytes | None, int], Iterator[tuple[bytes, bytes | None]]]
    reverse: bool = False


class Page(NamedTuple):
    """Rows of a scan.

    Attributes:
        observed_ms: The store's time (the largest it has seen, ms since the epoch), -1 for a store without.
        rows: Keys and stored values.
    """

    observed_ms: int
    rows: Iterator[tuple[bytes, bytes]]


class Queried(Protocol):
    """One task's store, for queries from any thread."""

    def get(self, key: bytes) -> Callable[[], tuple[bytes | None, int]]:
        """Ask for a row; return a function that waits for its stored value (None: absent) and the store's time."""
        ...

    def pages(self, scan: Scan) -> Iterator[Page]:
        """Ask for the rows of a scan; return them page by page."""
        ...

    def frozen(self, scan: Scan) -> tuple[RowReader, int]:
        """Return rows that may be read several times, and the store's time; of uncommitted rows only those of the scan."""
        ...

    def approximate_num_entries(self) -> int:
        """Return about how many keys the store holds."""
        ...


def clipped(
    lower: bytes | None, upper: bytes | None, past: bytes | None, *, reverse: bool
) -> tuple[bytes | None, bytes | None]:
    r"""Return the part of a range of keys that a scan has not yielded yet, `past` being the last key it has.

    >>> clipped(b"a", b"z", b"m", reverse=False), clipped(b"a", b"z", b"m", reverse=True)
    ((b'm\x00', b'z'), (b'a', b'm'))
    """
    if past is None:
        return lower, upper
    if reverse:
        return lower, past if upper is None else min(upper, past)
    behind = past + b"\x00"
    return behind if lower is None else max(lower, behind), upper


class Committed:
    """The committed rows of a store.

    Args:
        database: The task's.
        spec: The store.
    """

    __slots__ = ("_database", "_has_time", "_store")

    def __init__(self, database: Database, spec: StoreSpec) -> None:
        self._database = database
        self._store = spec.name
        self._has_time = spec.has_time

    def _observed_ms(self) -> int:
        return read_note(self._database, self._store)[0] if self._has_time else -1

    def get(self, key: bytes) -> Callable[[], tuple[bytes | None, int]]:
        """Return a function that reads a row and the store's time."""
        return partial(self._get, key)

    def _get(self, key: bytes) -> tuple[bytes | None, int]:
        (data,) = self._database.get_many(self._store, [key])
        return data, -1 if data is None else self._observed_ms()

    def pages(self, scan: Scan) -> Iterator[Page]:
        """Yield all rows of a scan as one page."""
        observed_ms = self._observed_ms()
        rows = scan.rows(self._database, None, observed_ms)
        yield Page(observed_ms, cast("Iterator[tuple[bytes, bytes]]", rows))

    def frozen(self, scan: Scan) -> tuple[RowReader, int]:  # noqa: ARG002 - the database has all rows
        """Return the database and the store's time."""
        return self._database, self._observed_ms()

    def approximate_num_entries(self) -> int:
        """Return about how many keys the store holds."""
        return self._database.approximate_num_entries(self._store)


def committed(
    spec: StoreSpec, databases: Callable[[], Sequence[Database]]
) -> Callable[[], list[Queried]]:
    """Return a function that gives the committed rows in the databases that are open; it raises if none is."""

    def sources() -> list[Queried]:
        opened = databases()
        if not opened:
            raise not_running(spec.name)
        return [Committed(database, spec) for database in opened]

    return sources


def not_running(store: str) -> InvalidStateStoreError:
    """Return the error of a query that finds no task."""
    return InvalidStateStoreError(
        f"store {store} has no running task in this process; "
        "wait until the application is RUNNING, or ask the process that owns the key"
    )


class UncommittedRows:
    """The uncommitted rows of a store, or of one key range of it: changed since the last commit, or in flight with it.

    Only the thread that owns the buffer uses it. Nothing here changes the buffer, and nothing reads the database.
    """

    def __init__(self, buffer: CommitBuffer, view: DatabaseView) -> None:
        self._buffer = buffer
        self._view = view

    @property
    def observed_ms(self) -> int:
        """Return the store's time; -1 for a store without."""
        buffer = self._buffer
        return buffer.time_ms if isinstance(buffer, TimedBuffer) else -1

    def get(self, key: bytes) -> tuple[bool, bytes | None]:
        """Return whether a key has an uncommitted row, and the stored value, which is None for a delete."""
        if key in self._buffer.dirty:
            return True, self._buffer.uncommitted_row(key)
        staged = self._view.rows_on_top(self._buffer.spec.name)
        if staged is not None and key in staged[1]:
            return True, staged[1][key]
        return False, None

    def iterate(
        self, family: str, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield (key, stored value) with lower <= key < upper."""
        buffer = self._buffer
        changed = buffer.dirty_between(lower, upper)
        mine = ((key, buffer.uncommitted_row(key)) for key in _ordered(changed, reverse=reverse))
        staged = self._view.rows_on_top(family)
        if staged is None:
            return mine
        keys, rows = staged
        start = 0 if lower is None else bisect_left(keys, lower)
        stop = len(keys) if upper is None else bisect_left(keys, upper)
        dirty = buffer.dirty
        theirs = (
            (key, rows[key])
            for key in _ordered(keys[start:stop], reverse=reverse)
            if key not in dirty
        )
        return merge(mine, theirs, key=_key, reverse=reverse)

    def entries_added(self) -> int:
        """Return how many keys these rows add to the database, as far as known."""
        return self._buffer.entries_added() + self._view.entries_added(self._buffer.spec.name)


def _ordered(keys: Sequence[bytes], *, reverse: bool) -> Iterator[bytes]:
    return reversed(keys) if reverse else iter(keys)


class AskOwners(Protocol):
    """Asks the threads that own the uncommitted rows of a task's store: one, or one per key range."""

    def __call__(self, function: Callable[[UncommittedRows], T], /) -> Callable[[], list[T]]:
        """Have a function called by each owner; return a function that waits for the answers."""
        ...


class _Top(NamedTuple):
    """A page of uncommitted rows: the last key if there may be more, and the store's time."""

    rows: list[tuple[bytes, bytes | None]]
    end: bytes | None
    observed_ms: int


def _top(scan: Scan, past: bytes | None, rows: UncommittedRows) -> _Top:
    """Return the next page of the uncommitted rows of a scan. Called by the owner."""
    observed_ms = rows.observed_ms
    found: list[tuple[bytes, bytes | None]] = []
    size = 0
    for key, value in scan.rows(rows, past, observed_ms):
        found.append((key, value))
        size += len(key) + (0 if value is None else len(value))
        if len(found) >= PAGE_ROWS or size >= PAGE_BYTES:
            return _Top(found, key, observed_ms)
    return _Top(found, None, observed_ms)


def _together(parts: Sequence[_Top], *, reverse: bool) -> _Top:
    """Return the pages of all owners as one, up to the first key where one of them ends."""
    ends = [part.end for part in parts if part.end is not None]
    end = None if not ends else max(ends) if reverse else min(ends)
    rows = [row for part in parts for row in part.rows]
    if end is not None:
        is_inside = _is_up_to(end, reverse=reverse)
        rows = [row for row in rows if is_inside(row)]
    rows.sort(key=_key)
    return _Top(rows, end, max(part.observed_ms for part in parts))


def _is_up_to(end: bytes, *, reverse: bool) -> Callable[[tuple[bytes, bytes | None]], bool]:
    return (lambda row: row[0] >= end) if reverse else (lambda row: row[0] <= end)


class Uncommitted:
    """The rows of a store with uncommitted ones on top.

    Args:
        database: The task's.
        store: Name of the store.
        ask: Asks the owners of the uncommitted rows.
    """

    def __init__(self, database: Database, store: str, ask: AskOwners) -> None:
        self._database = database
        self._store = store
        self._ask = ask

    def get(self, key: bytes) -> Callable[[], tuple[bytes | None, int]]:
        """Ask for a row; return a function that waits for its stored value (None: absent) and the store's time."""
        answers = self._ask(lambda rows: (*rows.get(key), rows.observed_ms))

        def answer() -> tuple[bytes | None, int]:
            parts = answers()
            observed_ms = max(part_ms for _, _, part_ms in parts)
            for is_there, data, _ in parts:
                if is_there:
                    return data, observed_ms
            (data,) = self._database.get_many(self._store, [key])
            return data, observed_ms

        return answer

    def pages(self, scan: Scan) -> Iterator[Page]:
        """Ask for the rows of a scan; return them page by page. Each page is of one moment, the next of a later one."""
        return self._pages(scan, self._ask(partial(_top, scan, None)))

    def _pages(self, scan: Scan, answers: Callable[[], list[_Top]]) -> Iterator[Page]:
        reverse = scan.reverse
        past: bytes | None = None
        while True:
            top = _together(answers(), reverse=reverse)
            below = scan.rows(self._database, past, top.observed_ms)
            rows = on_top(
                _by_key(top.rows),
                cast("Iterator[tuple[bytes, bytes]]", below),
                None,
                None,
                reverse=reverse,
            )
            if top.end is None:
                yield Page(top.observed_ms, rows)
                return
            yield Page(top.observed_ms, takewhile(_is_up_to(top.end, reverse=reverse), rows))
            past = top.end
            answers = self._ask(partial(_top, scan, past))

    def frozen(self, scan: Scan) -> tuple[RowReader, int]:
        """Return rows that may be read several times, and the store's time; of uncommitted rows only those of the scan."""
        rows: list[tuple[bytes, bytes | None]] = []
        past: bytes | None = None
        while True:
            top = _together(self._ask(partial(_top, scan, past))(), reverse=scan.reverse)
            rows += top.rows
            if top.end is None:
                return _Frozen(self._database, _by_key(sorted(rows, key=_key))), top.observed_ms
            past = top.end

    def approximate_num_entries(self) -> int:
        """Return about how many keys the store holds, uncommitted ones included."""
        added = sum(self._ask(UncommittedRows.entries_added)())
        return max(0, self._database.approximate_num_entries(self._store) + added)


class _Frozen:
    """A database with rows on top that do not change."""

    def __init__(self, below: Database, top: OrderedRows) -> None:
        self._below = below
        self._top = top

    def iterate(
        self, family: str, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield (key, value) with lower <= key < upper."""
        below = self._below.iterate(family, lower, upper, reverse=reverse)
        return on_top(self._top, below, lower, upper, reverse=reverse)


def _by_key(rows: Sequence[tuple[bytes, bytes | None]]) -> OrderedRows:
    """Return rows in the order of their keys as `on_top` takes them."""
    return [key for key, _ in rows], dict(rows)
