"""Restores of shards from changelogs, runs and snapshots have their own rows only."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.broker import FakeBroker
from tests.fakes.clock import FakeClock
from tests.fakes.run_maker import LocalRunMaker
from tests.tasks.loop.bench import APP, Bench
from tests.tasks.restore.test_run_restores import snapshot, spec_of, use_runs
from tests.tasks.task.snapshots import take_snapshot
from tests.tasks.task.test_shards import RECORDS, Sent, by_key, counts, send, sessions, windows
from tidewheel import Serdes, Topology
from tidewheel.rebalance.model import Shard, ShardInput, TaskId, TopicPartition
from tidewheel.state_stores.buffers.timed_buffer import read_store_time
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.tasks.key_ranges.key_ranges import shard_of
from tidewheel.tasks.key_ranges.keyed_analysis import with_shards
from tidewheel.tasks.restore.run_ports import RunOrder, RunReport, RunsBuilt
from tidewheel.tasks.task.state_manager import StateManager, StateSettings

OF = 4
SHARDS = [TaskId(0, 0, shard) for shard in Shard.all_of(OF)]
CHANGELOG = "app-store-changelog"
KEYS = 2_000
DAY_MS = 86_400_000
#: Largest part of a partition's rows that one of four shards may write.
PART_MAX = 0.3

#: By life of a worker: records sent before it, shards that it runs, step at which it crashes (0:
#: none), whether the disk is lost before it, and whether a snapshot is taken before it.
LIVES = st.lists(
    st.tuples(
        st.integers(0, 15),
        st.sets(st.integers(0, OF - 1)),
        st.integers(0, 25),
        st.booleans(),
        st.booleans(),
    ),
    max_size=6,
)


def sharded(program: Callable[[], Topology]) -> Bench:
    bench = Bench(program(), {"in": 1, "out": 1})
    bench.plan = with_shards(bench.plan, OF, None)
    return bench


@pytest.mark.parametrize("program", [counts, windows, sessions])
@settings(max_examples=25, deadline=None)
@given(records=RECORDS, lives=LIVES, snapshots=st.booleans())
def test_K8_shards_restored_by_runs_and_snapshots_equal_the_whole_task(
    program: Callable[[], Topology],
    records: list[Sent],
    lives: list[tuple[int, set[int], int, bool, bool]],
    snapshots: bool,
) -> None:
    """A snapshot has rows of shards that are ahead; by their time no row of a slow one expires."""
    whole, bench = Bench(program(), {"in": 1, "out": 1}), sharded(program)
    send(whole, records, ["in"])
    assert whole.live()
    left = list(records)
    with TemporaryDirectory() as folder:
        maker = use_runs(bench, Path(folder), snapshots=snapshots)
        for count, numbers, crash_after, loses_disk, has_snapshot in [
            *lives,
            (len(records), set(range(OF)), 0, True, True),
        ]:
            now, left = left[:count], left[count:]
            send(bench, now, ["in"])
            if loses_disk:
                bench.disk.versions.clear()
            if has_snapshot and snapshots:
                snapshot(bench, Path(folder), "store")
            owned = frozenset(task for task in SHARDS if task.shard.number in numbers)
            if owned:
                assert bench.live(assigned=owned, crash_after=crash_after or None) or crash_after
        written = len(bench.broker.records(CHANGELOG))
        bench.disk.versions.clear()
        assert bench.live(assigned=frozenset(SHARDS))
        assert not maker.open
    assert len(bench.broker.records(CHANGELOG)) == written
    assert by_key(bench) == by_key(whole)
    assert bench.rows("store") == whole.rows("store")


@pytest.mark.parametrize("slowest_ms", [None, 0])
@pytest.mark.parametrize("has_snapshot", [False, True])
def test_rows_of_a_slow_shard_do_not_expire_by_the_time_of_a_fast_one(
    tmp_path: Path, slowest_ms: int | None, *, has_snapshot: bool
) -> None:
    """A snapshot that left out the slow shard's rows is refused; in others they keep their time."""
    slow, fast = "a", "c"
    assert [shard_of(key.encode(), OF).number for key in (slow, fast)] == [3, 0]
    bench = sharded(windows)
    send(bench, [(slow, "x", 5)], ["in"])
    assert bench.live(assigned=frozenset(SHARDS))
    send(bench, [(slow, "x", 6), (slow, "x", 7), (fast, "x", 40 * DAY_MS)], ["in"])
    assert bench.live(assigned=frozenset(SHARDS[:3]))
    use_runs(bench, tmp_path, snapshots=has_snapshot)
    if has_snapshot:
        spec = spec_of(bench, "store")
        take_snapshot(
            bench.broker, bench.clock, spec, tmp_path / "snapshots", APP, slowest_ms=slowest_ms
        )
    bench.disk.versions.clear()
    assert bench.live(assigned=frozenset(SHARDS))
    assert by_key(bench)[f"{slow}@0"] == [number.to_bytes(8, "big") for number in (1, 2, 3)]
    # Queries hide rows that are older than the store's time minus the retention.
    assert read_store_time(bench.disk.open(Path("0_0-3of4"), ["store"]), "store") == (0, 0)


def specs() -> list[StoreSpec]:
    serdes: Any = {"key_serde": Serdes.bytes(), "value_serde": Serdes.bytes()}
    return [
        StoreSpec(name="store", kind=StoreKind.KEY_VALUE, **serdes),
        StoreSpec(name="store", kind=StoreKind.TIMESTAMPED_WINDOW, retention_ms=DAY_MS, **serdes),
        StoreSpec(name="store", kind=StoreKind.SESSION, retention_ms=DAY_MS, **serdes),
    ]


def changelog_key(spec: StoreSpec, key: bytes) -> bytes:
    tail = {StoreKind.TIMESTAMPED_WINDOW: 12, StoreKind.SESSION: 16}.get(spec.kind, 0)
    return key + bytes(tail)


def record_key(spec: StoreSpec, disk_key: bytes) -> bytes:
    is_segmented = spec.kind is not StoreKind.KEY_VALUE
    return SegmentLayout.of(spec).key_of(disk_key) if is_segmented else disk_key


@pytest.mark.parametrize("spec", specs(), ids=lambda spec: spec.kind.value)
@pytest.mark.parametrize("has_snapshot", [False, True], ids=["changelog", "snapshot"])
@pytest.mark.parametrize("shard", Shard.all_of(OF), ids=str)
def test_a_shard_of_four_writes_less_than_a_third_of_the_rows(
    tmp_path: Path,
    spec: StoreSpec,
    shard: Shard,
    record_property: Callable[[str, object], None],
    *,
    has_snapshot: bool,
) -> None:
    """On RocksDB: its rows are the shard's, all of them, in gets and in iterators."""
    broker, clock = FakeBroker(), FakeClock()
    broker.create_topic(CHANGELOG, 1)
    keys = [b"key %d" % number for number in range(KEYS)]
    for key in [*keys, *keys[::3]]:
        value = None if key == keys[0] else bytes(8) + b"row of " + key
        broker.send(CHANGELOG, value, changelog_key(spec, key), timestamp=1, partition=0)
    end = KEYS + len(keys[::3])
    half = None
    if has_snapshot:
        half = take_snapshot(broker, clock, spec, tmp_path / "snapshots", APP).partition(0)
        assert half is not None
        assert half.rows == KEYS - 1
    maker = LocalRunMaker(broker, clock, APP, tmp_path / "snapshots")
    order = RunOrder(
        spec=spec,
        partition=ShardInput.of(TopicPartition(CHANGELOG, 0), shard),
        snapshot=half,
        from_offset=end if has_snapshot else 0,
        to_offset=end,
        complete_from_zero=not has_snapshot,
        urgent=True,
        directory=tmp_path / "runs",
    )
    reports: list[RunReport] = []
    maker.make(order, reports.append)
    (built,) = reports
    assert isinstance(built, RunsBuilt)
    written = sum(file.run.rows for file in built.runs.files)
    record_property("rows", f"{written} of {KEYS - 1}")
    assert written <= PART_MAX * KEYS

    path = tmp_path / "0_0"
    options = RocksDBOptions()
    resources = SharedResources.create(options)
    stores = StateManager(
        TaskId(0, 0, shard),
        (spec,),
        StateSettings(application_id=APP, cache_enabled=False, read_cache_bytes_per_store=0),
        open_persistent=lambda families: TaskDatabase.open(path, families, options, resources),
        open_in_memory=InMemoryDatabase,
        now=clock.now_ms,
    )
    stores.topic_ids[CHANGELOG] = bytes(16)
    stores.open()
    stores.ingest("store", built.runs, offset=end, caught_up_at_ms=0, from_nothing=True)
    database = stores.database("store")
    rows = [key for key, _ in database.iterate("store", None, None)]
    own = {key for key in keys[1:] if shard_of(key, OF) == shard}
    assert {record_key(spec, key) for key in rows} == own
    assert len(rows) == written == len(own)
    foreign = [key for key in keys if key not in own]
    if spec.kind is StoreKind.KEY_VALUE:
        assert database.get_many("store", foreign) == [None] * len(foreign)
    stores.close()
