"""Expiry in a window store shared by key ranges: by the slowest range."""

from dataclasses import replace

import pytest

from tests.state_stores.stores.store_bench import TOPIC, spec_of
from tidewheel.state_stores.buffers.commit_buffer import Drained, write_rows
from tidewheel.state_stores.buffers.expiry import StoreExpiry, slowest_time
from tidewheel.state_stores.buffers.timed_buffer import read_store_time
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.state_stores.layout.restore import fold
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.spec import StoreKind
from tidewheel.state_stores.stores.factory import make_store
from tidewheel.state_stores.stores.window_store import TimestampedWindowStore

MINUTE = 60_000
#: Segments of a minute; rows live one minute.
SPEC = spec_of(StoreKind.TIMESTAMPED_WINDOW, retention_ms=MINUTE, window_size_ms=MINUTE)
LAYOUT = SegmentLayout.of(SPEC)


def range_of(
    database: InMemoryDatabase, *, in_range: bool = True
) -> TimestampedWindowStore[str, int]:
    store: TimestampedWindowStore[str, int] = make_store(  # type: ignore[assignment] # the type of its kind
        SPEC,
        database,
        topic=TOPIC,
        read_cache_bytes=1 << 20,
        now=lambda: 0,
        is_cached=False,
        in_range=in_range,
    )
    return store


def put(store: TimestampedWindowStore[str, int], key: bytes, minute: int) -> Drained:
    store.put_bytes(key, 1, minute * MINUTE, minute * MINUTE)
    drained = store.buffer.drain()
    store.buffer.applied()
    return drained


def write(
    database: InMemoryDatabase, drained: Drained, expiry: StoreExpiry, position_ms: int
) -> bool:
    extras = expiry.extras([drained], position_ms)
    write_rows(database, {"store": drained.stored}, {}, {"store": extras})
    return extras.delete_range is not None


def minutes(database: InMemoryDatabase) -> list[int]:
    return [LAYOUT.time_of(key) // MINUTE for key, _ in database.iterate("store", None, None)]


def test_K3_rows_are_deleted_when_the_slowest_range_has_passed_them() -> None:
    database = InMemoryDatabase(["store"])
    expiry = StoreExpiry(SPEC, database)
    slow, fast = range_of(database), range_of(database)
    assert not write(database, put(slow, b"a", 0), expiry, 0)
    assert not write(database, put(fast, b"b", 50), expiry, 0)
    assert not write(database, put(fast, b"b", 60), expiry, 2 * MINUTE), (
        "a minute of window and a minute of life"
    )
    assert minutes(database) == [0, 50, 60]
    assert write(database, put(slow, b"a", 50), expiry, 52 * MINUTE)
    assert minutes(database) == [50, 50, 60]
    assert not write(database, put(slow, b"a", 51), expiry, 52 * MINUTE), "once is enough"
    assert write(database, put(slow, b"a", 60), expiry, 60 * MINUTE)
    assert minutes(database) == [60, 60]


def test_K3_the_stored_time_is_that_of_the_fastest_range() -> None:
    database = InMemoryDatabase(["store"])
    expiry = StoreExpiry(SPEC, database)
    write(database, put(range_of(database), b"b", 50), expiry, 0)
    write(database, put(range_of(database), b"a", 1), expiry, 0)
    assert read_store_time(database, "store")[0] == 50 * MINUTE
    later = StoreExpiry(SPEC, database)
    write(database, put(range_of(database), b"a", 2), later, 0)
    assert read_store_time(database, "store")[0] == 50 * MINUTE


def test_K3_a_range_hides_no_rows_because_of_other_ranges() -> None:
    database = InMemoryDatabase(["store"])
    expiry = StoreExpiry(SPEC, database)
    write(database, put(range_of(database), b"a", 1), expiry, 0)
    write(database, put(range_of(database), b"b", 50), expiry, 0)
    slow = range_of(database)
    assert [start for start, _, _ in slow.fetch_bytes(b"a", 0, 100 * MINUTE)] == [MINUTE]
    assert list(range_of(database, in_range=False).fetch_bytes(b"a", 0, 100 * MINUTE)) == []


def test_K6_one_range_after_many_expires_like_the_slowest_until_level() -> None:
    database = InMemoryDatabase(["store"])
    write(database, put(range_of(database), b"a", 1), StoreExpiry(SPEC, database), 0)
    write(database, put(range_of(database), b"b", 50), StoreExpiry(SPEC, database), 0)
    whole = range_of(database, in_range=False)
    whole.divide()
    drained = put(whole, b"c", 1)
    assert drained.delete_range is None
    write_rows(database, {"store": drained.stored}, {}, {"store": drained})
    assert read_store_time(database, "store")[0] == 50 * MINUTE, "told by the rows of the fast ones"
    assert [start for start, _, _ in whole.fetch_bytes(b"a", 0, 100 * MINUTE)] == [MINUTE]
    whole.unite()
    assert whole.observed_stream_time_ms == 50 * MINUTE
    drained = put(whole, b"a", 51)
    write_rows(database, {"store": drained.stored}, {}, {"store": drained})
    assert minutes(database) == [50, 51]


def test_K6_a_copy_keeps_the_changelogs_rows_for_slow_ranges() -> None:
    kept = replace(SPEC, kept_longer_ms=10 * MINUTE)
    rows = {minute: (LAYOUT.window_key(b"a", minute * MINUTE), b"1") for minute in (0, 41, 50)}
    keys = [key[8:] for key, _ in rows.values()]
    for spec, left in ((SPEC, [50]), (kept, [41, 50])):
        folded = fold(spec, keys, [b"1"] * 3, [0] * 3)
        assert [LAYOUT.time_of(key) // MINUTE for key, _ in folded] == left
        database = InMemoryDatabase(["store"])
        store = make_store(
            spec, database, topic=TOPIC, read_cache_bytes=1 << 20, now=lambda: 0, is_cached=False
        )
        for row in rows.values():
            write_rows(database, {"store": [row]}, {}, {"store": store.buffer.restored([row])})
        assert minutes(database) == left


@pytest.mark.parametrize(
    ("position", "left"), [(None, [50]), (-1, [0, 41, 50]), (2, [0, 41, 50]), (42, [41, 50]), (60, [50])]
)  # fmt: skip
def test_K3_restored_rows_expire_for_the_slowest_range(
    position: int | None, left: list[int]
) -> None:
    position_ms = position if position is None or position < 0 else position * MINUTE
    slowest_ms = slowest_time(SPEC, position_ms)
    rows = [(LAYOUT.window_key(b"a", minute * MINUTE), b"1") for minute in (0, 41, 50)]
    folded = fold(SPEC, [key[8:] for key, _ in rows], [b"1"] * 3, [0] * 3, slowest_ms=slowest_ms)
    assert [LAYOUT.time_of(key) // MINUTE for key, _ in folded] == left
    database = InMemoryDatabase(["store"])
    for row in rows:
        buffer = range_of(database, in_range=False).buffer
        restored = buffer.restored([row], slowest_ms=slowest_ms)
        write_rows(database, {"store": [row]}, {}, {"store": restored})
    assert minutes(database) == left
    assert read_store_time(database, "store")[0] == 50 * MINUTE, "queries go by the fastest"


def test_K3_a_store_without_expiry_has_no_slowest_time() -> None:
    assert slowest_time(spec_of(StoreKind.KEY_VALUE), 5 * MINUTE) is None
