"""Parquet files and an Iceberg table: readers poll while workers are killed."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
from pyiceberg.catalog import load_catalog

from tests.faults.conftest import MakeRun
from tests.faults.fault_run import FaultRun

pytestmark = [pytest.mark.timeout(900), pytest.mark.broker, pytest.mark.slow]

pa: Any = import_module("pyarrow")
pq: Any = import_module("pyarrow.parquet")

KILLS: Final = 6
RATE: Final = 500


class Reader(threading.Thread):
    """Reads everything again and again; keeps the first contradiction."""

    def __init__(self, read: Callable[[], list[tuple[str, int]]]) -> None:
        super().__init__(daemon=True)
        self._read = read
        self._ended = threading.Event()
        self.polls = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        before: set[str] = set()
        try:
            while not self._ended.is_set():
                ids = [name for name, _ in self._read()]
                assert len(set(ids)) == len(ids), "a row is there twice"
                assert before <= set(ids), "a row is gone again"
                before = set(ids)
                self.polls += 1
                self._ended.wait(0.05)
        except BaseException as error:  # noqa: BLE001 - raised by `stop`
            self.error = error

    def stop(self) -> None:
        self._ended.set()
        self.join(120)
        if self.error is not None:
            raise self.error


def kill_at_random(run: FaultRun) -> None:
    run.feed._make = lambda number: (b"row-%08d" % number, b"%d" % number)
    run.begin(("a", "b"))
    chance = random.Random(36)
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.2, 1.5))  # kills strike anywhere
        name = chance.choice(sorted(run.workers))
        run.kill(name)
        run.start(name)
        run.until_progress()


def check_each_once(
    run: FaultRun, reader: Reader, read: Callable[[], list[tuple[str, int]]]
) -> int:
    run.feed.stop()
    run.until(run._is_consumed, "everything is flushed and committed")
    run.stop()
    reader.stop()
    assert reader.polls > 0
    assert sorted(read()) == sorted((key.decode(), int(value)) for key, value in run.feed.records)
    return len(run.feed.records)


@pytest.fixture
def reading() -> Iterator[Callable[..., Reader]]:
    readers: list[Reader] = []

    def start(read: Callable[[], list[tuple[str, int]]]) -> Reader:
        readers.append(Reader(read))
        readers[-1].start()
        return readers[-1]

    yield start
    for reader in readers:
        reader._ended.set()
        reader.join(120)


@pytest.mark.fault("SINK-FILES")
def test_parquet_readers_see_whole_flushes_and_no_offset_twice(
    make_run: MakeRun,
    tmp_path: Path,
    reading: Callable[..., Reader],
    record_property: Callable[..., None],
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()

    def read() -> list[tuple[str, int]]:
        rows: list[tuple[str, int]] = []
        for path in folder.glob("*.parquet"):
            table = pq.read_table(path)
            *_, first, last = path.stem.split("-")
            offsets = table["_offset"].to_pylist()
            # The feed has no transaction markers, and no record is filtered.
            assert offsets == list(range(int(first), int(last) + 1)), "a file is a whole flush"
            rows += zip(table["id"].to_pylist(), table["value"].to_pylist(), strict=True)
        return rows

    target = json.dumps({"kind": "parquet", "url": str(folder)})
    run = make_run(job="write_outside", target=target, rate=RATE)
    reader = reading(read)
    kill_at_random(run)
    record_property("records", check_each_once(run, reader, read))
    record_property("times", KILLS)


@pytest.mark.fault("SINK-FILES")
@pytest.mark.nightly("TIDEWHEEL_FAULTS")
def test_iceberg_readers_see_whole_flushes_and_no_row_twice(
    make_run: MakeRun,
    tmp_path: Path,
    reading: Callable[..., Reader],
    record_property: Callable[..., None],
) -> None:
    properties: dict[str, Any] = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("shop")
    catalog.create_table("shop.rows", pa.schema([("id", pa.string()), ("value", pa.int64())]))

    def read() -> list[tuple[str, int]]:
        table = catalog.load_table("shop.rows").scan().to_arrow()
        return list(zip(table["id"].to_pylist(), table["value"].to_pylist(), strict=True))

    target = json.dumps({"kind": "iceberg", "table": "shop.rows", "properties": properties})
    run = make_run(job="write_outside", target=target, rate=RATE)
    reader = reading(read)
    kill_at_random(run)
    record_property("records", check_each_once(run, reader, read))
    record_property("times", KILLS)
