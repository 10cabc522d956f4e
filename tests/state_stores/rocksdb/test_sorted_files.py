"""Sorted files are read back unchanged, here and by RocksDB; other files are rejected."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.state_stores.rocksdb.conftest import OpenDatabase
from tidewheel.state_stores.errors import StateStoreError, StoreCorruptedError
from tidewheel.state_stores.rocksdb.sorted_files import (
    bounds_of,
    read_sorted_file,
    write_sorted_file,
)

ROWS = st.dictionaries(
    st.binary(max_size=4) | st.binary(min_size=100, max_size=300),
    st.none() | st.binary(max_size=5) | st.binary(min_size=1_000, max_size=20_000),
    min_size=1,
    max_size=30,
).map(lambda rows: sorted(rows.items()))


def many(seed: int, count: int) -> list[tuple[bytes, bytes | None]]:
    chance = random.Random(seed)
    return sorted(
        {
            chance.randbytes(chance.randint(1, 20)): None
            if chance.random() < 0.2
            else chance.randbytes(
                chance.choice((0, 30, 130, 5_000 if chance.random() < 0.1 else 9))
            )
            for _ in range(count)
        }.items()
    )


@settings(max_examples=50, deadline=None)
@given(ROWS)
def test_rows_survive_writing_a_file(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[bytes, bytes | None]]
) -> None:
    path = tmp_path_factory.mktemp("file") / "rows.sst"
    assert write_sorted_file(path, rows) == len(rows)
    assert list(read_sorted_file(path)) == rows
    assert bounds_of(path) == (rows[0][0], rows[-1][0])


@pytest.mark.slow
def test_rocksdb_reads_the_same_rows(tmp_path: Path, open_database: OpenDatabase) -> None:
    path, rows = tmp_path / "rows.sst", many(1, 20_000)
    write_sorted_file(path, rows)
    assert list(read_sorted_file(path)) == rows
    database = open_database()
    database.ingest("counts", [path])
    shown = list(database.iterate("counts", None, None))
    assert shown == [(key, value) for key, value in rows if value is not None]
    wanted = [key for key, _ in rows[::7]]
    assert database.get_many("counts", wanted) == [value for _, value in rows[::7]]


@pytest.mark.fault("45")
@pytest.mark.parametrize("keys", [[b"b", b"a"], [b"a", b"a"]], ids=["falling", "twice"])
def test_rows_out_of_order_are_refused(tmp_path: Path, keys: list[bytes]) -> None:
    with pytest.raises(StateStoreError, match="row 2 does not follow the one before"):
        write_sorted_file(tmp_path / "rows.sst", [(key, b"") for key in keys])


def test_a_file_that_can_not_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StateStoreError, match=r"x\.sst in .*nowhere"):
        write_sorted_file(tmp_path / "nowhere" / "x.sst", [(b"a", b"")])


def test_damage_is_detected_or_changes_rows(tmp_path: Path) -> None:
    path, rows = tmp_path / "rows.sst", many(2, 400)
    write_sorted_file(path, rows)
    whole = path.read_bytes()
    broken = tmp_path / "broken.sst"
    for length in (0, 1, 52, 53, 1_000, len(whole) // 2, len(whole) - 1):
        broken.write_bytes(whole[:length])
        with pytest.raises(StoreCorruptedError, match=r"broken\.sst"):
            list(read_sorted_file(broken))
        with pytest.raises(StoreCorruptedError, match="delete it"):
            bounds_of(broken)
    chance = random.Random(3)
    refused = 0
    for _ in range(200):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        broken.write_bytes(data)
        try:
            list(read_sorted_file(broken))
        except StoreCorruptedError:
            refused += 1
    assert refused


def test_a_dropped_reader_releases_its_file(tmp_path: Path) -> None:
    path, rows = tmp_path / "rows.sst", many(4, 3_000)
    write_sorted_file(path, rows)
    reader = read_sorted_file(path)
    assert next(reader) == rows[0]
    del reader
    path.unlink()
