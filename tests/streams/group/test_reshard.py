"""Plan and execution of a change of the number of shards, on fakes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeAdmin, FakeTransactionalProducer
from tests.tasks.loop.bench import APP, Bench
from tidewheel import Processor, Record, StreamsBuilder, StreamsConfig, StreamsError, Topology
from tidewheel.rebalance.model import Shard, TopicPartition
from tidewheel.streams.group.reset import ResetFacts, gather_facts, scope_of
from tidewheel.streams.group.reshard import ReshardPlan, execute_reshard, plan_reshard
from tidewheel.tasks.errors import StartRefusedError
from tidewheel.tasks.kafka.internal_topics import offsets_group
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.kafka.shard_inputs import all_committed
from tidewheel.tasks.key_ranges.keyed_analysis import with_shards
from tidewheel.tasks.key_ranges.progress_vector import Progress

AT = TopicPartition("in", 0)
KEYS = [f"key {number}" for number in range(10)]


class _Admin(FakeAdmin):
    @staticmethod
    def fixed_workers(application_id: str) -> dict[str, str]:
        assert application_id == APP
        return {}

    @staticmethod
    def offsets_at(partitions: Any, timestamp_ms: int) -> dict[TopicPartition, int]:
        raise AssertionError((partitions, timestamp_ms))


def _counts() -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key_serde=str, value_serde=str).group_by_key()
    grouped.count(store="store").to_stream().to("out")
    return builder.build()


class _Free(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)


def _counts_and_others() -> Topology:
    """Return a topology of which one half can have shards."""
    builder = StreamsBuilder()
    text: Any = {"key_serde": str, "value_serde": str}
    builder.stream("in", **text).group_by_key().count(store="store").to_stream().to("out")
    builder.stream("other", **text).process(_Free).to("out", **text)
    return builder.build()


@pytest.fixture
def bench() -> Bench:
    return Bench(_counts(), {"in": 1, "out": 1})


def _send(bench: Bench) -> None:
    for key in KEYS:
        bench.send("in", key, "x")


def _run(bench: Bench, count: int, numbers: Callable[[int], bool] = lambda _: True) -> None:
    whole = bench.plan
    bench.plan = with_shards(whole, count, None)
    tasks = frozenset(task for task in bench.plan.tasks if numbers(task.shard.number))
    try:
        assert bench.live(assigned=tasks)
    finally:
        bench.plan = whole


def _facts(bench: Bench, count: int, folder: Path) -> ResetFacts:
    config = StreamsConfig(
        application_id=APP, bootstrap_servers="unused:9092", partition_shards=count
    )
    return gather_facts(scope_of(APP, _counts(), config), _Admin(bench.broker), folder, "latest")


def _plan(bench: Bench, count: int, folder: Path) -> ReshardPlan:
    return plan_reshard(APP, with_shards(bench.plan, count, None), _facts(bench, count, folder))


def _execute(plan: ReshardPlan, broker: FakeBroker, folder: Path) -> None:
    execute_reshard(
        plan, FakeAdmin(broker), folder, lambda name: FakeTransactionalProducer(broker, name)
    )


def test_K8_an_application_goes_on_with_other_numbers_of_shards(
    bench: Bench, tmp_path: Path
) -> None:
    for turn, count in enumerate((1, 4, 2, 8, 1), 1):
        plan = _plan(bench, count, tmp_path)
        assert plan.refusals == ()
        assert len(plan.changes) == (turn > 1)
        _execute(plan, bench.broker, tmp_path)
        _send(bench)
        _run(bench, count)
        groups = {name for name, offsets in bench.broker.groups.items() if offsets}
        assert groups == {APP, *(offsets_group(APP, shard) for shard in Shard.all_of(count))}
    counts = dict.fromkeys(KEYS, b"")
    for key, value in bench.outputs("out"):
        assert key is not None
        assert value is not None
        counts[key] += value[-1:]
    assert counts == dict.fromkeys(KEYS, bytes((1, 2, 3, 4, 5)))


def test_a_command_that_ended_after_its_transaction_deletes_the_old_groups(
    bench: Bench, tmp_path: Path
) -> None:
    _send(bench)
    _run(bench, 4)
    plan = _plan(bench, 2, tmp_path)
    kept = {
        name: dict(offsets) for name, offsets in bench.broker.groups.items() if name in plan.groups
    }
    _execute(plan, bench.broker, tmp_path)
    bench.broker.groups.update(kept)
    with pytest.raises(StartRefusedError, match="partition_shards=2"):
        _run(bench, 4)
    again = _plan(bench, 2, tmp_path)
    assert again.changes == ()
    assert again.groups == plan.groups
    _execute(again, bench.broker, tmp_path)
    assert _plan(bench, 2, tmp_path).is_empty
    _run(bench, 2)
    assert len(bench.outputs("out")) == len(KEYS)


def test_K8_whole_tasks_go_on_where_others_get_shards(tmp_path: Path) -> None:
    """The group's log begins again: a commit with one of its epochs would hold the group."""
    topology = _counts_and_others()
    bench = Bench(topology, {"in": 1, "other": 1, "out": 1})
    _send(bench)
    bench.send("other", "a", "x")
    _run(bench, 1)
    offsets = bench.broker.groups[APP]
    other = TopicPartition("other", 0)
    for at, (offset, metadata) in list(offsets.items()):
        progress = Progress.decode(metadata, committed_offset=offset)
        assert progress is not None
        later = msgspec.structs.replace(progress, task_epoch=7)
        offsets[at] = CommittedOffset(offset, later.encode())
    config = StreamsConfig(application_id=APP, bootstrap_servers="unused:9092", partition_shards=4)
    scope = scope_of(APP, topology, config)
    facts = gather_facts(scope, _Admin(bench.broker), tmp_path, "latest")
    plan = plan_reshard(APP, with_shards(bench.plan, 4, None), facts)
    assert [change.partition for change in plan.changes] == [AT]
    _execute(plan, bench.broker, tmp_path)
    committed = all_committed(FakeAdmin(bench.broker), APP)
    assert len(committed) == 4 + 1 + 1
    epochs = [
        Progress.decode(metadata, committed_offset=offset)
        for offset, metadata in committed.values()
    ]
    assert [progress and progress.task_epoch for progress in epochs] == [0] * len(epochs)
    assert committed[other].offset == 1
    bench.send("other", "a", "x")
    _run(bench, 4)
    assert bench.broker.groups[APP][other].offset == 2


def test_nothing_moves_before_all_shards_have_committed(bench: Bench, tmp_path: Path) -> None:
    _send(bench)
    _run(bench, 4, lambda number: number < 2)
    plan = _plan(bench, 2, tmp_path)
    assert len(plan.refusals) == 1
    assert "partition_shards=4" in plan.refusals[0]
    before = {name: dict(offsets) for name, offsets in bench.broker.groups.items()}
    with pytest.raises(StreamsError):
        _execute(plan, bench.broker, tmp_path)
    assert {name: dict(offsets) for name, offsets in bench.broker.groups.items()} == before


@pytest.mark.parametrize("damage", ["lost", "foreign"])
def test_a_lost_or_foreign_offset_is_refused(bench: Bench, tmp_path: Path, damage: str) -> None:
    _send(bench)
    _run(bench, 4)
    offsets = bench.broker.groups[offsets_group(APP, Shard(2, 4))]
    if damage == "lost":
        del offsets[AT]
    else:
        offsets[AT] = CommittedOffset(3, "")
    assert [text.partition(":")[0] for text in _plan(bench, 1, tmp_path).refusals] == [str(AT)]
