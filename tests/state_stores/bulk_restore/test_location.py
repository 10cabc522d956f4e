"""Snapshots are complete or invisible, and checked when fetched; broken ones are skipped."""

import builtins
import importlib
import logging
import os
import stat
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.state_stores.bulk_restore.snapshots import NOW_MS, TOPIC_ID, partition_runs, snapshot
from tidewheel.state_stores.bulk_restore.location import DAY_MS, SnapshotLocation
from tidewheel.state_stores.bulk_restore.manifest import (
    Run,
    SnapshotRefused,
    StoreSnapshot,
    encode_manifest,
)
from tidewheel.state_stores.bulk_restore.run_files import RunFile
from tidewheel.state_stores.bulk_restore.runs import write_run
from tidewheel.state_stores.bulk_restore.storage import RemoteStorage, open_storage

ROWS: list[tuple[bytes, bytes | None]] = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


class Held:
    """A location, with direct access to its files."""

    def __init__(self, location: SnapshotLocation, filesystem: Any, root: str) -> None:
        self.location = location
        self.filesystem = filesystem
        self.root = root

    def files(self) -> set[str]:
        return {name.split(f"{self.root}/", 1)[1] for name in self.filesystem.find(self.root)}

    def read(self, name: str) -> bytes:
        return bytes(self.filesystem.cat_file(f"{self.root}/{name}"))

    def write(self, name: str, data: bytes) -> None:
        self.filesystem.makedirs(f"{self.root}/{name}".rpartition("/")[0], exist_ok=True)
        self.filesystem.pipe_file(f"{self.root}/{name}", data)

    def delete(self, name: str) -> None:
        self.filesystem.rm_file(f"{self.root}/{name}")


@pytest.fixture(params=["path", "file URL", "fsspec"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Held]:
    fsspec = pytest.importorskip("fsspec")
    if request.param == "fsspec":
        memory = fsspec.filesystem("memory")
        memory.makedirs("/states/here", exist_ok=True)
        yield Held(SnapshotLocation("memory://states/here"), memory, "/states/here")
        memory.rm("/states", recursive=True)
        return
    root = tmp_path / "all states"  # URLs encode the space
    root.mkdir()
    url = str(root) if request.param == "path" else root.as_uri()
    yield Held(SnapshotLocation(url), fsspec.filesystem("file"), str(root))


def built(tmp_path: Path, rows: list[tuple[bytes, bytes | None]] = ROWS) -> RunFile:
    path = tmp_path / "built.sst"
    run = write_run(path, rows, 0, (0, 100))
    assert run is not None
    return RunFile(path, run)


def published(
    held: Held,
    tmp_path: Path,
    *,
    generation: int = 1,
    now_ms: int = NOW_MS,
    topic_id: bytes = TOPIC_ID,
) -> StoreSnapshot:
    file = built(tmp_path)
    name = held.location.run_name("app", "store", file.run, now_ms=now_ms)
    held.location.upload(file.path, name)
    run = msgspec.structs.replace(file.run, file=name)
    made = snapshot(
        generation=generation,
        partitions=(partition_runs(runs=(run,)),),
        topic_id=topic_id,
        created_at_ms=now_ms,
    )
    held.location.publish(made)
    return made


def only_run(made: StoreSnapshot) -> Run:
    (run,) = made.runs
    return run


def test_the_newest_snapshot_is_found(held: Held, tmp_path: Path) -> None:
    assert held.location.newest("app", "store") is None
    second = published(held, tmp_path, generation=2)
    tenth = published(held, tmp_path, generation=10)
    published(held, tmp_path, generation=9)
    assert held.location.newest("app", "store") == tenth != second
    assert held.location.newest("app", "other") is None
    assert held.location.newest("application", "store") is None


def test_snapshots_of_two_clusters_do_not_hide_or_delete_each_other(
    held: Held, tmp_path: Path
) -> None:
    ours, theirs = b"o" * 16, b"t" * 16
    mine = [
        published(held, tmp_path, generation=each, topic_id=ours, now_ms=NOW_MS)
        for each in range(3)
    ]
    others = [
        published(held, tmp_path, generation=each, topic_id=theirs, now_ms=NOW_MS)
        for each in range(3, 6)
    ]
    location = held.location
    assert location.newest("app", "store", ours) == mine[-1]
    assert location.newest("app", "store", theirs) == location.newest("app", "store") == others[-1]
    assert location.newest("app", "store", b"x" * 16) == others[-1], "it says why it is not used"

    location.delete_unreferenced("app", "store", now_ms=NOW_MS + 29 * DAY_MS)
    kept = {only_run(each).file for each in (*mine[1:], *others[1:])}
    assert {name for name in held.files() if name.endswith(".sst")} == kept
    assert location.newest("app", "store", ours) == mine[-1]

    location.delete_unreferenced("app", "store", now_ms=NOW_MS + 30 * DAY_MS)
    kept = {only_run(each).file for each in others[1:]}
    assert {name for name in held.files() if name.endswith(".sst")} == kept


def test_a_fetched_run_equals_the_uploaded_one(held: Held, tmp_path: Path) -> None:
    run = only_run(published(held, tmp_path))
    to_dir = tmp_path / "fetched"
    path = held.location.download(run, to_dir)
    assert path.parent == to_dir
    assert path.read_bytes() == held.read(run.file)
    path.write_bytes(b"spoilt")
    assert len(held.read(run.file)) == run.file_bytes


def test_a_fetched_run_is_durable(
    held: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = only_run(published(held, tmp_path))
    synced: dict[int, int] = {}
    really = os.fsync

    def fsync(descriptor: int) -> None:
        really(descriptor)
        status = os.fstat(descriptor)
        synced[status.st_ino] = status.st_size

    monkeypatch.setattr(os, "fsync", fsync)
    path = held.location.download(run, tmp_path / "fetched")
    assert synced.get(path.stat().st_ino) == run.file_bytes


@pytest.mark.parametrize("how", ["gone", "short", "long", "bit", "other keys"])
def test_a_damaged_run_is_refused(held: Held, tmp_path: Path, how: str) -> None:
    run = only_run(published(held, tmp_path))
    whole = held.read(run.file)
    match how:
        case "gone":
            held.delete(run.file)
        case "short":
            held.write(run.file, whole[:-1])
        case "long":
            held.write(run.file, whole + b"x")
        case "bit":
            held.write(run.file, bytes([whole[0] ^ 1]) + whole[1:])
        case _:
            run = msgspec.structs.replace(run, last_key=b"d")
    to_dir = tmp_path / "fetched"
    with pytest.raises(SnapshotRefused, match=r"app/store/runs/0/0-100-.*\.sst.*is not used"):
        held.location.download(run, to_dir)
    assert list(to_dir.iterdir()) == []


@pytest.mark.parametrize("how", ["empty", "torn", "garbage", "later", "foreign"])
def test_a_broken_manifest_is_logged_once_and_skipped(
    held: Held, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    good = published(held, tmp_path)
    broken = encode_manifest(snapshot(generation=2))
    match how:
        case "empty":
            broken = b""
        case "torn":
            broken = broken[: len(broken) // 2]
        case "garbage":
            broken = b"\xff\x00garbage"
        case "later":
            broken = broken.replace(b'"tidewheel_snapshot":1', b'"tidewheel_snapshot":7')
        case _:
            foreign = partition_runs(runs=())
            broken = encode_manifest(
                snapshot(generation=2, application_id="foreign", partitions=(foreign,))
            )
    name = f"app/store/manifests/0000000002-{'b' * 16}.json"
    held.write(name, broken)
    with caplog.at_level(logging.WARNING):
        assert held.location.newest("app", "store") == good
        assert held.location.newest("app", "store") == good
    (record,) = caplog.records
    assert name in record.getMessage()
    assert "run `tidewheel snapshot`" in record.getMessage()
    held.delete(name)


def test_files_of_other_names_are_no_manifests(held: Held, tmp_path: Path) -> None:
    good = published(held, tmp_path)
    for name in (f"0000000009-{'b' * 16}.json.12345678.part", "9-b.json", "README"):
        held.write(f"app/store/manifests/{name}", b"{")
    assert held.location.newest("app", "store") == good


def test_an_inconsistent_snapshot_is_not_published(held: Held) -> None:
    with pytest.raises(SnapshotRefused):
        held.location.publish(snapshot(partition_count=0))
    with pytest.raises(ValueError, match="store name"):
        held.location.newest("app", "../store")
    assert held.files() == set()


def test_unreferenced_files_are_deleted_when_old(held: Held, tmp_path: Path) -> None:
    assert held.location.delete_unreferenced("app", "store", now_ms=NOW_MS) == []
    made = [
        published(held, tmp_path, generation=number, now_ms=NOW_MS - DAY_MS) for number in range(4)
    ]
    young = held.location.run_name("app", "store", only_run(made[0]), now_ms=NOW_MS - DAY_MS + 1)
    held.location.upload(tmp_path / "built.sst", young)
    held.write("app/store/runs/0/notes.txt", b"of somebody else")
    held.write(f"app/store/manifests/0000000009-{'b' * 16}.json", b"broken")
    before = held.files()
    gone = held.location.delete_unreferenced("app", "store", now_ms=NOW_MS)
    assert before - held.files() == set(gone)
    assert len(gone) == 4
    left = held.files()
    assert {only_run(each).file for each in made} & left == {
        only_run(each).file for each in made[2:]
    }
    assert {young, "app/store/runs/0/notes.txt"} <= left
    assert held.location.newest("app", "store") == made[3]
    assert held.location.delete_unreferenced("app", "store", now_ms=NOW_MS) == []


def test_runs_stay_where_no_manifest_can_be_read(held: Held, tmp_path: Path) -> None:
    published(held, tmp_path, now_ms=NOW_MS - 9 * DAY_MS)
    before = held.files()
    for name in before:
        if name.endswith(".json"):
            held.write(name, b"broken")
    assert held.location.delete_unreferenced("app", "store", now_ms=NOW_MS) == []
    assert held.files() == before


def test_secrets_of_a_url_are_not_shown() -> None:
    pytest.importorskip("fsspec")
    location = SnapshotLocation("memory://user:canary@states/x?token=canary")
    assert "canary" not in repr(location)
    assert "states/x" in repr(location)


def test_a_location_that_can_not_be_opened_is_reported_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(
        SnapshotRefused, match=r"nowhere://.*@x.*install tidewheel\[spark\]"
    ) as caught:
        SnapshotLocation("nowhere://canary:canary@x")
    assert "canary" not in str(caught.value)

    def no_module(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", no_module)
    with pytest.raises(SnapshotRefused, match="No module named 'fsspec'"):
        SnapshotLocation("s3://bucket/x")
    SnapshotLocation("/some/directory")


@pytest.mark.parametrize("url", ["reference://x", "http://[bad/x", "zip://no-such-file.zip"])
def test_any_failure_of_a_file_system_refuses_the_location(url: str) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(SnapshotRefused, match="can't be opened"):
        SnapshotLocation(url)


@pytest.mark.parametrize("error", [OSError, FileNotFoundError, RuntimeError])
def test_errors_of_a_file_system_are_shown_without_secrets(error: type[Exception]) -> None:
    class Refusing:
        def open(self, *_: Any, **_options: Any) -> Any:
            raise error("403, url='https://me:canary@host/x?X-Amz-Signature=canary/a'")

    storage = RemoteStorage(Refusing(), "x", "https://host/x")
    with pytest.raises(OSError, match="403") as caught:
        storage.read("a", 9)
    assert "canary" not in "".join(traceback.format_exception(caught.value))
    assert isinstance(caught.value, FileNotFoundError) == (error is FileNotFoundError)


class _Objects:
    """fsspec object store without its bucket, whose network fails in the middle of a file."""

    async_impl = True

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def pipe_file(self, path: str, data: bytes) -> None:
        self.files[path] = data

    def put_file(self, local: str, path: str) -> None:
        self.files[path] = Path(local).read_bytes()

    def open(self, _path: str, _mode: str, *, block_size: int) -> "_Objects":
        """Small blocks, which a slow line can transfer in a minute."""
        assert block_size <= 8 << 20
        return self

    def read(self, _size: int) -> bytes:
        raise RuntimeError("connection reset")

    def close(self) -> None: ...


def test_an_object_store_has_no_folders(tmp_path: Path) -> None:
    objects = _Objects()
    place = RemoteStorage(objects, "bucket/states", "s3://bucket/states")
    place.write("manifests/1.json", b"a")
    (tmp_path / "run").write_bytes(b"b")
    place.put(tmp_path / "run", "runs/0/1.sst")
    assert objects.files == {
        "bucket/states/manifests/1.json": b"a",
        "bucket/states/runs/0/1.sst": b"b",
    }


def test_errors_in_the_middle_of_a_file_are_errors_of_the_location() -> None:
    place = RemoteStorage(_Objects(), "bucket/states", "s3://bucket/states")
    with (
        place.open("runs/0/1.sst") as file,
        pytest.raises(OSError, match=r"read runs/0/1.sst in s3://bucket/states.*connection reset"),
    ):
        file.read(10)


def test_errors_of_a_package_are_errors_of_the_location(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")

    def refuse(*_: Any, **__: Any) -> Any:
        raise builtins.RuntimeError("no credentials")

    location = SnapshotLocation("memory://states/x")
    monkeypatch.setattr(fsspec.filesystem("memory"), "ls", refuse)
    with pytest.raises(
        OSError, match=r"list app/store/manifests in memory://states/x.*credentials"
    ):
        location.newest("app", "store")


def test_only_its_user_can_read_files_of_a_directory(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        place = open_storage(str(tmp_path / "deep" / "snapshots"))
        (tmp_path / "run").write_bytes(b"rows")
        place.write("shop/counts/manifests/one.json", b"{}")
        place.put(tmp_path / "run", "shop/counts/runs/0/one.sst")
    finally:
        os.umask(before)
    made = list((tmp_path / "deep").rglob("*"))
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in made}
    assert {name for name, mode in modes.items() if mode == 0o600} == {"one.json", "one.sst"}
    assert set(modes.values()) == {0o600, 0o700}
    assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o700
    assert place.read("shop/counts/runs/0/one.sst", 10) == b"rows"
