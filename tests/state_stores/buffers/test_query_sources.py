"""Queries of uncommitted rows see the rows of the task's own store."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state_stores.stores.store_bench import TOPIC, StoreBench, spec_of
from tidewheel import Serdes
from tidewheel.state_stores.buffers import query_sources
from tidewheel.state_stores.buffers.commit_buffer import Drained, write_rows
from tidewheel.state_stores.buffers.in_flight_view import InFlightView
from tidewheel.state_stores.buffers.query_sources import (
    ReadCommitted,
    ReadUncommitted,
    UncommittedRows,
)
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.state_stores.stores.factory import make_query_store, make_store
from tidewheel.state_stores.stores.key_value_store import ValueAndTimestamp, ValueTimestampHeaders
from tidewheel.state_stores.stores.session_store import AggregationWithHeaders
from tidewheel.state_stores.stores.windowed import Windowed

KEYS = ("a", "aa", "b", "c", "d")
SPECS: dict[str, StoreSpec] = {
    "key_value": spec_of(StoreKind.KEY_VALUE),
    "objects": spec_of(StoreKind.KEY_VALUE, value_serde=Serdes.json()),
    "timestamped": spec_of(StoreKind.TIMESTAMPED_KEY_VALUE),
    "headers": spec_of(StoreKind.TIMESTAMPED_KEY_VALUE, keeps_headers=True),
    "lru": spec_of(StoreKind.KEY_VALUE, max_entries=3),
    "ttl": spec_of(StoreKind.TIMESTAMPED_KEY_VALUE, ttl_ms=50),
    "window": spec_of(StoreKind.WINDOW, retention_ms=120_000, window_size_ms=10),
    "timestamped_window": spec_of(
        StoreKind.TIMESTAMPED_WINDOW, retention_ms=120_000, window_size_ms=10
    ),
    "window_headers": spec_of(
        StoreKind.TIMESTAMPED_WINDOW, retention_ms=120_000, window_size_ms=10, keeps_headers=True
    ),
    "duplicates": spec_of(
        StoreKind.WINDOW, retention_ms=120_000, window_size_ms=10, retain_duplicates=True
    ),
    "session": spec_of(StoreKind.SESSION, retention_ms=120_000),
    "session_headers": spec_of(StoreKind.SESSION, retention_ms=120_000, keeps_headers=True),
    "versioned": spec_of(StoreKind.VERSIONED, history_retention_ms=100_000),
}
HEADERS = (("trace", b"1"),)


class QueryBench(StoreBench):
    """A store over a view, as in a task, with both kinds of queries."""

    def __init__(self, spec: StoreSpec, *, rocksdb: bool) -> None:
        self.in_flight: Drained | None = None
        super().__init__(spec, rocksdb=rocksdb)
        self.asked = 0
        headers = spec.keeps_headers

        def view(sources: Callable[[], list[Any]]) -> Any:
            return make_query_store(spec, TOPIC, sources, with_headers=headers)

        self.committed = view(lambda: [ReadCommitted(self.database, spec)])
        self.uncommitted: Any = view(lambda: [ReadUncommitted(self.database, "store", self._ask)])

    def _ask(self, function: Callable[[UncommittedRows], Any], /) -> Callable[[], list[Any]]:
        self.asked += 1
        return lambda: [function(UncommittedRows(self.store.buffer, self.view))]

    def _open(self, database: Database) -> None:
        self.database = database
        self.view = InFlightView(database)
        self.store = make_store(
            self.spec, self.view, topic=TOPIC, read_cache_bytes=1 << 20, now=lambda: self.now,
            is_cached=False,
        )  # fmt: skip

    def put(self, key: str, value: int | None, time: int) -> None:
        spec, shown = self.spec, value
        self.now = time
        match spec.kind:
            case StoreKind.TIMESTAMPED_KEY_VALUE | StoreKind.TIMESTAMPED_WINDOW if (
                value is not None
            ):
                shown = (
                    ValueTimestampHeaders(value, time, HEADERS)  # type: ignore[assignment]
                    if spec.keeps_headers
                    else ValueAndTimestamp(value, time)
                )
            case StoreKind.SESSION if value is not None and spec.keeps_headers:
                shown = AggregationWithHeaders(value, HEADERS)  # type: ignore[assignment]
        match spec.kind:
            case StoreKind.KEY_VALUE | StoreKind.TIMESTAMPED_KEY_VALUE:
                self.store.put(key, shown)
            case StoreKind.VERSIONED | StoreKind.WINDOW | StoreKind.TIMESTAMPED_WINDOW:
                self.store.put(key, shown, time)
            case _:
                self.store.put(Windowed(key, time - time % 7, time), shown)

    def begin_commit(self) -> None:
        """Do the first half of a commit: the changes are in flight."""
        self.end_commit()
        if self.store.buffer.has_changes():
            self.in_flight = self.store.buffer.drain()
            added = {"store": self.store.buffer.entries_added()}
            self.view.show({"store": self.in_flight}, added)
            self.store.buffer.applied()

    def end_commit(self) -> None:
        """Do the second half: the changes are on disk."""
        if self.in_flight is not None:
            write_rows(
                self.database, {"store": self.in_flight.stored}, {}, {"store": self.in_flight}
            )
            self.view.hide()
            self.in_flight = None

    def roll_back(self) -> None:
        self.in_flight = None
        self.view.hide()
        self.store.buffer.discard()


@contextmanager
def opened(name: str, *, rocksdb: bool) -> Iterator[QueryBench]:
    bench = QueryBench(SPECS[name], rocksdb=rocksdb)
    try:
        yield bench
    finally:
        bench.close()


def reads(store: Any, kind: StoreKind) -> list[Any]:
    spans = [(0, 1 << 40), (20, 70_000), (60_001, 60_040)]
    bounds: list[tuple[Any, Any]] = [(None, None), ("aa", "c"), ("b", None), (None, "a")]
    match kind:
        case StoreKind.KEY_VALUE | StoreKind.TIMESTAMPED_KEY_VALUE:
            found = [list(store.range(*bound)) for bound in bounds]
            found += [list(store.reverse_range(*bound)) for bound in bounds]
            found += [list(store.prefix_scan("a")), list(store.keys()), list(store.reverse_all())]
            # Last, because a read counts as use in an LRU store.
            return [*found, ["b" in store], [store.get(key) for key in KEYS]]
        case StoreKind.WINDOW | StoreKind.TIMESTAMPED_WINDOW:
            found = [list(store.fetch(key, *span)) for key in KEYS for span in spans]
            found += [list(store.backward_fetch(key, *span)) for key in KEYS for span in spans]
            found += [list(store.fetch_range(*bound, *span)) for bound in bounds for span in spans]
            found += [
                list(store.backward_fetch_range(*bound, *span))
                for bound in bounds
                for span in spans
            ]
            return [*found, [store.fetch("a", time) for time in (0, 20, 60_001)]]
        case StoreKind.SESSION:
            found = [list(store.fetch(key)) for key in KEYS]
            found += [list(store.backward_fetch(key)) for key in KEYS]
            found += [list(store.fetch_range(*bound)) for bound in bounds]
            return found + [list(store.find_sessions(key, *span)) for key in KEYS for span in spans]
        case _:
            found = [list(store.history(key)) for key in KEYS]
            found += [list(store.history(key, 20, 60_000)) for key in KEYS]
            return [*found, [store.get(key) for key in KEYS], [store.get("a", as_of=30)]]


times = st.sampled_from([0, 10, 20, 30, 35, 60_001, 60_040, 130_000, 250_000])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.one_of(st.none(), st.integers(0, 9)), times),
        st.tuples(st.sampled_from(["begin", "end", "roll back"])),
    ),
    max_size=25,
)  # fmt: skip


def play(bench: QueryBench, step: tuple[Any, ...]) -> None:
    match step:
        case ("put", key, value, time):
            bench.put(key, value, time)
        case ("begin",):
            bench.begin_commit()
        case ("end",):
            bench.end_commit()
        case _:
            bench.roll_back()


@pytest.mark.parametrize("name", SPECS)
@given(steps=steps, page=st.integers(1, 4))
def test_uncommitted_reads_equal_reads_of_the_task(
    name: str, steps: list[tuple[Any, ...]], page: int
) -> None:
    with opened(name, rocksdb=False) as bench, patch.object(query_sources, "PAGE_ROWS", page):
        for step in steps:
            play(bench, step)
        kind = bench.spec.kind
        asked = reads(bench.uncommitted, kind)
        assert asked == reads(bench.store, kind)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("rocksdb", [False, True], ids=["in_memory", "rocksdb"])
def test_a_row_is_visible_before_its_commit_at_one_level_only(name: str, *, rocksdb: bool) -> None:
    with opened(name, rocksdb=rocksdb) as bench:
        kind = bench.spec.kind
        nothing = reads(bench.committed, kind)
        bench.put("a", 1, 20)
        bench.put("b", 2, 60_001 if kind is not StoreKind.TIMESTAMPED_KEY_VALUE else 21)
        seen = reads(bench.uncommitted, kind)
        assert seen != nothing
        assert reads(bench.committed, kind) == nothing
        bench.begin_commit()
        assert reads(bench.uncommitted, kind) == seen
        assert reads(bench.committed, kind) == nothing
        bench.end_commit()
        assert reads(bench.uncommitted, kind) == reads(bench.committed, kind) == seen
        bench.put("c", 3, 20)
        assert reads(bench.uncommitted, kind) != seen
        bench.roll_back()
        assert reads(bench.uncommitted, kind) == seen


def test_a_query_does_not_count_as_a_use() -> None:
    with opened("lru", rocksdb=False) as bench:
        for key in ("a", "b", "c"):
            bench.put(key, 1, 0)
        assert bench.uncommitted.get("a") == 1
        bench.put("d", 1, 0)
        assert [bench.uncommitted.get(key) for key in ("a", "b")] == [None, 1]


def test_rows_committed_during_a_scan_are_not_missed() -> None:
    with opened("key_value", rocksdb=True) as bench, patch.object(query_sources, "PAGE_ROWS", 2):
        keys = [f"k{number}" for number in range(9)]
        for key in keys:
            bench.put(key, 1, 0)
        rows = bench.uncommitted.all()
        seen = [next(rows)]
        bench.begin_commit()
        seen.append(next(rows))
        bench.end_commit()
        assert [key for key, _ in [*seen, *rows]] == keys


def test_a_page_is_bounded() -> None:
    with opened("key_value", rocksdb=False) as bench, patch.object(query_sources, "PAGE_ROWS", 10):
        for number in range(100):
            bench.put(f"k{number:03}", 1, 0)
        assert bench.uncommitted.get("k050") == 1
        assert bench.asked == 1
        assert len(list(bench.uncommitted.all())) == 100
        assert bench.asked == 1 + 11  # the last page is empty
        assert bench.uncommitted.approximate_num_entries() == 100
    with (
        opened("objects", rocksdb=False) as bench,
        patch.object(query_sources, "PAGE_BYTES", 1_000),
    ):
        for number in range(10):
            bench.put(f"k{number}", 10**500, 0)
        assert len(list(bench.uncommitted.all())) == 10
        assert bench.asked == 6


def test_a_query_returns_a_copy_of_an_object() -> None:
    with opened("objects", rocksdb=False) as bench:
        bench.store.put("a", {"n": 1})
        bench.uncommitted.get("a")["n"] = 2
        assert bench.store.get("a") == {"n": 1}
