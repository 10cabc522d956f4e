"""Published snapshots that are torn, foreign or forged: a worker restores from the changelog."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from rocksdict import Rdict

from tests.integration.cluster import Cluster, until
from tests.integration.conftest import StartApp
from tests.integration.outcome import wait_for_counts
from tests.integration.programs.jobs import JOBS, STORE
from tests.integration.test_restore_in_bulk import forget_state, take_snapshot
from tidewheel import StateStoreError
from tidewheel.state_stores.errors import StoreCorruptedError
from tidewheel.state_stores.rocksdb.sorted_files import _options, bounds_of

pytestmark = pytest.mark.nightly("TIDEWHEEL_FAULTS")

_KEYS: Final = 400
_PARTITIONS: Final = 2


class Published:
    """A snapshot that can be forged: `seal` makes the manifest's checksum right again."""

    def __init__(self, location: Path) -> None:
        self.location = location
        (self.path,) = location.rglob("manifests/*.json")
        self.manifest: dict[str, Any] = json.loads(self.path.read_bytes())["snapshot"]
        self.files = sorted(location.rglob("*.sst"))

    def seal(self) -> None:
        body = json.dumps(self.manifest)
        digest = hashlib.sha256(body.encode()).hexdigest()
        text = f'{{"tidewheel_snapshot":1,"sha256":"{digest}","snapshot":{body}}}'
        self.path.write_text(text, encoding="utf-8")

    def runs(self) -> list[dict[str, Any]]:
        return [run for part in self.manifest["partitions"] for run in part["runs"]]

    def change_runs(self, **values: object) -> None:
        for run in self.runs():
            run.update(values)
        self.seal()

    def change(self, **values: object) -> None:
        self.manifest.update(values)
        self.seal()

    def describe_files(self) -> None:
        """Make size, checksum and bounds those of the present files; keep unreadable bounds."""
        for run in self.runs():
            path = self.location / run["file"]
            data = path.read_bytes()
            run.update(file_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            with suppress(StoreCorruptedError):
                first, last = (msgspec.to_builtins(bound) for bound in bounds_of(path))
                run.update(first_key=first, last_key=last)
        self.seal()


def _replace_manifest(place: Callable[[Path, Path], object]) -> Callable[[Published], None]:
    def replace(published: Published) -> None:
        _move(published.path, published.location / "aside.json", place)

    return replace


def _replace_files(place: Callable[[Path, Path], object]) -> Callable[[Published], None]:
    def replace(published: Published) -> None:
        for number, file in enumerate(published.files):
            _move(file, published.location / f"aside-{number}.sst", place)

    return replace


def _move(path: Path, aside: Path, place: Callable[[Path, Path], object]) -> None:
    path.rename(aside)
    place(path, aside)


def _edit_manifest(edit: Callable[[bytes], bytes]) -> Callable[[Published], None]:
    def write(published: Published) -> None:
        published.path.write_bytes(edit(published.path.read_bytes()))

    return write


def _go_upwards(published: Published) -> None:
    for number, run in enumerate(published.runs()):
        name = f"outside-{number}.sst"
        shutil.copy(published.location / run["file"], published.location.with_name(name))
        run["file"] = f"{run['file'].rpartition('/')[0]}/../../../../../{name}"
    published.seal()


def _swap(published: Published) -> None:
    one, other = (file.read_bytes() for file in published.files)
    for file, data in zip(published.files, (other, one), strict=True):
        file.write_bytes(data)


def _truncate(published: Published) -> None:
    for file in published.files:
        os.truncate(file, file.stat().st_size - 100)


def _list_a_run_twice(published: Published) -> None:
    for part in published.manifest["partitions"]:
        (run,) = part["runs"]
        part["runs"] = [run, {**run, "from_offset": run["to_offset"]}]
    published.seal()


def _damage_a_block(published: Published) -> None:
    for file in published.files:
        data = bytearray(file.read_bytes())
        middle = len(data) // 3
        data[middle : middle + 64] = b"\xff" * 64
        file.write_bytes(data)
    published.describe_files()


def _replace_by_tables_of_a_database(published: Published) -> None:
    """RocksDB ingests no file of a database, though it has the format of ours."""
    for number, file in enumerate(published.files):
        options = _options()
        options.create_if_missing(True)
        folder = published.location / f"database-{number}"
        database = Rdict(str(folder), options=options)
        for key in range(_KEYS):
            database[_key(key)] = b"forged"
        database.flush()
        database.close()
        (table,) = folder.glob("*.sst")
        shutil.copy(table, file)
    published.describe_files()


_TAMPERINGS: Final[dict[str, Callable[[Published], None]]] = {
    "manifest torn": _edit_manifest(lambda data: data[:-100]),
    "manifest empty": _edit_manifest(lambda _: b""),
    "manifest garbage": _edit_manifest(lambda _: b'{"tidewheel_snapshot":1,"a":[[[{'),
    "manifest of a later version": _edit_manifest(
        lambda data: data.replace(b'"tidewheel_snapshot":1', b'"tidewheel_snapshot":2')
    ),
    "manifest changed": _edit_manifest(lambda data: data.replace(b'"rows":', b'"rows":1')),
    "manifest is a link": _replace_manifest(lambda path, aside: path.symlink_to(aside)),
    "manifest is a pipe": _replace_manifest(lambda path, _: os.mkfifo(path)),
    "paths upwards": _go_upwards,
    "paths absolute": lambda it: it.change_runs(file="/etc/passwd"),
    "files are links": _replace_files(lambda path, aside: path.symlink_to(aside)),
    "files are pipes": _replace_files(lambda path, _: os.mkfifo(path)),
    "files are devices": _replace_files(lambda path, _: path.symlink_to("/dev/zero")),
    "files gone": _replace_files(lambda _, aside: aside.unlink()),
    "files truncated": _truncate,
    "files swapped": _swap,
    "checksum wrong": lambda it: it.change_runs(sha256="0" * 64),
    "count zero": lambda it: it.change_runs(rows=0),
    "size huge": lambda it: it.change_runs(file_bytes=1 << 50),
    "another store": lambda it: it.change(store="other"),
    "another topic": lambda it: it.change(topic="other-changelog"),
    "another topic id": lambda it: it.change(topic_id="AAAAAAAAAAAAAAAAAAAAAQ=="),
    "partitions swapped": lambda it: it.change(partitions=it.manifest["partitions"][::-1]),
    "more partitions": lambda it: it.change(partition_count=3),
    "a run twice": _list_a_run_twice,
    "a damaged block with a right checksum": _damage_a_block,
    "files that RocksDB refuses": _replace_by_tables_of_a_database,
}


def _key(number: int) -> bytes:
    return b"key-%04d" % number


@pytest.fixture
def published(
    cluster: Cluster, unique: str, config: dict[str, Any], start_app: StartApp
) -> Published:
    """Return the snapshot of an application that has counted; its state is deleted."""
    source, sink = f"in-{unique}", f"out-{unique}"
    cluster.create({source: _PARTITIONS, sink: _PARTITIONS})
    cluster.send(source, [(_key(number % _KEYS), b"x") for number in range(3 * _KEYS)])
    app = start_app(JOBS["count_by_key"](source, sink), config)
    cluster.wait_until_consumed(config["application_id"], source)
    wait_for_counts(app, STORE, 3 * _KEYS)
    assert app.close(timeout=60_000)
    location = Path(config["state_dir"]).with_name("snapshots")
    take_snapshot(cluster, config, JOBS["count_by_key"](source, sink), location)
    config["snapshot_location"] = str(location)
    forget_state(config)
    return Published(location)


def _files(folder: Path, *besides: Path) -> dict[Path, int]:
    return {
        path: path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not any(path.is_relative_to(other) for other in besides)
    }


@pytest.mark.fault("SNAPSHOT")
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(
            how, id=how, marks=[pytest.mark.fault("28")] if how.startswith("manifest") else []
        )
        for how in _TAMPERINGS
    ],
)
def test_tampered_snapshot_is_refused_and_the_changelog_read(
    published: Published,
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    _TAMPERINGS[how](published)
    state, folder = Path(config["state_dir"]), published.location.parent
    outside = _files(folder, state, published.location)
    source = f"in-{unique}"
    expected = {_key(number).decode(): 4 for number in range(_KEYS)}

    def is_counted() -> bool:
        try:
            content = dict(app.store(STORE).all())
        except StateStoreError:
            return False  # a damaged store is being restored
        return {key: row.value for key, row in content.items()} == expected

    with caplog.at_level(logging.INFO):
        app = start_app(JOBS["count_by_key"](source, f"out-{unique}"), config)
        cluster.send(source, [(_key(number), b"x") for number in range(_KEYS)])
        until(is_counted, "the state is exact")
    assert app.error is None
    # The changelog is too short for sorted runs: the updater reads it.
    assert "restoring from changelog" in caplog.text or "wiping" in caplog.text
    assert _files(folder, state, published.location) == outside
    assert not [path for path in state.rglob("restoring/**/*") if path.is_file()]


@pytest.mark.fault("SNAPSHOT")
def test_whole_snapshot_is_used(
    published: Published,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The premise of the test above."""
    published.seal()
    with caplog.at_level(logging.INFO):
        app = start_app(JOBS["count_by_key"](f"in-{unique}", f"out-{unique}"), config)
        wait_for_counts(app, STORE, 3 * _KEYS)
    assert caplog.text.count("restoring from snapshot") == _PARTITIONS
    assert "restoring from changelog" not in caplog.text
