"""Query access to one task's store: committed rows, optionally with uncommitted rows on top.

A query runs in the caller's thread and asks the task's thread for uncommitted rows. It reads the
database afterwards: a row committed in between is read twice, never missed.
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
from tidewheel.state_stores.buffers.timed_buffer import TimedBuffer, read_store_time
from tidewheel.state_stores.errors import InvalidStateStoreError
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreSpec

PAGE_ROWS: Final = 1_000
PAGE_BYTES: Final = 1 << 20

T = TypeVar("T")

_key = itemgetter(0)


class RowReader(Protocol):
    """Reader of a store's rows in key order; a value of None is an uncommitted delete."""

    def iterate(
        self, family: str, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes | None]]: ...


@dataclass(frozen=True, slots=True)
class QueryScan:
    """Row selection of a query.

    `rows` receives a reader, the previous page's last key (None at first) and the store's time. It
    yields the rows after that key.
    """

    rows: Callable[[RowReader, bytes | None, int], Iterator[tuple[bytes, bytes | None]]]
    reverse: bool = False


class Page(NamedTuple):
    observed_ms: int
    rows: Iterator[tuple[bytes, bytes]]


class QuerySource(Protocol):
    def get(self, key: bytes) -> Callable[[], tuple[bytes | None, int]]:
        """Request a row; return a function that waits for (value or None, store's time)."""
        ...

    def pages(self, scan: QueryScan) -> Iterator[Page]: ...

    def stable_rows(self, scan: QueryScan) -> tuple[RowReader, int]: ...

    def approximate_num_entries(self) -> int: ...


def clipped(
    lower: bytes | None, upper: bytes | None, past: bytes | None, *, reverse: bool
) -> tuple[bytes | None, bytes | None]:
    r"""Return the part of a key range that a scan still has to read after key `past`.

    >>> clipped(b"a", b"z", b"m", reverse=False), clipped(b"a", b"z", b"m", reverse=True)
    ((b'm\x00', b'z'), (b'a', b'm'))
    """
    if past is None:
        return lower, upper
    if reverse:
        return lower, past if upper is None else min(upper, past)
    behind = past + b"\x00"
    return behind if lower is None else max(lower, behind), upper


class ReadCommitted:
    __slots__ = ("_database", "_has_time", "_store")

    def __init__(self, database: Database, spec: StoreSpec) -> None:
        self._database = database
        self._store = spec.name
        self._has_time = spec.has_time

    def _observed_ms(self) -> int:
        return read_store_time(self._database, self._store)[0] if self._has_time else -1

    def get(self, key: bytes) -> Callable[[], tuple[bytes | None, int]]:
        return partial(self._get, key)

    def _get(self, key: bytes) -> tuple[bytes | None, int]:
        (data,) = self._database.get_many(self._store, [key])
        return data, -1 if data is None else self._observed_ms()

    def pages(self, scan: QueryScan) -> Iterator[Page]:
        observed_ms = self._observed_ms()
        rows = scan.rows(self._database, None, observed_ms)
        yield Page(observed_ms, cast("Iterator[tuple[bytes, bytes]]", rows))

    def stable_rows(self, scan: QueryScan) -> tuple[RowReader, int]:  # noqa: ARG002 - the database has all rows
        return self._database, self._observed_ms()

    def approximate_num_entries(self) -> int:
        return self._database.approximate_num_entries(self._store)


def committed(
    spec: StoreSpec, databases: Callable[[], Sequence[Database]]
) -> Callable[[], list[QuerySource]]:
    def sources() -> list[QuerySource]:
        opened = databases()
        if not opened:
            raise not_running(spec.name)
        return [ReadCommitted(database, spec) for database in opened]

    return sources


def not_running(store: str) -> InvalidStateStoreError:
    return InvalidStateStoreError(
        f"store {store} has no running task in this process; "
        "wait until the application is RUNNING, or ask the process that owns the key"
    )


class UncommittedRows:
    """Uncommitted rows of a store or key range, including those of a commit in flight."""

    def __init__(self, buffer: CommitBuffer, view: DatabaseView) -> None:
        self._buffer = buffer
        self._view = view

    @property
    def observed_ms(self) -> int:
        buffer = self._buffer
        return buffer.time_ms if isinstance(buffer, TimedBuffer) else -1

    def get(self, key: bytes) -> tuple[bool, bytes | None]:
        """Return (True, stored value or None for a delete) if the key has an uncommitted row."""
        if key in self._buffer.dirty:
            return True, self._buffer.uncommitted_row(key)
        staged = self._view.rows_on_top(self._buffer.spec.name)
        if staged is not None and key in staged[1]:
            return True, staged[1][key]
        return False, None

    def iterate(
        self, family: str, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes | None]]:
        buffer = self._buffer
        changed = buffer.dirty_between(lower, upper)
        dirty_rows = (
            (key, buffer.uncommitted_row(key)) for key in _ordered(changed, reverse=reverse)
        )
        staged = self._view.rows_on_top(family)
        if staged is None:
            return dirty_rows
        keys, rows = staged
        start = 0 if lower is None else bisect_left(keys, lower)
        stop = len(keys) if upper is None else bisect_left(keys, upper)
        dirty = buffer.dirty
        staged_rows = (
            (key, rows[key])
            for key in _ordered(keys[start:stop], reverse=reverse)
            if key not in dirty
        )
        return merge(dirty_rows, staged_rows, key=_key, reverse=reverse)

    def entries_added(self) -> int:
        return self._buffer.entries_added() + self._view.entries_added(self._buffer.spec.name)


def _ordered(keys: Sequence[bytes], *, reverse: bool) -> Iterator[bytes]:
    return reversed(keys) if reverse else iter(keys)


class OwnerQuery(Protocol):
    """Callable: runs a function in the thread of the uncommitted rows, once per key range."""

    def __call__(self, function: Callable[[UncommittedRows], T], /) -> Callable[[], list[T]]: ...


class _Top(NamedTuple):
    """Page of uncommitted rows; `end` is its last key if more may follow."""

    rows: list[tuple[bytes, bytes | None]]
    end: bytes | None
    observed_ms: int


def _top(scan: QueryScan, past: bytes | None, rows: UncommittedRows) -> _Top:
    observed_ms = rows.observed_ms
    page: list[tuple[bytes, bytes | None]] = []
    size = 0
    for key, value in scan.rows(rows, past, observed_ms):
        page.append((key, value))
        size += len(key) + (0 if value is None else len(value))
        if len(page) >= PAGE_ROWS or size >= PAGE_BYTES:
            return _Top(page, key, observed_ms)
    return _Top(page, None, observed_ms)


def _together(parts: Sequence[_Top], *, reverse: bool) -> _Top:
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


class ReadUncommitted:
    def __init__(self, database: Database, store: str, ask: OwnerQuery) -> None:
        self._database = database
        self._store = store
        self._ask = ask

    def get(self, key: bytes) -> Callable[[], tuple[bytes | None, int]]:
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

    def pages(self, scan: QueryScan) -> Iterator[Page]:
        """Yield pages, each consistent in itself; a later page shows a later state."""
        return self._pages(scan, self._ask(partial(_top, scan, None)))

    def _pages(self, scan: QueryScan, answers: Callable[[], list[_Top]]) -> Iterator[Page]:
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

    def stable_rows(self, scan: QueryScan) -> tuple[RowReader, int]:
        rows: list[tuple[bytes, bytes | None]] = []
        past: bytes | None = None
        while True:
            top = _together(self._ask(partial(_top, scan, past))(), reverse=scan.reverse)
            rows += top.rows
            if top.end is None:
                return _StableRows(self._database, _by_key(sorted(rows, key=_key))), top.observed_ms
            past = top.end

    def approximate_num_entries(self) -> int:
        added = sum(self._ask(UncommittedRows.entries_added)())
        return max(0, self._database.approximate_num_entries(self._store) + added)


class _StableRows:
    def __init__(self, below: Database, top: OrderedRows) -> None:
        self._below = below
        self._top = top

    def iterate(
        self, family: str, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes | None]]:
        below = self._below.iterate(family, lower, upper, reverse=reverse)
        return on_top(self._top, below, lower, upper, reverse=reverse)


def _by_key(rows: Sequence[tuple[bytes, bytes | None]]) -> OrderedRows:
    return [key for key, _ in rows], dict(rows)
