"""Pure parts of the database: options, write batches, errors, file limits, the gate."""

import resource
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.state_stores.errors import (
    DiskFullError,
    StateStoreError,
    StoreCorruptedError,
    StoreLockedError,
)
from tidewheel.state_stores.rocksdb.changes import Piece, split_writes
from tidewheel.state_stores.rocksdb.failures import failure, is_stall
from tidewheel.state_stores.rocksdb.gate import Gate
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import (
    SharedResources,
    open_files_each,
    raise_file_limit,
)

rows = st.lists(st.tuples(st.binary(max_size=8), st.none() | st.binary(max_size=40)), max_size=60)


@pytest.mark.parametrize(
    "bad",
    [
        {"block_cache_bytes": -1},
        {"write_buffer_bytes": 1},
        {"family_write_buffers": 1},
        {"background_threads": 0},
        {"bloom_filter_bits_per_key": 1.5},
        {"block_bytes": True},
        {"max_open_files": 3},
        {"compaction": "fifo"},
        {"compression": "gzip"},
    ],
)
def test_a_bad_option_is_named(bad: dict[str, object]) -> None:
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"option {name} must be .* got {value!r}"):
        RocksDBOptions(**bad)  # type: ignore[arg-type] # an invalid option


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd", "snappy"])
@pytest.mark.parametrize("compaction", ["universal", "level"])
def test_every_option_is_supported_by_the_library(compression: str, compaction: str) -> None:
    options = RocksDBOptions(compression=compression, compaction=compaction)  # type: ignore[arg-type] # all are valid
    assert SharedResources.create(options).database_options(options) is not None


@given(st.dictionaries(st.sampled_from("abc"), rows), st.integers(1, 200))
def test_splitting_keeps_every_row_in_order_and_no_write_too_large(
    changes: dict[str, list[tuple[bytes, bytes | None]]], limit: int
) -> None:
    writes = list(split_writes(changes, limit))
    joined: dict[str, list[tuple[bytes, bytes | None]]] = {name: [] for name in changes}
    for write in writes:
        size = 0
        count = 0
        for piece in write:
            assert isinstance(piece, Piece)
            joined[piece.family].extend(piece.rows)
            count += len(piece.rows)
            size += sum(len(key) + len(value or b"") + 12 for key, value in piece.rows)
        assert count
        assert size <= limit or count == 1
    assert joined == {
        name: sorted(listed, key=lambda row: row[0]) for name, listed in changes.items()
    }


@given(rows)
def test_rows_within_the_limit_are_one_write(listed: list[tuple[bytes, bytes | None]]) -> None:
    assert len(list(split_writes({"a": listed, "b": listed}, 1_000_000))) == bool(listed)


@pytest.mark.parametrize(
    ("text", "kind", "step"),
    [
        ("Corruption: block checksum mismatch", StoreCorruptedError, "delete this directory"),
        ("IO error: No space left on device: While appending", DiskFullError, "free disk space"),
        ("Corruption: IO error: No space left on device", DiskFullError, "free disk space"),
        ("IO error: Permission denied", StateStoreError, "writable"),
        ("Corruption: IO error: Too many open files", StateStoreError, "ulimit -n"),
        ("IO error: While lock file: /x/LOCK: Resource", StoreLockedError, "open elsewhere"),
        ("Invalid argument: what", StateStoreError, "file LOG"),
    ],
)
def test_failures_have_a_class_and_a_next_step(
    text: str, kind: type[StateStoreError], step: str
) -> None:
    error = failure(Exception(text), Path("/state/0_0"), "read store counts")
    assert type(error) is kind
    for part in ("/state/0_0", "read store counts", text, step):
        assert part in str(error)


def test_only_a_stalled_write_is_retried() -> None:
    assert is_stall(Exception("Result incomplete: Write stall"))
    assert not is_stall(Exception("IO error: No space left on device"))


def test_too_few_file_descriptors_are_an_error_with_the_command() -> None:
    assert open_files_each(1024, 4) == 128
    with pytest.raises(StateStoreError, match=r"ulimit -n 8000"):
        open_files_each(1024, 100)


def test_the_file_limit_is_raised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: asked.append(pair))
    assert raise_file_limit() == 4096
    assert asked == [(4096, 4096)]

    def refuse(_: int, pair: tuple[int, int]) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_file_limit() == 1024


def test_many_databases_have_smaller_write_buffers() -> None:
    options = RocksDBOptions(max_open_files=100)
    sizes = [
        SharedResources.create(options, databases=count).family_write_buffer_bytes
        for count in (0, 1, 16, 1000)
    ]
    assert sizes == [16 * 2**20, 16 * 2**20, 4 * 2**20, 2**20]


@given(
    databases=st.integers(1, 2_000),
    families=st.integers(1, 100),
    budget=st.sampled_from([64 << 10, 4 << 20, 64 << 20, 1 << 30]),
    each=st.sampled_from([64 << 10, 1 << 20, 16 << 20]),
)
def test_filters_of_empty_write_buffers_leave_room_for_rows(
    databases: int, families: int, budget: int, each: int
) -> None:
    options = RocksDBOptions(
        write_buffer_bytes=budget, family_write_buffer_bytes=each, max_open_files=100
    )
    resources = SharedResources.create(options, databases=databases)
    size = resources.family_write_buffer_bytes
    part = resources._write_buffer_filter(options, families)
    assert part * size * databases * families <= budget / 8 * 1.001
    assert part == 0 or 0.01 <= part <= 0.02
    if size >= 1 << 20 and databases * families * size <= 6 * budget:
        assert part == 0.02


def test_a_closing_gate_waits_for_open_calls() -> None:
    gate = Gate()
    assert gate.enter()
    closed = threading.Event()

    def close() -> None:
        assert gate.close()
        closed.set()

    closer = threading.Thread(target=close)
    closer.start()
    while not gate.closed:
        assert closer.is_alive()
    assert not gate.enter()
    assert not closed.is_set()
    gate.leave()
    assert closed.wait(timeout=10)
    closer.join(timeout=10)
    assert not gate.close()
