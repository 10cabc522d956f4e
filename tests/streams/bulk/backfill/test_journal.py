"""Journal of a backfill: written and read, damaged, of another version, out of reach."""

import zlib
from pathlib import Path

import msgspec
import pytest

from tidewheel import StreamsError
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.storage import Storage, open_storage
from tidewheel.streams.bulk.backfill.history import History
from tidewheel.streams.bulk.backfill.journal import (
    Journal,
    check_owner,
    claim_journal,
    delete_all,
    read_journal,
    write_journal,
)
from tidewheel.streams.bulk.batch.executors import StageResult
from tidewheel.streams.bulk.batch.source_segments import OffsetRange, StoredRows
from tidewheel.streams.bulk.batch.stage_files import StageFile
from tidewheel.tasks.batch.batch_task import TaskEnd

AT, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
FILE = StageFile(name="0-1-abc", index_at=900, size=70_000)
BEGUN = Journal(
    question={"until": "a-digest"},
    ranges={AT: OffsetRange(first=2, end=1 << 40), OTHER: OffsetRange(first=0, end=0)},
)
HISTORY = History(
    rows={AT: StoredRows(file=FILE, records=7, first_offset=-5)},
    ranges={AT: OffsetRange(first=2, end=9, from_ms=50)},
    left_out={AT: 1},
    gaps=(),
)
#: One with all that a task reports, one with as little as possible.
RESULTS = [
    StageResult(
        task=(1, 0),
        file=FILE,
        blobs={("counts", 0): 3, ("app-words-repartition", 2): 1},
        records={"counts": 12},
        rows={"words": 5},
        types={("topic", "counts"): (frozenset({"string"}), frozenset({"bigint", "binary"}))},
        oldest_ms={"counts": -1},
        end=TaskEnd(next_offsets={AT: 9}, partition_times_ms={AT: 77}, operator_times_ms=(77, -1)),
    ),
    StageResult(task=(1, 1), file=FILE, blobs={}),
]


@pytest.fixture(params=["directory", "fsspec"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    folder = tmp_path / "work"
    return open_storage(str(folder) if request.param == "directory" else f"local://{folder}")


def test_there_is_none_before_the_first_run(storage: Storage) -> None:
    assert read_journal(storage) is None


def test_each_state_is_read_as_written(storage: Storage) -> None:
    claim_journal(storage, BEGUN)
    read = BEGUN.with_history("orders", HISTORY)
    for journal in (BEGUN, read, read.with_pass(RESULTS), read.with_pass(RESULTS).with_pass([])):
        write_journal(storage, journal)
        assert read_journal(storage) == journal


def test_a_run_whose_journal_another_has_claimed_writes_no_more(storage: Storage) -> None:
    second = msgspec.structs.replace(BEGUN, run="second")
    claim_journal(storage, BEGUN)
    check_owner(storage, BEGUN.run)
    claim_journal(storage, second)
    with pytest.raises(StreamsError, match="another run of this backfill has begun since"):
        write_journal(storage, BEGUN)
    assert read_journal(storage) == second
    delete_all(storage)
    with pytest.raises(StreamsError, match="another run of this backfill has finished"):
        write_journal(storage, second)
    assert read_journal(storage) is None


def test_history_precedes_the_records_of_its_partition() -> None:
    journal = BEGUN.with_history("orders", HISTORY)
    assert journal.read == ["orders"]
    assert journal.segments == {
        AT: (HISTORY.rows[AT], HISTORY.ranges[AT]),
        OTHER: (BEGUN.ranges[OTHER],),
    }


@pytest.mark.parametrize("place", [0, 3, 4, 40, -1])
def test_a_changed_byte_is_found(tmp_path: Path, place: int) -> None:
    storage = open_storage(str(tmp_path))
    claim_journal(storage, BEGUN)
    data = bytearray((tmp_path / "journal").read_bytes())
    data[place] ^= 1
    (tmp_path / "journal").write_bytes(data)
    with pytest.raises(StreamsError, match=r"can't be used: its checksum is wrong; .*--restart"):
        read_journal(storage)


@pytest.mark.parametrize("length", [0, 3, 4, 100])
def test_a_cut_file_is_found(tmp_path: Path, length: int) -> None:
    storage = open_storage(str(tmp_path))
    claim_journal(storage, BEGUN)
    (tmp_path / "journal").write_bytes((tmp_path / "journal").read_bytes()[:length])
    with pytest.raises(StreamsError, match="journal of an earlier backfill can't be used"):
        read_journal(storage)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (msgspec.structs.replace(BEGUN, version=3), "it has version 3, this release reads 2"),
        ({"version": 1, "question": "another form"}, "it has version 1, this release reads 2"),
        ({"version": 2, "question": 5}, "Expected `object`, got `int`"),
        ([], "Expected `object`"),
    ],
)
def test_a_journal_of_another_release_is_refused(
    tmp_path: Path, content: object, problem: str
) -> None:
    body = msgspec.msgpack.encode(content)
    (tmp_path / "journal").write_bytes(zlib.crc32(body).to_bytes(4, "big") + body)
    with pytest.raises(StreamsError, match=problem):
        read_journal(open_storage(str(tmp_path)))


def test_all_files_are_deleted_the_journal_first(storage: Storage) -> None:
    claim_journal(storage, BEGUN)
    storage.write("stage-1", b"rows")
    deleted: list[str] = []
    delete = storage.delete

    def recorded(name: str) -> None:
        deleted.append(name)
        delete(name)

    storage.delete = recorded  # type: ignore[method-assign] # recorded by the test
    delete_all(storage)
    assert deleted[0] == "journal"
    assert storage.names("") == []
    assert read_journal(storage) is None
    delete_all(storage)


def test_a_place_that_can_not_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    storage = open_storage(str(tmp_path / "file"))
    with pytest.raises(StreamsError, match=r"file can't be written: .*work="):
        claim_journal(storage, BEGUN)
    with pytest.raises(StreamsError, match=r"file can't be read: .*work="):
        read_journal(storage)
