"""Model test: a session store is a dictionary of unexpired rows by key, start and end."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.state_stores.stores.store_bench import StoreBench, begins, spec_of
from tidewheel.state_stores.spec import StoreKind
from tidewheel.state_stores.stores.session_batch import SessionBatch
from tidewheel.state_stores.stores.windowed import Windowed

RETENTION = 150_000  # segments are 75 s
FOREVER = 1 << 62

keys = st.sampled_from(["", "a", "a\x00\x00\x00\x00\x00\x00\x00\x00", "ab", "b"])
times = st.builds(
    lambda segment, offset: max(segment * 75_000 + offset, 0),
    st.integers(0, 6),
    st.sampled_from([-1, 0, 1, 30_000]),
)
lengths = st.sampled_from([0, 1, 1_000, 80_000])


class Changeable(int):
    """A number of an unknown type, so a store keeps it serialised."""


class SessionMachine(RuleBasedStateMachine):
    rocksdb = False

    @initialize(read_cache_bytes=st.sampled_from([0, 1 << 20]))
    def open(self, read_cache_bytes: int) -> None:
        spec = spec_of(StoreKind.SESSION, retention_ms=RETENTION)
        self.bench = StoreBench(spec, rocksdb=self.rocksdb, read_cache_bytes=read_cache_bytes)
        self.rows: dict[Windowed[str], int] = {}
        self.observed = -1
        self.kept = ({**self.rows}, -1)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()

    def expect(self, key: str | None = None, earliest_end: int = 0) -> list[Any]:
        rows = [
            (session, value)
            for session, value in self.rows.items()
            if session.end > self.observed - RETENTION
            and session.end >= earliest_end
            and (key is None or session.key == key)
        ]
        return sorted(rows, key=lambda row: (row[0].key, row[0].end, row[0].start))

    @rule(key=keys, value=st.none() | st.integers(0, 9), start=times, length=lengths)
    def put(self, key: str, value: int | None, start: int, length: int) -> None:
        session = Windowed(key, start, start + length)
        self.bench.store.put(session, value)
        self.observed = max(self.observed, session.end)
        if session.end > self.observed - RETENTION:
            if value is None:
                self.rows.pop(session, None)
            else:
                self.rows[session] = value

    @rule(data=st.data(), end=times)
    def extend(self, data: st.DataObject, end: int) -> None:
        live = self.expect()
        if live:
            session, value = data.draw(st.sampled_from(live))
            self.bench.store.remove(session)
            del self.rows[session]
            self.put(session.key, value, min(session.start, end), abs(end - session.start))

    @rule(
        records=st.lists(
            st.tuples(keys, times, st.sampled_from([0, 1, 30_000, 80_000])), min_size=1, max_size=12
        ),
        changeable=st.booleans(),
    )
    def merge(self, records: list[tuple[str, int, int]], changeable: bool) -> None:
        """Merge a batch of records into sessions within the gap, one after the other."""
        store = self.bench.store
        batch = SessionBatch(
            store.buffer,
            [key.encode() for key, _, _ in records],
            [timestamp - gap for _, timestamp, gap in records],
        )
        for index, (key, timestamp, gap) in enumerate(records):
            expected = [
                (session, value)
                for session, value in sorted(
                    self.rows.items(), key=lambda row: (row[0].key, row[0].end, row[0].start)
                )
                if session.key == key
                and session.end >= max(0, timestamp - gap)
                and session.start <= timestamp + gap
            ]
            found = batch.find(index, timestamp + gap)
            # Expired sessions may be deleted or not.
            live = self.observed - RETENTION
            assert [(row[1], row[2], row[3]) for row in found if row[2] > live] == [
                (s.start, s.end, value) for s, value in expected if s.end > live
            ]
            start = min([timestamp, *(row[1] for row in found)])
            end = max([timestamp, *(row[2] for row in found)])
            value = sum(row[3] for row in found) + 1
            batch.replace(index, found, start, end, Changeable(value) if changeable else value)
            for row in found:
                self.rows.pop(Windowed(key, row[1], row[2]), None)
            self.rows[Windowed(key, start, end)] = value
        batch.store()
        for end in batch.ends:
            self.observed = max(self.observed, end)
        store.observe(self.observed)

    @rule(key=keys, earliest_end=times, latest_start=times)
    def find(self, key: str, earliest_end: int, latest_start: int) -> None:
        store = self.bench.store
        expected = [row for row in self.expect(key, earliest_end) if row[0].start <= latest_start]
        assert list(store.find_sessions(key, earliest_end, latest_start)) == expected
        backwards = list(store.backward_find_sessions(key, earliest_end, latest_start))
        assert backwards == expected[::-1]
        found = store.find_sessions_bytes(key.encode(), earliest_end, latest_start)
        assert [row[:3] for row in found] == [(s.start, s.end, value) for s, value in expected]
        found = store.find_sessions_bytes(key.encode(), earliest_end, latest_start, expired=True)
        batch = SessionBatch(store.buffer, [key.encode()], [earliest_end])
        joined = batch.find(0, latest_start)
        assert [row[1:] for row in joined] == [row[:3] for row in found]
        assert [row[0] for row in joined] == [
            store.disk_key(key.encode(), *row[:2]) for row in found
        ]

    @rule(key=keys, hi=keys)
    def fetch(self, key: str, hi: str) -> None:
        store = self.bench.store
        assert list(store.fetch(key)) == self.expect(key)
        assert list(store.backward_fetch(key)) == self.expect(key)[::-1]
        for session, value in self.expect(key):
            assert store.fetch_session(key, session.start, session.end) == value
        expected = [row for row in self.expect() if key <= row[0].key <= hi]
        assert sorted(store.fetch_range(key, hi)) == sorted(expected)

    @rule()
    def commit(self) -> None:
        changed = bool(self.bench.store.buffer.dirty)
        self.bench.commit()
        self.kept = ({**self.rows}, self.observed)
        if changed:
            everything = self.bench.store.fetch_range(None, None)
            assert list(self.bench.committed.fetch_range(None, None)) == list(everything)

    @rule(how=begins)
    def reopen_or_restore(self, how: tuple[str, list[int]]) -> None:
        self.bench.reopen_or_restore(how)
        self.rows, self.observed = {**self.kept[0]}, self.kept[1]
        self.bench.store.restore_times((self.observed,))

    @invariant()
    def equal(self) -> None:
        assert sorted(self.bench.store.fetch_range(None, None)) == sorted(self.expect())
        assert self.bench.store.observed_stream_time_ms == self.observed


TestInMemory = pytest.mark.slow(SessionMachine.TestCase)
TestInMemory.settings = settings(max_examples=40, stateful_step_count=30)


class RocksDBSessionMachine(SessionMachine):
    rocksdb = True


TestRocksDB = pytest.mark.slow(RocksDBSessionMachine.TestCase)
TestRocksDB.settings = settings(max_examples=8, stateful_step_count=30)


def bench_of(**changes: Any) -> StoreBench:
    return StoreBench(spec_of(StoreKind.SESSION, retention_ms=RETENTION, **changes), rocksdb=False)


def test_a_session_put_again_is_found_after_every_kind_of_write() -> None:
    bench = bench_of()
    buffer = bench.store.buffer
    row = bench.store.disk_key(b"a", 10, 20)

    def found() -> list[Any]:
        return [each[1:] for each in SessionBatch(buffer, [b"a"], [0]).find(0, FOREVER)]

    assert found() == []
    buffer.put(row, 1, 20)
    assert found() == [(10, 20, 1)]
    buffer.put(row, None, 20)
    assert buffer.indexed_rows(b"a", 0, FOREVER) == found() == []
    buffer.put(row, 2, 20)
    assert found() == [(10, 20, 2)]
    buffer.put(row, None, 20)
    buffer.values[row] = 3
    buffer.mark_changed([row], 20)
    assert found() == [(10, 20, 3)]
    bench.commit()
    assert found() == [(10, 20, 3)]
    bench.close()


def test_a_merge_leaves_a_tombstone_and_the_new_session() -> None:
    bench = bench_of()
    bench.store.put(Windowed("k", 0, 10), 1)
    bench.commit()
    bench.store.remove(Windowed("k", 0, 10))
    bench.store.put(Windowed("k", 0, 20), 2)
    bench.commit()
    bench.restore([1])
    assert list(bench.store.fetch("k")) == [(Windowed("k", 0, 20), 2)]


def test_changelog_keys_equal_kafka_streams() -> None:
    bench = bench_of()
    bench.store.put(Windowed("key", 300_000, 300_010), 5)
    bench.commit()
    ((key, value, _),) = bench.changelog
    assert key == b"key" + (300_010).to_bytes(8) + (300_000).to_bytes(8)
    assert value == (5).to_bytes(8)


def test_an_expired_put_is_counted_and_an_expired_removal_is_not() -> None:
    bench = bench_of()
    bench.store.put(Windowed("k", RETENTION, RETENTION), 1)
    bench.store.put(Windowed("k", 0, 0), 1)
    bench.store.remove(Windowed("k", 0, 0))
    assert bench.store.expired_puts == 1
    assert list(bench.store.fetch("k")) == [(Windowed("k", RETENTION, RETENTION), 1)]


@pytest.mark.parametrize(
    ("session", "message"),
    [
        (Windowed("k", -1, 0), "session start -1"),
        (Windowed("k", 0, 1 << 63), "session end"),
        (Windowed("k", 5, 4), "can't end at 4, before its start 5"),
        (Windowed(None, 0, 1), "a key must not be None"),
    ],
)
def test_an_invalid_session_is_rejected(session: Windowed[Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"store store: .*{message}"):
        bench_of().store.put(session, 1)


def test_cached_changes_have_windowed_keys() -> None:
    bench = bench_of(caching=True)
    held = bench.store.open_cache()
    bench.store.put_bytes(b"b", 1, 6, 7, 0)
    assert held.pop()[:2] == ([bench.store.disk_key(b"b", 1, 6)], [Windowed("b", 1, 6)])


def test_a_plain_key_is_no_session() -> None:
    plain: Any = "a"
    changes: list[Callable[[], object]] = [
        lambda: bench_of().store.put(plain, 1),
        lambda: bench_of().store.remove(plain),
    ]
    for change in changes:
        with pytest.raises(
            TypeError, match=r"store store: .*a Windowed\(key, start, end\), not a str"
        ):
            change()
