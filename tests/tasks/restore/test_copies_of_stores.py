"""Copies of all store kinds after random moves equal an undisturbed run."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.broker import CommitFate
from tests.tasks.loop.group_bench import APP, GroupBench, Host
from tests.tasks.loop.test_moving_tasks import fill, learn, processed
from tests.tasks.loop.test_stream_worker import counting
from tidewheel import Serdes, StreamsBuilder, StreamsConfig, TimeWindows, Topology
from tidewheel.rebalance.protocol.orders import DropCopy, KeepCopy, TaskReleased
from tidewheel.state_stores.layout.envelope import unwrap_value

STRING = Serdes.string()


def table_of(extractor: Any = None) -> Topology:
    builder = StreamsBuilder()
    table = builder.table(
        "in",
        key_serde=STRING,
        value_serde=STRING,
        store="counts",
        timestamp_extractor=extractor,
    )
    table.to_stream().to("out", key_serde=STRING, value_serde=STRING)
    return builder.build(StreamsConfig(application_id=APP, bootstrap_servers="unused:9092"))


def windowed() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=STRING, value_serde=STRING)
    counted = stream.group_by_key().windowed_by(TimeWindows(10, grace=0)).count(store="counts")
    counted.to_stream().map(lambda key, value: (key.key, value)).to(
        "out", key_serde=STRING, value_serde=Serdes.int64()
    )
    return builder.build()


def extracted(record: Any, _previous: int) -> int:
    return int(record.timestamp)


@pytest.mark.parametrize("extractor", [None, extracted], ids=["plain", "extracted"])
def test_L1_a_copy_of_a_table_follows_its_input_to_the_committed_offset(extractor: Any) -> None:
    with GroupBench(table_of(extractor), {"in": 1, "out": 1}) as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_0", 1)
        for key, value in [("a", "1"), ("b", "2"), ("a", "3")]:
            group.send(key, value)
        processed(group, first)
        learn(second)
        second.ready("0_0", 1, end=3)
        first.worker.paused = frozenset({0})
        group.send("a", "4")
        group.send("b", "5")
        second.until(lambda: ("in", 0, 4) in second.read, "reading ahead")
        released = first.release("0_0", 1)
        assert released.input == {"in-0": 3}
        content = second.rows("counts", "0_0")
        assert content == first.rows("counts", "0_0")
        assert unwrap_value(content[b"a"])[0] == b"3"
        running = second.run_task("0_0", 2, released)
        assert running.input == {"in-0": 3}
        processed(group, second)
        assert set(second.read.values()) == {1}
        assert {key: unwrap_value(row)[0] for key, row in second.rows("counts", "0_0").items()} == {
            b"a": b"4",
            b"b": b"5",
        }
        assert [each.value for each in group.broker.records("out")] == [
            b"1",
            b"2",
            b"3",
            b"4",
            b"5",
        ]


def test_a_copy_of_a_table_advances_with_commits() -> None:
    with GroupBench(table_of(), {"in": 1, "out": 1}) as group:
        first, second = group.host("a"), group.host("b")
        learn(second)
        assert second.ready("0_0", 1).positions == {"in-0": 0}
        first.run_task("0_0", 1)
        for number in range(5):
            group.send("a", str(number))
        second.ready("0_0", 1, end=5)
        released = first.release("0_0", 1, keep=2)
        second.run_task("0_0", 2, released)
        group.send("b", "x")
        first.ready("0_0", 2, end=6)
        assert first.rows("counts", "0_0") == second.rows("counts", "0_0")


def move_back_and_forth(group: GroupBench, hosts: list[Host]) -> None:
    """Move a counting task between two hosts; no changelog record is read twice."""
    hosts[0].run_task("0_0", 1)
    learn(hosts[1])
    for epoch in range(1, 6):
        owner, other = hosts[epoch % 2 - 1], hosts[epoch % 2]
        fill(group, "ab")
        processed(group, owner)
        released = owner.release("0_0", epoch, keep=100 + epoch)
        other.run_task("0_0", epoch + 1, released)
        assert max(other.read.values(), default=1) == 1
    fill(group, "ab")
    processed(group, hosts[1])
    assert group.outputs() == {"a": [1, 2, 3, 4, 5, 6], "b": [1, 2, 3, 4, 5, 6]}


@pytest.mark.parametrize("store_type", ["in_memory", "rocksdb"])
@pytest.mark.parametrize("cached", [False, True])
def test_a_task_moves_back_and_forth_with_its_copies(store_type: str, cached: bool) -> None:
    topology = counting(caching=cached, store_type=store_type)
    cache = 1_000_000 if cached else 0
    with GroupBench(topology, {"in": 1, "out": 1}, cache_bytes=cache) as group:
        move_back_and_forth(group, [group.host("a"), group.host("b")])


def test_windows_move_with_their_task() -> None:
    with GroupBench(windowed(), {"in": 1, "out": 1}) as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_0", 1)
        learn(second)
        for timestamp in (1, 5, 12, 12, 25):
            group.broker.send("in", b"x", b"k", timestamp=timestamp, partition=0)
        processed(group, first)
        released = first.release("0_0", 1)
        second.run_task("0_0", 2, released)
        assert second.rows("counts", "0_0") == first.rows("counts", "0_0")
        group.broker.send("in", b"x", b"k", timestamp=3, partition=0)  # too late
        group.broker.send("in", b"x", b"k", timestamp=26, partition=0)
        processed(group, second)
        assert group.outputs()["k"] == [1, 2, 1, 2, 1, 2]


# -- random histories -------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1), st.text("abcd", min_size=1, max_size=6)),
        st.tuples(st.just("move"), st.integers(0, 1), st.integers(0, 2)),
        st.tuples(st.just("copy"), st.integers(0, 1), st.integers(0, 2)),
        st.tuples(st.just("drop"), st.integers(0, 1), st.integers(0, 2)),
        st.tuples(
            st.just("fate"),
            st.sampled_from(
                [CommitFate.ABORTS, CommitFate.UNKNOWN_OPEN, CommitFate.UNKNOWN_COMMITTED]
            ),
            st.just(0),
        ),
    ),
    min_size=3,
    max_size=14,
)


class History:
    """Two tasks moved among three hosts."""

    def __init__(self, group: GroupBench) -> None:
        self.group = group
        self.hosts = [group.host(name) for name in "xyz"]
        self.owner: dict[int, Host] = {}
        self.epochs = {0: 0, 1: 0}
        self.learn_epoch = 1_000
        self.sent: Counter[str] = Counter()
        self.last: dict[int, TaskReleased | None] = {0: None, 1: None}

    def grant(self, number: int, host: Host) -> None:
        self.epochs[number] += 1
        host.run_task(f"0_{number}", self.epochs[number], self.last[number])
        self.owner[number] = host

    def step(self, kind: str, first: Any, second: Any) -> None:
        self.learn_epoch += 1
        if kind == "send":
            for key in second:
                # A key belongs to one partition.
                self.sent[f"{key}{first}"] += 1
                self.group.send(f"{key}{first}", partition=first)
        elif kind == "fate":
            self.group.broker.commit_fates.append(first)
        elif kind == "move":
            owner, target = self.owner[first], self.hosts[second]
            keep = self.learn_epoch if self.learn_epoch % 2 else 0
            self.last[first] = owner.release(f"0_{first}", self.epochs[first], keep)
            self.grant(first, target)
        elif self.owner[first] is not self.hosts[second]:
            order = (
                KeepCopy(task=f"0_{first}", role="standby", learn_epoch=self.learn_epoch)
                if kind == "copy"
                else DropCopy(task=f"0_{first}")
            )
            self.hosts[second].member.give(order)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(STEPS, st.sampled_from(["rocksdb", "in_memory"]))
def test_L1_each_record_counts_once_over_task_moves(
    steps: list[tuple[str, Any, Any]], store_type: str
) -> None:
    topology = counting(caching=False, store_type=store_type)
    with GroupBench(topology, {"in": 2, "out": 2}, commit_interval_ms=5) as group:
        history = History(group)
        for number in (0, 1):
            history.grant(number, history.hosts[0])
        for kind, first, second in steps:
            history.step(kind, first, second)
        for number in (0, 1):
            processed(group, history.owner[number], number)
        for host in history.hosts:
            host.worker.stop()
            host.join()
            assert host.error is None
            assert not +host.disk.open_now
        assert group.outputs() == {
            key: list(range(1, count + 1)) for key, count in history.sent.items()
        }
        for number, host in history.owner.items() if store_type == "rocksdb" else ():
            assert {
                key.decode(): int.from_bytes(unwrap_value(row)[0], "big")
                for key, row in host.rows("counts", f"0_{number}").items()
            } == {key: count for key, count in history.sent.items() if key.endswith(str(number))}
