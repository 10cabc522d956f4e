"""Model test: a window store is a dictionary of unexpired rows by key and start."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.state_stores.stores.store_bench import TOPIC, StoreBench, begins, spec_of
from tidewheel import Serdes, ValueAndTimestamp
from tidewheel.state_stores.errors import InvalidStateStoreError
from tidewheel.state_stores.spec import StoreKind
from tidewheel.state_stores.stores.factory import make_committed_store
from tidewheel.state_stores.stores.segmented_store import SegmentedStore
from tidewheel.state_stores.stores.window_store import ReadOnlyWindowStore
from tidewheel.state_stores.stores.windowed import Windowed

MINUTE = 60_000
RETENTION = 150_000  # segments are 75 s

#: Keys with common prefixes, so that rows of different keys are mixed.
KEYS = ["", "a", "a\x00", "a\x00\x00\x00\x00\x00\x00\x00", "ab", "b"]
keys = st.sampled_from(KEYS)
#: Times near borders of segments and of the retention.
times = st.builds(
    lambda segment, offset: max(segment * 75_000 + offset, 0),
    st.integers(0, 8),
    st.sampled_from([-1, 0, 1, 30_000]),
)
bounds = st.tuples(times, times | st.just((1 << 63) - 1))
numbers = st.none() | st.integers(-5, 5)


class WindowMachine(RuleBasedStateMachine):
    rocksdb = False

    @initialize(
        kind=st.sampled_from([StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW]),
        duplicates=st.booleans(),
        read_cache_bytes=st.sampled_from([0, 1 << 20]),
    )
    def open(self, kind: StoreKind, duplicates: bool, read_cache_bytes: int) -> None:
        self.timestamped = kind is StoreKind.TIMESTAMPED_WINDOW
        self.duplicates = duplicates and not self.timestamped
        spec = spec_of(
            kind,
            retention_ms=RETENTION,
            window_size_ms=MINUTE,
            retain_duplicates=self.duplicates,
        )
        self.bench = StoreBench(spec, rocksdb=self.rocksdb, read_cache_bytes=read_cache_bytes)
        #: (key, start) -> values in the order of their puts.
        self.rows: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.observed = -1
        self.dropped = 0
        #: Rows and time of the last commit.
        self.kept = ({**self.rows}, -1)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()

    def shown(self, value: int, timestamp: int) -> Any:
        return ValueAndTimestamp(value, timestamp) if self.timestamped else value

    def expect(
        self, low: int, high: int, lo: str | None = None, hi: str | None = None
    ) -> list[tuple[Windowed[str], Any]]:
        rows = self.rows
        low = max(low, self.observed - RETENTION + 1)
        return [
            (Windowed(key, start, start + MINUTE), self.shown(*value))
            for (key, start), values in sorted(rows.items())
            if low <= start <= high and (lo is None or lo <= key) and (hi is None or key <= hi)
            for value in values
        ]

    @rule(key=keys, value=numbers, start=times, now=st.integers(0, 1_000))
    def put(self, key: str, value: int | None, start: int, now: int) -> None:
        self.bench.now = now
        if self.timestamped and value is not None:
            self.bench.store.put(key, ValueAndTimestamp(value, now), start)
        else:
            self.bench.store.put(key, value, start)
        if value is None and self.duplicates:
            return
        self.observed = max(self.observed, start)
        if start <= self.observed - RETENTION:
            self.dropped += 1
        elif value is None:
            self.rows.pop((key, start), None)
        elif self.duplicates:
            self.rows[key, start] = [*self.rows.get((key, start), []), (value, now)]
        else:
            self.rows[key, start] = [(value, now)]

    @rule(rows=st.lists(st.tuples(keys, numbers, times), min_size=1, max_size=12))
    def add_all(self, rows: list[tuple[str, int | None, int]]) -> None:
        """A batch put to a store with duplicates is all or nothing."""
        if not self.duplicates:
            return
        buffer = self.bench.store.buffer
        data = [key.encode() for key, _, _ in rows]
        values, starts = [value for _, value, _ in rows], [start for _, _, start in rows]
        before = (buffer.seq, len(buffer.dirty), buffer.observed_stream_time_ms)
        disk_keys = self.bench.store.add_all(data, values, starts)
        if disk_keys is None:
            assert (buffer.seq, len(buffer.dirty), buffer.observed_stream_time_ms) == before
            latest = max(self.observed, *starts)
            assert None in values or min(starts) <= latest - RETENTION
            return
        assert [buffer.layout.time_of(disk_key) for disk_key in disk_keys] == starts
        for key, value, start in rows:
            assert value is not None, "that is refused"
            self.rows[key, start] = [*self.rows.get((key, start), []), (value, start)]
            self.observed = max(self.observed, start)

    @rule(key=keys, lows=st.lists(times, min_size=1), length=times)
    def rows_of_each(self, key: str, lows: list[int], length: int) -> None:
        buffer, data = self.bench.store.buffer, key.encode()
        highs = [low + length for low in lows]
        found = buffer.rows_of_each([data] * len(lows), lows, highs)
        assert found == [
            buffer.rows_of(data, low, high) for low, high in zip(lows, highs, strict=True)
        ]

    @rule(key=keys, span=bounds)
    def fetch(self, key: str, span: tuple[int, int]) -> None:
        expected = [(windowed.start, value) for windowed, value in self.expect(*span, key, key)]
        store = self.bench.store
        assert list(store.fetch(key, *span)) == expected
        assert list(store.backward_fetch(key, *span)) == expected[::-1]
        at_start = self.expect(span[0], span[0], key, key)
        assert store.fetch(key, span[0]) == (at_start[0][1] if at_start else None)
        data = key.encode()
        rows = [(start, value) for start, value, _ in store.fetch_bytes(data, *span)]
        assert rows == [(start, getattr(value, "value", value)) for start, value in expected]

    @rule(span=bounds, lo=st.none() | keys, hi=st.none() | keys)
    def fetch_range(self, span: tuple[int, int], lo: str | None, hi: str | None) -> None:
        expected = self.expect(*span, lo, hi)
        forward = list(self.bench.store.fetch_range(lo, hi, *span))
        assert sorted(forward, key=repr) == sorted(expected, key=repr)
        assert list(self.bench.store.backward_fetch_range(lo, hi, *span)) == forward[::-1]

    @rule(stream_time=times)
    def observe(self, stream_time: int) -> None:
        self.bench.store.observe(stream_time)
        self.observed = max(self.observed, stream_time)

    @rule()
    def commit(self) -> None:
        changed = bool(self.bench.store.buffer.dirty)
        self.bench.commit()
        self.kept = ({**self.rows}, self.observed)
        if changed:
            # Queries see the rows and the time of the commit.
            assert list(self.bench.committed.all()) == list(self.bench.store.all())

    @rule(how=begins)
    def reopen_or_restore(self, how: tuple[str, list[int]]) -> None:
        self.bench.reopen_or_restore(how)
        self.rows, self.observed = {**self.kept[0]}, self.kept[1]
        self.bench.store.restore_times((self.observed,))
        self.dropped = 0

    @invariant()
    def equal(self) -> None:
        store = self.bench.store
        everything = self.expect(0, 1 << 62)
        assert sorted(store.all(), key=repr) == sorted(everything, key=repr)
        assert store.observed_stream_time_ms == self.observed
        assert store.expired_puts == self.dropped
        assert store.is_expired(self.observed - RETENTION)
        assert not store.is_expired(max(self.observed - RETENTION + 1, 0))


TestInMemory = pytest.mark.slow(WindowMachine.TestCase)
TestInMemory.settings = settings(max_examples=40, stateful_step_count=30)


class RocksDBWindowMachine(WindowMachine):
    rocksdb = True


TestRocksDB = pytest.mark.slow(RocksDBWindowMachine.TestCase)
TestRocksDB.settings = settings(max_examples=8, stateful_step_count=30)


@pytest.fixture(params=["in_memory", pytest.param("rocksdb", marks=pytest.mark.slow)])
def bench(request: pytest.FixtureRequest) -> Iterator[StoreBench]:
    spec = spec_of(StoreKind.WINDOW, retention_ms=RETENTION, window_size_ms=MINUTE)
    opened = StoreBench(spec, rocksdb=request.param == "rocksdb")
    yield opened
    opened.close()


def test_expired_rows_leave_the_disk_by_segments(bench: StoreBench) -> None:
    for start in (0, 74_999, 75_000, 150_000):
        bench.store.put("a", 1, start)
    bench.commit()
    assert len(bench.disk_rows()) == 4
    bench.store.put("b", 1, 224_998)  # retention and segment border: live from 74,999 on
    bench.commit()
    assert len(bench.disk_rows()) == 5
    assert [start for start, _ in bench.store.fetch("a", 0, 1 << 62)] == [74_999, 75_000, 150_000]
    bench.store.put("b", 1, 225_000)
    bench.commit()
    assert len(bench.disk_rows()) == 4  # the segment of 0 to 75 s is deleted
    bench.restart()
    assert [start for start, _ in bench.store.fetch("a", 0, 1 << 62)] == [150_000]


def test_rows_of_keys_with_common_prefixes_are_separate(bench: StoreBench) -> None:
    short, long = "a", "a" + "\x00" * 7
    for start in (0, 70_000, 100_000):
        for key in (short, long):
            bench.store.put(key, len(key), start)
    bench.commit()
    for key in (short, long):
        expected = [(start, len(key)) for start in (0, 70_000, 100_000)]
        assert list(bench.store.fetch(key, 0, 100_000)) == expected
        assert list(bench.committed.fetch(key, 0, 100_000)) == expected
        assert bench.committed.fetch(key, 70_000) == len(key)
        assert bench.committed.fetch(key, 70_001) is None
        up_to = {windowed.key for windowed, _ in bench.store.fetch_range(None, key, 0, 1 << 62)}
        assert up_to == {each for each in (short, long) if each <= key}
        found = list(bench.store.fetch_range(None, key, 0, 1 << 62))
        assert len(found) == 3 * len(up_to)


def test_rows_deleted_from_disk_are_not_in_memory(bench: StoreBench) -> None:
    buffer, disk_key = bench.store.buffer, bench.store.disk_key(b"a", 0)
    bench.store.put("a", 1, 0)
    bench.store.put("a", 2, 75_000)
    bench.commit()
    assert buffer.get(disk_key) == 1
    bench.store.put("a", 1, 225_000)
    bench.commit()
    assert buffer.get(disk_key) is None
    assert buffer.get(bench.store.disk_key(b"a", 75_000)) == 2


def test_a_row_that_expires_before_its_commit_is_logged_but_not_stored(bench: StoreBench) -> None:
    """The changelog gets it, as in Kafka Streams; the database would delete it immediately."""
    bench.store.put("a", 1, 0)
    bench.store.put("a", 2, 1_000_000)
    bench.commit()
    assert len(bench.changelog) == 2
    assert len(bench.disk_rows()) == 1


def test_changelog_keys_equal_kafka_streams(bench: StoreBench) -> None:
    bench.now = 7
    bench.store.put("key", 5, 300_000)
    bench.commit()
    ((key, value, timestamp),) = bench.changelog
    assert key == b"key" + (300_000).to_bytes(8) + bytes(4)
    assert (value, timestamp) == ((5).to_bytes(8), 7)
    ((disk_key, _),) = bench.disk_rows()
    assert disk_key == (4).to_bytes(8) + key


def test_an_iterator_shows_the_rows_at_its_creation(bench: StoreBench) -> None:
    bench.store.put("a", 1, 0)
    bench.commit()
    bench.store.put("a", 2, 10)
    rows = bench.store.fetch("a", 0, 100)
    bench.store.put("a", None, 0)
    bench.store.put("a", 3, 20)
    assert list(rows) == [(0, 1), (10, 2)]
    assert list(bench.store.fetch("a", 0, 100)) == [(10, 2), (20, 3)]


def test_duplicates_stay_separate_after_a_restart() -> None:
    spec = spec_of(StoreKind.WINDOW, retention_ms=RETENTION, retain_duplicates=True)
    bench = StoreBench(spec, rocksdb=False)
    for value in range(3):
        bench.store.put("a", value, 0)
        bench.commit()
        bench.restart()
    # A restore in small batches ends with a batch of smaller sequence numbers.
    bench.store.put("a", 3, 0)
    bench.store.put("b", 4, 0)
    bench.store.put("a", 5, 0)
    bench.commit()
    bench.changelog.sort(key=lambda record: record[0][-4:], reverse=True)
    bench.restore([1, 2, 3, 4, 5])
    bench.store.put("a", 6, 0)
    assert list(bench.store.fetch("a", 0, 0)) == [(0, value) for value in (0, 1, 2, 3, 5, 6)]


def test_a_full_scan_of_one_key_does_not_read_the_others() -> None:
    spec = spec_of(StoreKind.WINDOW, retention_ms=RETENTION, key_serde=Serdes.bytes())
    bench = StoreBench(spec, rocksdb=False)
    seen: list[bytes] = []
    peek = bench.store.buffer.peek

    def recorded(key: bytes) -> Any:
        seen.append(key)
        return peek(key)

    bench.store.buffer.peek = recorded
    for number in range(500):
        bench.store.put(b"%d" % number, 1, number)
    assert list(bench.store.fetch(b"7", 0, 1_000)) == [(7, 1)]
    assert len(seen) == 1


@pytest.mark.parametrize("start", [-1, 1.5, None, True, 1 << 63])
def test_an_invalid_start_is_rejected(bench: StoreBench, start: Any) -> None:
    with pytest.raises(ValueError, match=r"store store: window start .* is no timestamp"):
        bench.store.put("a", 1, start)


def test_a_key_must_not_be_none(bench: StoreBench) -> None:
    with pytest.raises(ValueError, match="store store: a key must not be None"):
        bench.store.put(None, 1, 0)
    with pytest.raises(ValueError, match="store store: a key must not be None"):
        bench.store.fetch(None, 0, 1)
    with pytest.raises(ValueError, match="store store: a key must not be None"):
        bench.store.fetch(None, 0)


def test_a_timestamped_store_accepts_only_value_and_timestamp() -> None:
    bench = StoreBench(spec_of(StoreKind.TIMESTAMPED_WINDOW, retention_ms=10), rocksdb=False)
    with pytest.raises(TypeError, match="holds ValueAndTimestamp"):
        bench.store.put("a", 1, 0)


def test_a_query_without_a_task_raises() -> None:
    spec = spec_of(StoreKind.WINDOW, retention_ms=10)
    store = make_committed_store(spec, TOPIC, list)
    assert isinstance(store, ReadOnlyWindowStore)
    with pytest.raises(InvalidStateStoreError, match="no running task"):
        store.fetch("a", 0, 1)
    with pytest.raises(InvalidStateStoreError, match="no running task"):
        store.fetch("a", 0)


def test_a_windows_end_may_be_a_function_of_its_start() -> None:
    spec = spec_of(StoreKind.WINDOW, retention_ms=10, window_end=lambda start: start * 2)
    bench = StoreBench(spec, rocksdb=False)
    bench.store.put("a", 1, 5)
    assert list(bench.store.all()) == [(Windowed("a", 5, 10), 1)]


def test_cached_changes_have_windowed_keys() -> None:
    spec = spec_of(StoreKind.WINDOW, retention_ms=10, window_size_ms=5, caching=True)
    bench = StoreBench(spec, rocksdb=False)
    held = bench.store.open_cache()
    bench.store.put("a", 1, 5)
    bench.store.put_bytes(b"b", 1, 6, 0)
    disk_keys, windowed, new = held.pop()
    assert disk_keys == [bench.store.disk_key(b"a", 5), bench.store.disk_key(b"b", 6)]
    assert windowed == [Windowed("a", 5, 10), Windowed("b", 6, 11)]
    assert new == set(disk_keys)
    assert isinstance(bench.store, SegmentedStore)
