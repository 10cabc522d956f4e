"""Contract of `tidewheel.state_stores.ports.Database`, for RocksDB and in memory."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidewheel.state_stores.errors import InvalidStateStoreError, StateStoreError
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase

STORES = ["counts", "default"]
KEYS = [b"", b"\x00", b"a", b"a\x00", b"ab", b"b", b"\xff", b"\xff\xff"]


@pytest.fixture(params=["rocksdb", "in_memory"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    opened: Database
    if request.param == "in_memory":
        opened = InMemoryDatabase(STORES)
    else:
        options = RocksDBOptions()
        opened = TaskDatabase.open(
            tmp_path / "0_0", STORES, options, SharedResources.create(options)
        )
    yield opened
    opened.close()


def fill(database: Database, store: str = "counts") -> None:
    database.write({store: [(key, b"v" + key) for key in KEYS]}, {})


def test_values_have_the_order_of_the_requested_keys(database: Database) -> None:
    fill(database)
    asked = [b"b", b"none", b"a", b"b", b""]
    assert database.get_many("counts", asked) == [b"vb", None, b"va", b"vb", b"v"]
    assert database.get_many("counts", tuple(asked)) == [b"vb", None, b"va", b"vb", b"v"]
    assert database.get_many("counts", []) == []


def test_families_are_separate(database: Database) -> None:
    database.write({"counts": [(b"k", b"1")], "default": [(b"k", b"2")]}, {})
    assert database.get_many("counts", [b"k"]) == [b"1"]
    assert database.get_many("default", [b"k"]) == [b"2"]


def test_a_range_is_deleted_before_rows_are_written(database: Database) -> None:
    fill(database)
    fill(database, "default")
    database.write(
        {"counts": [(b"ab", b"new")]},
        {"position": b"1"},
        delete_ranges={"counts": (b"a", b"b"), "default": (b"x", b"x")},
    )
    left = [b"", b"\x00", b"ab", b"b", b"\xff", b"\xff\xff"]
    assert [key for key, _ in database.iterate("counts", None, None)] == left
    assert database.get_many("counts", [b"a", b"ab"]) == [None, b"new"]
    assert [key for key, _ in database.iterate("default", None, None)] == KEYS
    assert database.position("position") == b"1"
    database.write({}, {}, delete_ranges={"counts": (b"", b"\xff\xff")})
    assert [key for key, _ in database.iterate("counts", None, None)] == [b"\xff\xff"]
    with pytest.raises(StateStoreError, match="nowhere"):
        database.write({}, {}, delete_ranges={"nowhere": (b"", b"a")})


def test_puts_and_deletes_of_one_write_apply_in_order(database: Database) -> None:
    database.write({"counts": [(b"a", b"1"), (b"b", b"1"), (b"c", None)]}, {})
    database.write(
        {"counts": [(b"a", None), (b"a", b"2"), (b"b", b"2"), (b"b", None), (b"d", b"")]}, {}
    )
    assert database.get_many("counts", [b"a", b"b", b"c", b"d"]) == [b"2", None, None, b""]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        (None, None),
        (b"a", b"b"),
        (b"a", None),
        (None, b"a\x00"),
        (b"\xff", None),
        (b"b", b"a"),
        (b"a", b"a"),
        (None, b""),
        (b"", b"\x00"),
        (b"c", b"d"),
        (b"\xff\xff\xff", None),
    ],
)
def test_ranges_include_the_lower_end_only(
    database: Database, lower: bytes | None, upper: bytes | None, *, reverse: bool
) -> None:
    fill(database)
    inside = [
        (key, b"v" + key)
        for key in sorted(KEYS, reverse=reverse)
        if (lower is None or key >= lower) and (upper is None or key < upper)
    ]
    assert list(database.iterate("counts", lower, upper, reverse=reverse)) == inside


def test_long_scans_are_whole(database: Database) -> None:
    rows = [(b"%06d" % number, b"%d" % number) for number in range(3000)]
    database.write({"counts": list(reversed(rows))}, {})
    assert list(database.iterate("counts", None, None)) == rows
    assert list(database.iterate("counts", None, None, reverse=True)) == rows[::-1]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_returns_the_rows_at_its_start(database: Database, *, reverse: bool) -> None:
    rows = [(b"%04d" % number, b"old") for number in range(100)]
    database.write({"counts": rows}, {})
    scan = database.iterate("counts", None, None, reverse=reverse)
    database.write({"counts": [(b"0001", b"new"), (b"0002", None), (b"00015", b"new")]}, {})
    seen = [next(scan) for _ in range(50)]
    database.write({"counts": [(key, None) for key, _ in rows]}, {})
    database.write({"counts": [(key, b"newer") for key, _ in rows]}, {})
    seen += scan
    assert seen == sorted(rows, reverse=reverse)


def test_positions_are_kept_by_name(database: Database) -> None:
    assert database.position("counts") is None
    database.write({"counts": [(b"k", b"v")]}, {"counts": b"1", "default": b"7"})
    database.write({}, {"counts": b"2"})
    assert (database.position("counts"), database.position("default")) == (b"2", b"7")


def test_the_number_of_entries_is_about_right(database: Database) -> None:
    assert database.approximate_num_entries("counts") == 0
    fill(database)
    assert database.approximate_num_entries("counts") == len(KEYS)


def test_an_unknown_store_is_named(database: Database) -> None:
    with pytest.raises(StateStoreError, match="'other'"):
        database.get_many("other", [b"k"])
    with pytest.raises(StateStoreError, match="'other'"):
        database.iterate("other", None, None)
    with pytest.raises(StateStoreError, match="'other'"):
        database.approximate_num_entries("other")
    with pytest.raises(StateStoreError, match="'other'"):
        database.write({"counts": [(b"k", b"v")], "other": [(b"k", b"v")]}, {"counts": b"1"})
    assert database.get_many("counts", [b"k"]) == [None]
    assert database.position("counts") is None


def test_a_closed_database_refuses_reads_and_writes(database: Database) -> None:
    fill(database)
    database.close()
    database.close()
    with pytest.raises(InvalidStateStoreError):
        database.get_many("counts", [b"a"])
    with pytest.raises(InvalidStateStoreError):
        database.iterate("counts", None, None)
    with pytest.raises(InvalidStateStoreError):
        database.write({}, {})
    with pytest.raises(InvalidStateStoreError):
        database.position("counts")
    with pytest.raises(InvalidStateStoreError):
        database.approximate_num_entries("counts")


@pytest.mark.parametrize("read", [0, 1, 20])
def test_a_scan_interrupted_by_a_close_raises(database: Database, read: int) -> None:
    database.write({"counts": [(b"%04d" % number, b"v") for number in range(100)]}, {})
    scan = database.iterate("counts", None, None)
    for _ in range(read):
        next(scan)
    database.close()
    with pytest.raises(InvalidStateStoreError):
        next(scan)


def test_a_close_under_readers_is_clean(database: Database) -> None:
    rows = [(b"%04d" % number, b"v") for number in range(2000)]
    database.write({"counts": rows}, {})
    unexpected: list[BaseException] = []
    answers = threading.Semaphore(0)

    def read() -> None:
        try:
            while True:
                assert database.get_many("counts", [key for key, _ in rows]) == [b"v"] * len(rows)
                assert list(database.iterate("counts", None, None)) == rows
                answers.release()
        except InvalidStateStoreError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            unexpected.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(6):
        assert answers.acquire(timeout=20)
    database.close()
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()
    assert unexpected == []
