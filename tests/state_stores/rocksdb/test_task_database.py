"""Tests of the database on disk only: reopening, damage, locks, stalls, files."""

import gc
import json
import random
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rocksdict import IngestExternalFileOptions, Options, Rdict, SstFileWriter, WriteBatch

from tests.state_stores.rocksdb.conftest import OpenDatabase
from tidewheel.state_stores.errors import (
    InvalidStateStoreError,
    StateStoreError,
    StoreCorruptedError,
    StoreLockedError,
)
from tidewheel.state_stores.rocksdb import failures, task_database
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.sorted_files import write_sorted_file
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase

ROWS = [(b"key-%06d" % number, b"value-%06d" % number) for number in range(20_000)]

#: So small that writes outrun flushes.
TINY = RocksDBOptions(
    write_buffer_bytes=64 * 1024,
    family_write_buffer_bytes=64 * 1024,
    family_write_buffers=2,
    write_stall_timeout_ms=20_000,
)


def option_file(path: Path) -> str:
    return max(path.glob("OPTIONS-*"), key=lambda file: file.name).read_text()


def sections(text: str, kind: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("["):
            current = {}
            if line.startswith(f"[{kind}"):
                found[line.partition('"')[2].rstrip('"]')] = current
        elif "=" in line:
            name, _, value = line.strip().partition("=")
            current[name] = value
    return found


def biggest_file(path: Path) -> Path:
    return max(path.glob("*.sst"), key=lambda file: file.stat().st_size)


def damage(file: Path, at: int, data: bytes = b"\xff" * 64) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(data)


def test_a_clean_close_keeps_everything(open_database: OpenDatabase) -> None:
    database = open_database()
    database.write({"counts": ROWS, "sums": ROWS[:10]}, {"counts": b"c1", "sums": b"s1"})
    database.write({"counts": [(ROWS[0][0], None)]}, {"counts": b"c2"})
    database.close()
    again = open_database()
    assert list(again.iterate("counts", None, None)) == ROWS[1:]
    assert list(again.iterate("sums", None, None)) == ROWS[:10]
    assert (again.position("counts"), again.position("sums")) == (b"c2", b"s1")


def test_reopened_families_have_all_options(path: Path, open_database: OpenDatabase) -> None:
    options = RocksDBOptions(bloom_filter_bits_per_key=12, family_write_buffer_bytes=3_000_000)
    for _ in range(2):
        open_database(options=options).close()
    text = option_file(path)
    families = sections(text, "CFOptions")
    tables = sections(text, "TableOptions/BlockBasedTable")
    assert set(families) == set(tables) == {"default", "counts", "sums", "_positions"}
    for name, family in families.items():
        assert family["write_buffer_size"] == "3000000"
        assert family["compaction_style"] == "kCompactionStyleUniversal"
        assert family["compression"] == "kNoCompression"
        assert "bloomfilter" in tables[name]["filter_policy"]
        assert tables[name]["no_block_cache"] == "false"
    filtered = {
        name
        for name, family in families.items()
        if family["memtable_whole_key_filtering"] == "true"
        and float(family["memtable_prefix_bloom_size_ratio"]) > 0
    }
    assert filtered == {"counts", "sums"}, "nobody looks up single positions"
    database = sections(text, "DBOptions")[""]
    assert database["atomic_flush"] == "true"
    assert database["max_open_files"] not in {"-1", "5000"}


@pytest.mark.parametrize(
    "options", [RocksDBOptions(bloom_filter_bits_per_key=0), TINY], ids=["switched off", "tiny"]
)
def test_write_buffers_have_no_filter(
    path: Path, open_database: OpenDatabase, options: RocksDBOptions
) -> None:
    open_database(options=options).close()
    for family in sections(option_file(path), "CFOptions").values():
        assert float(family["memtable_prefix_bloom_size_ratio"]) == 0


def test_reads_of_a_reopened_family_use_the_shared_cache(path: Path) -> None:
    options = RocksDBOptions()
    resources = SharedResources.create(options)
    database = TaskDatabase.open(path, ["counts"], options, resources)
    database.write({"counts": ROWS}, {})
    assert resources.write_buffers.get_usage() > len(ROWS) * 20
    database.close()
    before = resources.block_cache.get_usage()
    database = TaskDatabase.open(path, ["counts"], options, resources)
    database.get_many("counts", [key for key, _ in ROWS])
    assert resources.block_cache.get_usage() > before + len(ROWS) * 20
    database.close()


def test_foreign_settings_on_disk_are_ignored(path: Path, open_database: OpenDatabase) -> None:
    config = path / "rocksdict-config.json"
    database = open_database()
    database.write({"counts": ROWS[:5]}, {})
    database.close()
    for text in ('{"raw_mode": false, "prefix_extractors": {}}', "{", ""):
        config.write_text(text)
        database = open_database()
        assert database.get_many("counts", [ROWS[1][0]]) == [ROWS[1][1]]
        database.close()
        assert json.loads(config.read_text())["raw_mode"] is True


def test_stores_may_be_added_and_removed(open_database: OpenDatabase) -> None:
    database = open_database(["counts"])
    database.write({"counts": ROWS[:3]}, {"counts": b"c1"})
    database.close()
    database = open_database(["sums"])
    database.write({"sums": ROWS[:2]}, {"sums": b"s1"})
    with pytest.raises(StateStoreError, match="'counts'"):
        database.get_many("counts", [b"k"])
    database.close()
    database = open_database(["counts", "sums"])
    assert list(database.iterate("counts", None, None)) == ROWS[:3]
    assert list(database.iterate("sums", None, None)) == ROWS[:2]
    assert database.position("counts") == b"c1"


def test_a_second_opening_is_refused(open_database: OpenDatabase) -> None:
    open_database()
    with pytest.raises(StoreLockedError, match="open elsewhere"):
        open_database()


def test_close_releases_scans_that_were_left_open(open_database: OpenDatabase) -> None:
    database = open_database()
    database.write({"counts": ROWS}, {"counts": b"c1"})
    scans = [database.iterate("counts", None, None, reverse=reverse) for reverse in (False, True)]
    next(scans[0])
    assert database.open_scans() == 2
    kept: list[BaseException] = []
    try:
        database.write({"counts": [(b"k", b"v"), (b"l", "text")]}, {})  # type: ignore[list-item] # an invalid value
    except Exception as error:  # noqa: BLE001 - any exception of the library
        kept.append(error)
    database.close()
    assert len(kept) == 1
    again = open_database()
    assert again.position("counts") == b"c1"
    for scan in scans:
        with pytest.raises(InvalidStateStoreError, match="closed"):
            list(scan)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_keeps_its_upper_bound_alive(open_database: OpenDatabase, reverse: bool) -> None:
    database = open_database()
    rows = [(bytes((0, number)), b"v") for number in range(9)]
    database.write({"counts": rows}, {})
    for upper in range(1, 9):
        scan = database.iterate("counts", b"\x00", bytes((0, upper)), reverse=reverse)
        junk = [bytes((255, number)) for number in range(200)]
        assert len(list(scan)) == upper
        assert len(junk) == 200


def test_dropped_and_finished_scans_are_forgotten(open_database: OpenDatabase) -> None:
    database = open_database()
    database.write({"counts": ROWS[:100]}, {})
    finished = database.iterate("counts", None, None)
    assert len(list(finished)) == 100
    dropped = database.iterate("counts", None, None)
    next(dropped)
    assert database.open_scans() == 1
    del dropped
    gc.collect()
    assert database.open_scans() == 0


def test_no_write_exceeds_a_mebibyte_and_positions_come_last(
    open_database: OpenDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    plain = TaskDatabase._batch

    def batch(self: TaskDatabase, pieces: Sequence[object], positions: object) -> WriteBatch:
        made = plain(self, pieces, positions)  # type: ignore[arg-type] # passed on unchanged
        sizes.append(made.size_in_bytes())
        with_positions.append(bool(positions))
        return made

    with_positions: list[bool] = []
    monkeypatch.setattr(TaskDatabase, "_batch", batch)
    database = open_database()
    rows = [(b"key-%06d" % number, b"x" * 100) for number in range(30_000)]
    database.write({"counts": rows, "sums": ROWS}, {"counts": b"c1"})
    assert len(sizes) > 3
    assert max(sizes) <= 1024 * 1024
    assert with_positions == [False] * (len(sizes) - 1) + [True]
    assert list(database.iterate("counts", None, None)) == rows
    assert list(database.iterate("sums", None, None)) == ROWS


@pytest.mark.slow
def test_a_stalled_write_is_retried(
    open_database: OpenDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalls = 0
    plain = failures.is_stall

    def is_stall(error: BaseException) -> bool:
        nonlocal stalls
        stalls += 1
        return plain(error)

    monkeypatch.setattr(task_database, "is_stall", is_stall)
    database = open_database(options=TINY)
    expected: dict[bytes, bytes] = {}
    for part in range(400):
        rows = [
            (b"%08d" % (number * 7919 % 100_003), b"%d" % part)
            for number in range(part, part + 2000)
        ]
        database.write({"counts": rows}, {"counts": b"%d" % part})
        expected.update(rows)
        if stalls:
            break
    assert stalls
    assert list(database.iterate("counts", None, None)) == sorted(expected.items())


def test_a_write_that_stalls_for_too_long_names_the_store(
    open_database: OpenDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = open_database(options=RocksDBOptions(write_stall_timeout_ms=1))
    database.write({"counts": ROWS[:1]}, {"counts": b"c1"})

    def stalled(pieces: object, positions: object) -> WriteBatch:
        raise Exception("Result incomplete: Write stall")  # noqa: TRY002 - what rocksdict raises

    monkeypatch.setattr(database, "_batch", stalled)
    with pytest.raises(StateStoreError, match=r"store counts .* flushes don't keep up"):
        database.write({"counts": ROWS[:1]}, {"counts": b"c2"})
    assert database.position("counts") == b"c1"


def test_a_damaged_block_is_never_a_short_scan(path: Path, open_database: OpenDatabase) -> None:
    database = open_database()
    database.write({"counts": ROWS}, {"counts": b"c1"})
    database.close()
    file = biggest_file(path)
    damage(file, file.stat().st_size // 3)
    database = open_database()
    kept: list[StoreCorruptedError] = []
    for reverse in (False, True):
        with pytest.raises(StoreCorruptedError, match=r"counts.*delete this directory") as caught:
            list(database.iterate("counts", None, None, reverse=reverse))
        kept.append(caught.value)
    with pytest.raises(StoreCorruptedError, match="counts"):
        database.get_many("counts", [key for key, _ in ROWS])
    # Other blocks are still readable; kept exceptions do not keep the database open.
    assert database.get_many("counts", [ROWS[-1][0]]) == [ROWS[-1][1]]
    database.close()
    assert len(kept) == 2
    TaskDatabase.destroy(path)
    assert not path.exists()


@pytest.mark.parametrize(
    "what", ["sst short", "sst gone", "manifest", "manifest gone", "current", "current gone"]
)
def test_damage_found_at_open_is_reported(
    path: Path, open_database: OpenDatabase, what: str
) -> None:
    database = open_database()
    database.write({"counts": ROWS}, {"counts": b"c1"})
    database.close()
    file = {
        "sst": biggest_file(path),
        "man": next(path.glob("MANIFEST-*")),
        "cur": path / "CURRENT",
    }[what[:3]]
    if what.endswith("gone"):
        file.unlink()
    elif what == "sst short":
        file.write_bytes(file.read_bytes()[:-100])
    else:
        damage(file, 0)
    with pytest.raises(StoreCorruptedError) as caught:
        open_database()
    assert str(path) in str(caught.value)
    assert "delete this directory" in str(caught.value)
    TaskDatabase.destroy(path)
    assert open_database().position("counts") is None


def test_a_damaged_position_is_reported_at_open(path: Path, open_database: OpenDatabase) -> None:
    database = open_database()
    database.write({}, {f"store-{number}": b"p" * 100 for number in range(2000)})
    database.close()
    damage(biggest_file(path), 5000)
    with pytest.raises(StoreCorruptedError) as caught:
        open_database()
    TaskDatabase.destroy(path)  # although an exception still refers to it
    assert caught.value is not None
    assert not path.exists()


def test_destroy_refuses_an_open_database(path: Path, open_database: OpenDatabase) -> None:
    database = open_database()
    database.write({"counts": ROWS[:1]}, {})
    with pytest.raises(StoreLockedError):
        TaskDatabase.destroy(path)
    assert database.get_many("counts", [ROWS[0][0]]) == [ROWS[0][1]]
    database.close()
    (path / "foreign").write_text("x")
    TaskDatabase.destroy(path)
    assert not path.exists()
    TaskDatabase.destroy(path)


def test_a_checkpoint_is_a_whole_copy(path: Path, open_database: OpenDatabase) -> None:
    database = open_database()
    database.write({"counts": ROWS}, {"counts": b"c1"})
    copy = path.with_name("copy")
    database.checkpoint(copy)
    on_disk = {file.name for file in path.glob("*.sst")}
    assert len(on_disk) == 2  # one for data, one for positions
    database.write({"counts": [(b"later", b"x")]}, {"counts": b"c2"})
    options = RocksDBOptions()
    copied = TaskDatabase.open(copy, ["counts"], options, SharedResources.create(options))
    assert list(copied.iterate("counts", None, None)) == ROWS
    assert copied.position("counts") == b"c1"
    copied.close()
    with pytest.raises(StateStoreError, match="make a checkpoint"):
        database.checkpoint(copy)


def test_a_checkpoint_during_flushes_has_all_writes(path: Path) -> None:
    options = replace(TINY, family_write_buffers=4)
    resources = SharedResources.create(options)
    database = TaskDatabase.open(path, ["counts", "sums"], options, resources)
    chosen = random.Random(0)
    rows: dict[bytes, bytes] = {}
    for number in range(300):
        position = b"%d" % number
        # Sometimes only a position, as for records that change no store.
        written = [
            (b"%04d" % key, chosen.randbytes(20))
            for key in sorted(chosen.sample(range(1_000), chosen.choice([0, 30, 300])))
        ]
        database.write({"counts": written, "sums": written[::2]}, {"counts": position})
        rows.update(written)
        if chosen.random() < 0.2:
            copy = path.with_name("copy")
            database.checkpoint(copy)
            copied = TaskDatabase.open(copy, ["counts", "sums"], options, resources)
            with closing(copied):
                assert copied.position("counts") == position
                assert dict(copied.iterate("counts", None, None)) == rows
            shutil.rmtree(copy)
    database.close()


def test_flushed_rows_survive_a_kill(path: Path, open_database: OpenDatabase) -> None:
    database = open_database()
    database.write({"counts": ROWS, "sums": ROWS[:1]}, {"counts": b"c1"})
    database.make_durable()
    database.write({"counts": [(b"later", b"x")]}, {"counts": b"c2"})
    gc.collect()
    killed = path.with_name("killed")
    shutil.copytree(path, killed)
    options = RocksDBOptions()
    again = TaskDatabase.open(killed, ["counts", "sums"], options, SharedResources.create(options))
    assert list(again.iterate("counts", None, None)) == ROWS
    assert list(again.iterate("sums", None, None)) == ROWS[:1]
    assert again.position("counts") == b"c1"
    again.close()


def test_ingested_files_win_in_their_order(tmp_path: Path, open_database: OpenDatabase) -> None:
    files = []
    for name, value in (("first", b"1"), ("second", b"2")):
        writer = SstFileWriter(Options(raw_mode=True))
        files.append(tmp_path / f"{name}.sst")
        writer.open(str(files[-1]))
        writer[b"a"] = value
        if name == "second":
            del writer[b"b"]
        writer.finish()
    database = open_database()
    database.write({"counts": [(b"a", b"0"), (b"b", b"0"), (b"c", b"0")]}, {})
    database.ingest("counts", files)
    assert database.get_many("counts", [b"a", b"b", b"c"]) == [b"2", None, b"0"]


class _Watched:
    """A family that records each ingestion; other Python threads do not run during the call."""

    def __init__(self, family: Rdict, calls: list[list[str]]) -> None:
        self._family = family
        self._calls = calls

    def ingest_external_file(self, files: list[str], options: IngestExternalFileOptions) -> None:
        self._calls.append(files)
        self._family.ingest_external_file(files, options)


def test_other_threads_run_between_two_files(
    tmp_path: Path, open_database: OpenDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"{number}.sst" for number in range(3)]
    for number, file in enumerate(files):
        write_sorted_file(file, [(b"%d" % number, b"x")])
    database = open_database()
    calls: list[list[str]] = []
    found = TaskDatabase._family
    monkeypatch.setattr(
        TaskDatabase, "_family", lambda self, name: _Watched(found(self, name), calls)
    )
    database.ingest("counts", files)
    monkeypatch.undo()
    assert calls == [[str(file)] for file in files]
    assert [key for key, _ in database.iterate("counts", None, None)] == [b"0", b"1", b"2"]


def test_positions_are_never_flushed_alone(path: Path, open_database: OpenDatabase) -> None:
    database = open_database()
    database.write({"counts": ROWS[:10]}, {"counts": b"c1"})
    database.position("counts")
    list(database.iterate("counts", None, None))
    gc.collect()
    assert list(path.glob("*.sst")) == []
    database.close()
    assert len(list(path.glob("*.sst"))) == 2


def test_the_library_flushes_a_family_when_its_object_is_dropped(tmp_path: Path) -> None:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_atomic_flush(True)
    native = Rdict(str(tmp_path / "db"), options=options, column_families={"f": options})
    native.get_column_family("f").put(b"k", b"v")
    gc.collect()
    assert len(list((tmp_path / "db").glob("*.sst"))) == 1
    native.close()


def test_an_unwritable_directory_is_reported(tmp_path: Path, open_database: OpenDatabase) -> None:
    (tmp_path / "0_0").write_text("not a directory")
    with pytest.raises(StateStoreError, match="0_0"):
        open_database()


def test_positions_of_a_closed_database_are_read_without_opening_it(
    open_database: OpenDatabase, path: Path
) -> None:
    assert TaskDatabase.positions_in(path) == {}
    database = open_database(["counts", "default"])
    database.write({"counts": ROWS}, {"changelog:a-0": b"seven"})
    database.close()
    before = sorted(file.name for file in path.iterdir() if file.name != "LOG")

    assert TaskDatabase.positions_in(path) == {"changelog:a-0": b"seven"}

    assert sorted(file.name for file in path.iterdir() if not file.name.startswith("LOG")) == before
    again = open_database(["counts", "default"])
    assert again.position("changelog:a-0") == b"seven"
    assert again.get_many("counts", [ROWS[7][0]]) == [ROWS[7][1]]


def test_positions_of_a_damaged_database_are_not_read(
    open_database: OpenDatabase, path: Path
) -> None:
    database = open_database()
    database.write({}, {"changelog:a-0": b"seven"})
    database.close()
    next(path.glob("MANIFEST-*")).write_bytes(b"\xff" * 64)
    with pytest.raises(StoreCorruptedError):
        TaskDatabase.positions_in(path)
