"""Files of tasks: frames by part, and damage is found."""

from pathlib import Path

import pytest

from tidewheel.state_stores.bulk_restore.storage import Storage, open_storage
from tidewheel.streams.bulk.batch.stage_files import (
    STORE,
    TOPIC,
    Part,
    StageFile,
    StageReader,
    StageWriter,
)
from tidewheel.streams.errors import StreamsError

_OUT = Part(TOPIC, "out", 3)
_COUNTS = Part(STORE, "counts", 3)


@pytest.fixture(params=["directory", "fsspec"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    folder = tmp_path / "work"
    return open_storage(str(folder) if request.param == "directory" else f"local://{folder}")


def _write(storage: Storage, tmp_path: Path) -> StageFile:
    with StageWriter(tmp_path / "stage") as writer:
        writer.add(_OUT, b"first")
        writer.add(_COUNTS, b"row")
        writer.add(_OUT, b"second")
        return writer.publish(storage)


def test_frames_are_read_by_part(storage: Storage, tmp_path: Path) -> None:
    stage_file = _write(storage, tmp_path)
    with StageReader(storage, stage_file) as reader:
        assert list(reader.parts()) == [_OUT, _COUNTS]
        assert list(reader.frames(_OUT)) == [b"first", b"second"]
        assert list(reader.frames(_COUNTS)) == [b"row"]
        assert list(reader.frames(Part(TOPIC, "out", 4))) == []


def test_each_attempt_has_a_file_of_its_own(storage: Storage, tmp_path: Path) -> None:
    names = {_write(storage, tmp_path).name for _ in range(2)}
    assert sorted(names) == storage.names("")
    assert len(names) == 2


def test_damage_and_absence_are_errors(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "work"))
    stage_file = _write(storage, tmp_path)
    path = tmp_path / "work" / stage_file.name
    data = bytearray(path.read_bytes())
    data[1] ^= 0xFF
    path.write_bytes(data)
    with (
        StageReader(storage, stage_file) as reader,
        pytest.raises(StreamsError, match="checksum"),
    ):
        list(reader.frames(_OUT))
    path.unlink()
    with pytest.raises(StreamsError, match="can't be read"):
        StageReader(storage, stage_file)


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("a file")
    with pytest.raises(StreamsError, match="work="):
        _write(open_storage(str(tmp_path / "work")), tmp_path)
