"""Snapshots and their restores equal a replay of the changelog."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.broker import Entry, FakeBroker, StoredRecord
from tests.fakes.clients import FakeAdmin, FakeChangelogReader
from tests.state_stores.bulk_restore.logs import SPECS, STORE, Logged, logs, replayed
from tests.streams.bulk.inline import inline_driver
from tidewheel import StreamsConfig, StreamsError
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.buffers.expiry import slowest_time
from tidewheel.state_stores.buffers.timed_buffer import read_store_time
from tidewheel.state_stores.bulk_restore.content import StoredRow, stored_rows
from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.state_stores.bulk_restore.merge import newest_rows
from tidewheel.state_stores.bulk_restore.plan import plan_restore
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.streams.bulk import executors as executor_work
from tidewheel.streams.bulk.content import read_content, reading_plan
from tidewheel.streams.bulk.driver import BulkDriver, now_ms
from tidewheel.streams.bulk.snapshots import make_snapshots
from tidewheel.streams.bulk.stores import (
    BulkStore,
    changelog_facts,
    slowest_of,
    slowest_positions,
)
from tidewheel.streams.kafka.consumers.changelog import read_range
from tidewheel.tasks.kafka.ports import CommittedOffset, NewTopic
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

_TOPIC = f"app-{STORE}-changelog"
_PART = TopicPartition(_TOPIC, 0)

#: Returns a fake cluster with an empty changelog.
NewBroker = Callable[[], FakeBroker]


@pytest.fixture
def new_broker(monkeypatch: pytest.MonkeyPatch) -> NewBroker:
    def make() -> FakeBroker:
        broker = FakeBroker()
        FakeAdmin(broker).create_topics([NewTopic(name=_TOPIC, partitions=1, config={})])
        reading = partial(read_range, make_reader=lambda: FakeChangelogReader(broker))
        monkeypatch.setattr(executor_work, "read_range", reading)
        monkeypatch.setattr(executor_work, "KafkaResetAdmin", lambda _: FakeAdmin(broker))
        return broker

    return make


@pytest.fixture(scope="module")
def locations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("snapshots")
    return (root / str(number) for number in count())


def _config(location: Path) -> StreamsConfig:
    return StreamsConfig(
        application_id="app",
        bootstrap_servers="nobody:1",
        state_dir=location / "state",
        snapshot_location=str(location),
    )


def _store(spec: StoreSpec) -> BulkStore:
    return BulkStore(spec=spec, topic=_TOPIC, subtopology=0, partitions=1)


def _append(broker: FakeBroker, records: Sequence[Logged]) -> None:
    log = broker.topics[_TOPIC].logs[0]
    first = log.end
    for each in records:
        while log.end < first + each.offset:
            log.entries.append(Entry(None, None))
        stored = StoredRecord(0, log.end, each.key, each.value, each.timestamp, ())
        log.entries.append(Entry(stored, None))


def _replayed(spec: StoreSpec, broker: FakeBroker) -> list[StoredRow]:
    records, _ = broker.topics[_TOPIC].logs[0].read(0, 10_000)
    database, _ = replayed(
        spec, [Logged(each.offset, each.key, each.value, each.timestamp) for each in records]
    )
    return list(
        stored_rows(spec, database.iterate(STORE, None, None), read_store_time(database, STORE)[0])
    )


@pytest.mark.parametrize("kind", SPECS)
@given(data=st.data())
@settings(
    max_examples=10,
    suppress_health_check=(HealthCheck.function_scoped_fixture, HealthCheck.too_slow),
)
def test_snapshots_equal_replayed_state(
    new_broker: NewBroker, locations: Iterator[Path], kind: str, data: st.DataObject
) -> None:
    spec = SPECS[kind]
    broker = new_broker()
    store = _store(spec)
    location = next(locations)
    with inline_driver(_config(location), FakeAdmin(broker)) as driver:
        for _ in range(data.draw(st.integers(1, 4), "goes")):
            _append(broker, data.draw(logs(spec)))
            per_task = data.draw(st.integers(1, 20), "records per task")
            make_snapshots(driver, {STORE: store}, str(location), records_per_task=per_task)
        _append(broker, data.draw(logs(spec)))
        assert _content(driver, store, location) == _replayed(spec, broker)


def _content(driver: BulkDriver, store: BulkStore, location: Path) -> list[StoredRow]:
    """Return the rows of the newest snapshot and the tail."""
    facts = changelog_facts([store], driver.admin, now_ms())[_PART]
    made = SnapshotLocation(str(location)).newest("app", STORE)
    assert made is not None
    reading, plan = reading_plan(store, made, facts)
    assert plan.refused is None
    target = location / "content"
    target.mkdir()
    work = driver.work([store], str(location))
    return list(read_content(work, reading, target, lambda _: None).rows(store.spec))


_RECORDS = [Logged(offset, b"%d" % (offset % 7), b"%d" % offset, offset) for offset in range(20)]


def _losing(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    """Delete the log's beginning when a reader starts."""

    def make_reader() -> FakeChangelogReader:
        FakeAdmin(broker).delete_records({_PART: offset})
        return FakeChangelogReader(broker)

    monkeypatch.setattr(executor_work, "read_range", partial(read_range, make_reader=make_reader))


def test_a_truncated_log_is_read_from_its_new_start(
    new_broker: NewBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broker = new_broker()
    _append(broker, _RECORDS)
    _losing(broker, monkeypatch, 16)
    store = _store(SPECS["key-value"])
    with inline_driver(_config(tmp_path), FakeAdmin(broker)) as driver:
        make_snapshots(driver, {STORE: store}, str(tmp_path), records_per_task=5)
        found = _content(driver, store, tmp_path)
    assert [row.value for row in found] == [b"16", b"17", b"18", b"19"]


def test_a_snapshot_with_deleted_records_behind_it_is_not_extended(
    new_broker: NewBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broker = new_broker()
    _append(broker, _RECORDS)
    store = _store(SPECS["key-value"])
    with inline_driver(_config(tmp_path), FakeAdmin(broker)) as driver:
        make_snapshots(driver, {STORE: store}, str(tmp_path))
        _append(broker, _RECORDS)
        _losing(broker, monkeypatch, 30)
        with pytest.raises(StreamsError, match=r"offset 20 .*run it again"):
            make_snapshots(driver, {STORE: store}, str(tmp_path))
    made = SnapshotLocation(str(tmp_path)).newest("app", STORE)
    assert made is not None
    assert made.generation == 0


def test_broken_runs_are_rebuilt_instead_of_merged(
    new_broker: NewBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = new_broker()
    _append(broker, _RECORDS[:5])
    store = _store(SPECS["key-value"])
    with inline_driver(_config(tmp_path), FakeAdmin(broker)) as driver:
        make_snapshots(driver, {STORE: store}, str(tmp_path))
        for file in tmp_path.rglob("*.sst"):
            file.write_bytes(file.read_bytes()[:-1])
        _append(broker, _RECORDS)
        made = make_snapshots(driver, {STORE: store}, str(tmp_path), records_per_task=5)
        found = _content(driver, store, tmp_path)
    assert made.stores[STORE].generation == 1
    assert "its size is not" in caplog.text
    assert "the changelog is read in full instead" in caplog.text
    assert found == _replayed(store.spec, broker)


def test_an_unusable_location_is_an_error_with_its_url(
    new_broker: NewBroker, tmp_path: Path
) -> None:
    broker = new_broker()
    _append(broker, _RECORDS)
    (tmp_path / "file").touch()
    url = str(tmp_path / "file" / "snapshots")
    with (
        inline_driver(_config(tmp_path), FakeAdmin(broker)) as driver,
        pytest.raises(StreamsError, match=rf"{url}.* can't be used: .*check snapshot_location"),
    ):
        make_snapshots(driver, {STORE: _store(SPECS["key-value"])}, url)


def test_all_stores_are_published_if_an_old_file_can_not_be_deleted(
    new_broker: NewBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = new_broker()
    _append(broker, _RECORDS)
    store = _store(SPECS["key-value"])
    stuck = tmp_path / "app" / STORE / "manifests" / f"{0:010}-{'0' * 16}.json"
    with inline_driver(_config(tmp_path), FakeAdmin(broker)) as driver:
        make_snapshots(driver, {STORE: store}, str(tmp_path))
        stuck.mkdir()  # an old file that can't be deleted
        made = make_snapshots(driver, {STORE: store}, str(tmp_path))
    assert made.stores[STORE].generation == 1
    assert "can't be deleted" in caplog.text


def test_a_topic_recreated_during_a_snapshot_is_detected(
    new_broker: NewBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broker = new_broker()
    _append(broker, _RECORDS)
    store = _store(SPECS["key-value"])

    def make_reader() -> FakeChangelogReader:
        broker.topics[_TOPIC].topic_id = bytes(15) + b"x"
        return FakeChangelogReader(broker)

    monkeypatch.setattr(executor_work, "read_range", partial(read_range, make_reader=make_reader))
    with (
        inline_driver(_config(tmp_path), FakeAdmin(broker)) as driver,
        pytest.raises(StreamsError, match=f"changelog {_TOPIC} was deleted or recreated"),
    ):
        make_snapshots(driver, {STORE: store}, str(tmp_path))
    assert SnapshotLocation(str(tmp_path)).newest("app", STORE) is None


_INPUT = TopicPartition("in", 0)
_HASH = b"topology"
_HOUR_MS = 3_600_000


def _commit(broker: FakeBroker, slowest: int, fastest: int, position_ms: int) -> None:
    """Commit the positions of two key ranges, and the slower one's time."""
    progress = Progress(
        task_epoch=1,
        transactional_id="app-1",
        topic_id=bytes(16),
        topology_hash=_HASH,
        vector=Vector((0, 1 << 31), (slowest, fastest)),
        operator_times_ms=(position_ms, -1),
    )
    broker.groups["app"][_INPUT] = CommittedOffset(slowest, progress.encode())


def test_a_snapshot_has_the_rows_of_the_slowest_shard(
    new_broker: NewBroker, tmp_path: Path
) -> None:
    broker = new_broker()
    spec = replace(SPECS["window"], window_size_ms=60_000)
    inputs = (frozenset({_INPUT}),)
    store = replace(_store(spec), inputs=inputs, topology_hash=_HASH, shards=2)

    def slowest() -> int | None:
        positions = slowest_positions([store], driver.admin, "app")
        assert set(positions) == set(store.tasks(0))
        return slowest_of(positions, store.tasks(0))

    with inline_driver(_config(tmp_path), FakeAdmin(broker)) as driver:
        for number, hours in ((0, 3), (1, 2)):
            # The whole task's group doesn't count, and neither does a tiling of another count.
            _commit(broker, 5, 5, hours * _HOUR_MS)
            broker.groups[f"app~{number}of2"][_INPUT] = broker.groups["app"][_INPUT]
            _commit(broker, 5, 5, _HOUR_MS)
            broker.groups["app~1of4"][_INPUT] = broker.groups["app"][_INPUT]
            assert slowest() == (-1 if number == 0 else 2 * _HOUR_MS)


def test_K3_a_snapshot_has_the_rows_of_the_slowest_key_range(
    new_broker: NewBroker, tmp_path: Path
) -> None:
    broker = new_broker()
    spec = replace(SPECS["window"], window_size_ms=60_000)
    layout = SegmentLayout.of(spec)
    store = replace(_store(spec), inputs=(frozenset({_INPUT}),), topology_hash=_HASH)

    def append(*hours: int) -> None:
        rows = [layout.window_key(b"k", hour * _HOUR_MS)[8:] for hour in hours]
        _append(broker, [Logged(number, row, b"v", 1) for number, row in enumerate(rows)])

    def taken(position_ms: int | None) -> tuple[list[int], bool]:
        """Return the hours of a new snapshot's rows, and true if it fits the slowest range."""
        if position_ms is not None:
            _commit(broker, 1, 9, position_ms)
        made = make_snapshots(driver, {STORE: store}, str(tmp_path)).stores[STORE]
        runs = made.partition(0)
        assert runs is not None
        place = SnapshotLocation(str(tmp_path))
        with TemporaryDirectory() as folder:
            rows = newest_rows(executor_work.fetched(place, runs.runs, Path(folder)))
            hours = [layout.time_of(key) // _HOUR_MS for key, _ in rows]
        (position,) = slowest_positions([store], driver.admin, "app").values()
        slowest_ms = slowest_time(spec, position)
        facts = changelog_facts([store], driver.admin, now_ms())[_PART]
        plan = plan_restore(None, made, spec, facts, slowest_ms=slowest_ms)
        return hours, plan.snapshot is not None

    with inline_driver(_config(tmp_path), FakeAdmin(broker)) as driver:
        append(1, 2, 50)
        assert taken(_HOUR_MS) == ([1, 2, 50], True)
        append(51)
        assert taken(2 * _HOUR_MS) == ([1, 2, 50, 51], True)
        append(52)
        _commit(broker, 9, 9, 52 * _HOUR_MS)
        assert taken(None) == ([1, 2, 50, 51, 52], True), "no kept run is built again"
        _commit(broker, 9, 12, 2 * _HOUR_MS)
        (position,) = slowest_positions([store], driver.admin, "app").values()
        made = SnapshotLocation(str(tmp_path)).newest("app", STORE)
        facts = changelog_facts([store], driver.admin, now_ms())[_PART]
        plan = plan_restore(None, made, spec, facts, slowest_ms=slowest_time(spec, position))
        assert plan.snapshot is None, "it was made when all were level, later than this range is"
