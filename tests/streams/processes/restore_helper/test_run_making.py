"""Orders of a helper: turns, reports, and cleanup of cancelled ones."""

from pathlib import Path
from threading import Event, Semaphore

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeChangelogReader
from tests.fakes.clock import FakeClock
from tests.integration.cluster import until
from tests.tasks.task.snapshots import take_snapshot
from tidewheel import Serdes
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.state_stores.bulk_restore.manifest import PartitionRuns, Run
from tidewheel.state_stores.bulk_restore.run_files import BuiltRuns
from tidewheel.state_stores.bulk_restore.shape import StoreShape
from tidewheel.state_stores.rocksdb.sorted_files import read_sorted_file
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.streams.processes.restore_helper.helper_messages import (
    Failed,
    FindSnapshot,
    Forget,
    MakeRuns,
    Progressed,
    Report,
    RunsCreated,
    SnapshotFound,
    decode_order,
    decode_report,
    encode,
)
from tidewheel.streams.processes.restore_helper.helper_pool import report_of
from tidewheel.streams.processes.restore_helper.run_making import FIND_S, RestoreHelper
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.restore.run_ports import RunsBuilt

SPEC = StoreSpec(
    name="s", kind=StoreKind.KEY_VALUE, key_serde=Serdes.bytes(), value_serde=Serdes.bytes()
)
LOG = "app-s-changelog"


class Bench:
    """Helper over a fake cluster."""

    def __init__(
        self,
        folder: Path,
        partitions: int = 1,
        run_bytes: int = 1 << 20,
        find_s: float = FIND_S,
        location: SnapshotLocation | None = None,
    ) -> None:
        self.broker = FakeBroker()
        self.broker.create_topic(LOG, partitions)
        self.clock = FakeClock()
        self.folder = folder
        self.said: list[Report] = []
        self.helper = RestoreHelper(
            "app",
            make_reader=lambda: FakeChangelogReader(self.broker),
            location=lambda: location or SnapshotLocation(str(folder / "snapshots")),
            send=self.said.append,
            clock=self.clock,
            run_bytes=run_bytes,
            find_s=find_s,
        )

    def fill(self, records: int, partition: int = 0) -> None:
        """Write records, every third a delete of the previous one."""
        for number in range(records):
            key = b"%06d" % (number - (number % 3 == 2))
            value = None if number % 3 == 2 else b"v" * 50
            self.broker.send(LOG, value, key, timestamp=1, partition=partition)

    def order(
        self,
        number: int,
        to_offset: int,
        *,
        partition: int = 0,
        urgent: bool = True,
        snapshot: PartitionRuns | None = None,
        from_offset: int = 0,
    ) -> None:
        made = MakeRuns(
            number=number,
            shape=StoreShape.of(SPEC),
            topic=LOG,
            partition=partition,
            snapshot=snapshot,
            from_offset=from_offset,
            to_offset=to_offset,
            complete_from_zero=from_offset == 0,
            urgent=urgent,
            directory=str(self.folder / str(number)),
        )
        self.helper.accept(decode_order(encode(made)))

    def work(self, steps: int = 1_000) -> list[Report]:
        """Run the helper until idle; return its decoded reports."""
        before = len(self.said)
        while steps and not self.helper.is_idle:
            self.helper.step()
            steps -= 1
        return [decode_report(encode(each)) for each in self.said[before:]]


def rows(runs: BuiltRuns) -> dict[bytes, bytes | None]:
    content: dict[bytes, bytes | None] = {}
    for file in runs.files:
        content.update(read_sorted_file(file.path))
    return content


def test_a_range_becomes_runs_up_to_its_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.fill(30)
    bench.order(1, 12)
    (made,) = bench.work()
    assert isinstance(made, RunsCreated)
    report = report_of(made)
    assert isinstance(report, RunsBuilt)
    assert report.records == 12
    assert sorted(rows(report.runs)) == [b"%06d" % number for number in (0, 3, 6, 9)]


def test_a_range_larger_than_its_memory_becomes_a_limited_number_of_runs(tmp_path: Path) -> None:
    bench = Bench(tmp_path, run_bytes=1_000)
    bench.helper._make_reader = lambda: Slow(bench.broker)
    bench.fill(600)
    bench.order(1, 600)
    (made,) = bench.work()
    assert isinstance(made, RunsCreated)
    assert 1 < len(made.files) <= 16
    report = report_of(made)
    assert isinstance(report, RunsBuilt)
    assert sum(value is not None for value in rows(report.runs).values()) == 200


class Slow(FakeChangelogReader):
    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]:
        return super().poll(min(max_records, 7), timeout_s)


def test_records_that_are_read_override_the_snapshot(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.fill(9)
    snapshot = take_snapshot(bench.broker, bench.clock, SPEC, tmp_path / "snapshots", "app")
    bench.helper.accept(FindSnapshot(number=7, store="s", topic_id=bytes(16)))
    bench.helper._searchers.shutdown(wait=True)
    assert bench.said == [SnapshotFound(number=7, snapshot=snapshot)]
    bench = Bench(tmp_path)
    bench.fill(9)
    bench.broker.send(LOG, None, b"%06d" % 0, timestamp=1, partition=0)
    bench.order(1, 10, from_offset=9, snapshot=snapshot.partition(0))
    (*_, made) = bench.work()
    assert isinstance(made, RunsCreated)
    assert [(each.run.from_offset, each.run.to_offset) for each in made.files] == [(0, 9), (9, 10)]
    assert made.records == 4
    report = report_of(made)
    assert isinstance(report, RunsBuilt)
    assert rows(report.runs)[b"%06d" % 0] is None


def test_a_missing_file_is_an_error_of_the_snapshot(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.fill(9)
    snapshot = take_snapshot(bench.broker, bench.clock, SPEC, tmp_path / "snapshots", "app")
    for file in (tmp_path / "snapshots").rglob("*.sst"):
        file.unlink()
    bench.order(1, 9, from_offset=9, snapshot=snapshot.partition(0))
    (*_, failed) = bench.work()
    assert isinstance(failed, Failed)
    assert failed.snapshot
    assert "gone" in failed.reason


class SlowLocation(SnapshotLocation):
    """Location whose files arrive in two parts, on request, and never completely."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sends = Semaphore(0)
        self.sent = Semaphore(0)

    def download(self, run: Run, to_dir: Path) -> Path:
        path = to_dir / f"{run.partition}-slow.sst"
        for size in (1, 2):
            self.sends.acquire()
            path.write_bytes(b"x" * size)
            self.sent.release()
        self.sends.acquire()
        raise OSError("nobody waits for it any more")


def test_a_slow_download_is_awaited_while_files_arrive(tmp_path: Path) -> None:
    location = SlowLocation(str(tmp_path / "snapshots"))
    bench = Bench(tmp_path, location=location)
    bench.fill(9)
    snapshot = take_snapshot(bench.broker, bench.clock, SPEC, tmp_path / "snapshots", "app")
    bench.order(1, 9, from_offset=9, snapshot=snapshot.partition(0))
    bench.clock.advance(121_000)  # while idle
    bench.work(steps=2)
    for _ in range(2):
        bench.clock.advance(121_000)
        location.sends.release()
        assert location.sent.acquire(timeout=10)
        assert not any(isinstance(each, Failed) for each in bench.work(steps=3))
    bench.clock.advance(121_000)
    failed = bench.work(steps=3)[-1]
    assert isinstance(failed, Failed)
    assert failed.snapshot
    assert "sent nothing for 120 s" in failed.reason
    location.sends.release()
    bench.helper._downloaders.shutdown(wait=True)


def test_a_hanging_download_is_abandoned_although_others_start_to_wait(tmp_path: Path) -> None:
    location = SlowLocation(str(tmp_path / "snapshots"))
    bench = Bench(tmp_path, partitions=2, location=location)
    for partition in (0, 1):
        bench.fill(9, partition)
    snapshot = take_snapshot(bench.broker, bench.clock, SPEC, tmp_path / "snapshots", "app")
    bench.order(1, 9, from_offset=9, snapshot=snapshot.partition(0))
    bench.work(steps=2)
    bench.clock.advance(100_000)
    bench.order(2, 9, partition=1, from_offset=9, snapshot=snapshot.partition(1))
    assert not any(isinstance(each, Failed) for each in bench.work(steps=2))
    bench.clock.advance(21_000)
    assert {each.number for each in bench.work(steps=3) if isinstance(each, Failed)} == {1, 2}
    for _ in range(6):
        location.sends.release()
    bench.helper._downloaders.shutdown(wait=True)


def test_snapshots_are_searched_during_downloads(tmp_path: Path) -> None:
    location = SlowLocation(str(tmp_path / "snapshots"))
    bench = Bench(tmp_path, partitions=5, location=location)
    for partition in range(5):
        bench.fill(9, partition)
    snapshot = take_snapshot(bench.broker, bench.clock, SPEC, tmp_path / "snapshots", "app")
    for partition in range(5):
        part = snapshot.partition(partition)
        bench.order(partition, 9, partition=partition, from_offset=9, snapshot=part)
    bench.work(steps=2)
    bench.helper.accept(FindSnapshot(number=7, store="s", topic_id=bytes(16)))
    until(lambda: SnapshotFound(number=7, snapshot=snapshot) in bench.said, "it is found")
    for _ in range(15):
        location.sends.release()
    bench.helper._downloaders.shutdown(wait=True)


def test_a_location_that_can_not_be_read_has_no_snapshot(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "snapshots").write_text("no directory")
    bench.helper.accept(FindSnapshot(number=7, store="s", topic_id=bytes(16)))
    bench.helper._searchers.shutdown(wait=True)
    assert bench.said == [SnapshotFound(number=7, snapshot=None)]


def test_a_location_that_does_not_answer_has_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path, find_s=0.1)
    answers = Event()
    monkeypatch.setattr(SnapshotLocation, "newest", lambda *_: answers.wait(60) and None)
    try:
        bench.helper.accept(FindSnapshot(number=7, store="s", topic_id=bytes(16)))
        until(lambda: bench.said, "it is answered")
        assert bench.said == [SnapshotFound(number=7, snapshot=None)]
        assert "has not answered" in caplog.text
    finally:
        answers.set()
        bench.helper._searchers.shutdown(wait=True)


def test_a_truncated_log_is_reported(tmp_path: Path) -> None:
    bench = Bench(tmp_path, partitions=2)
    for partition in (0, 1):
        bench.fill(9, partition)
    log = bench.broker.log_of(TopicPartition(LOG, 0))
    assert log is not None
    log.start = 5
    bench.order(1, 9)
    bench.order(2, 9, partition=1)
    said = {report.number: report for report in bench.work()}
    assert isinstance(said[1], Failed)
    assert "offset 0" in said[1].reason
    assert isinstance(said[2], RunsCreated)


def test_a_range_without_progress_is_abandoned(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.fill(3)
    bench.order(1, 10)
    bench.work(steps=3)
    bench.clock.advance(61_000)
    said = bench.work()
    assert isinstance(said[-1], Failed)
    assert "offset 3" in said[-1].reason
    assert "no record arrived" in said[-1].reason


def test_progress_is_reported_at_intervals(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.fill(3)
    bench.order(1, 10)
    for _ in range(5):
        bench.helper.step()
        bench.clock.advance(200)
    told = [each for each in bench.said if isinstance(each, Progressed)]
    assert 1 < len(told) < 5
    assert (told[-1].position, told[-1].records) == (3, 3)


def test_a_forgotten_order_leaves_no_files(tmp_path: Path) -> None:
    bench = Bench(tmp_path, partitions=4)
    for number in range(4):
        bench.order(number, 10, partition=number)
    bench.helper.step()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0", "1"]
    for number in range(4):
        bench.helper.accept(Forget(number=number))
    assert bench.helper.is_idle
    assert list(tmp_path.iterdir()) == []
    assert bench.work() == []


@pytest.mark.parametrize("copies_first", [False, True])
def test_copies_wait_for_active_tasks_and_do_not_starve(
    tmp_path: Path, *, copies_first: bool
) -> None:
    bench = Bench(tmp_path, partitions=20)
    for number in sorted(range(20), reverse=copies_first):
        bench.fill(1, number)
        bench.order(number, 1, partition=number, urgent=number < 15)
    done = [report.number for report in bench.work() if isinstance(report, RunsCreated)]
    assert len(done) == 20
    turns = [number >= 15 for number in done]
    assert 2 <= sum(turns[:12]) <= 3
    assert not any(turns[:3])


def test_one_partition_is_read_for_one_order_at_a_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.fill(9)
    bench.order(1, 9)
    bench.order(2, 6)
    made = bench.work()
    assert [(each.number, each.records) for each in made if isinstance(each, RunsCreated)] == [
        (1, 9),
        (2, 6),
    ]
