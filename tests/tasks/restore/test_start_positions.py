"""Start positions: never past unprocessed records, never in another log."""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.loop.bench import APP, Bench
from tidewheel import StreamsBuilder, StreamsError
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.tasks.kafka.ports import Admin, CommittedOffset
from tidewheel.tasks.key_ranges.keyed_analysis import with_shards
from tidewheel.tasks.key_ranges.progress_vector import Progress, slowest_position_ms
from tidewheel.tasks.key_ranges.vector import Vector
from tidewheel.tasks.restore.offset_origin import StartRules
from tidewheel.tasks.restore.start_positions import (
    Grant,
    earlier_transactional_ids,
    find_granted_starts,
    start_position,
)

PARTITION = TopicPartition("orders", 3)
TOPIC_ID = b"the topic of now"


def committed(
    offset: int, *, topic_id: bytes = TOPIC_ID, transactional_id: str = "app-1", time_ms: int = 77
) -> CommittedOffset:
    progress = Progress(
        task_epoch=0,
        transactional_id=transactional_id,
        topic_id=topic_id,
        topology_hash=bytes(8),
        vector=Vector.at(offset),
        stream_time_ms=time_ms,
    )
    return CommittedOffset(offset, progress.encode())


def committed_by_ranges(slowest: int, fastest: int, *, task_epoch: int = 0) -> CommittedOffset:
    """Return an offset as two diverging key ranges commit it."""
    progress = Progress(
        task_epoch=task_epoch,
        transactional_id="app-1",
        topic_id=TOPIC_ID,
        topology_hash=bytes(8),
        vector=Vector((0, 1 << 31), (slowest, fastest)),
    )
    return CommittedOffset(slowest, progress.encode())


def begin(found: CommittedOffset | None, **facts: Any) -> Any:
    facts = {"log_start": 10, "log_end": 100, "topic_id": TOPIC_ID, "reset": "earliest", **facts}
    return start_position(PARTITION, committed=found, **facts)


@given(
    st.integers(10, 100),
    st.integers(-1, 2**41),
    st.sampled_from(["earliest", "latest", "none", 12]),
)
def test_a_start_continues_at_the_committed_offset(
    offset: int, time_ms: int, reset: str | int
) -> None:
    start = begin(committed(offset, time_ms=time_ms), reset=reset)
    assert (start.offset, start.partition_time_ms) == (offset, time_ms)
    assert start.progress is not None


@pytest.mark.parametrize("found", [None, CommittedOffset(-1001, "")])
def test_without_a_commit_the_reset_policy_decides(found: CommittedOffset | None) -> None:
    assert begin(found).offset == 10
    assert begin(found, reset="latest").offset == 100
    assert begin(found).partition_time_ms == -1
    assert begin(found, reset=55).offset == 55
    with pytest.raises(StreamsError, match=r"orders-3.*offset_reset"):
        begin(found, reset="none")


@pytest.mark.parametrize("metadata", ["", "by hand", "AwAAAAAAAAPo", "AgAAAAAA"])
def test_commits_of_other_programs_are_followed_without_a_time(metadata: str) -> None:
    start = begin(CommittedOffset(40, metadata))
    assert (start.offset, start.partition_time_ms, start.progress) == (40, -1, None)
    assert not start.by_kafka_streams


@pytest.mark.parametrize(
    ("metadata", "time_ms"),
    [
        ("AgAAAAAAAAPo", 1_000),
        ("Af//////////", -1),
        ("AgAAAAAAAAPoAAAAAQAAAAFhAAAAAAAAAAE=", 1_000),
        # The client reads metadata of others past its end.
        ("AgAAAAAAAAPo\x7f", 1_000),
    ],
    ids=["newest", "version 1", "processor times", "trailing bytes"],
)
def test_commits_of_kafka_streams_are_followed_with_their_time(metadata: str, time_ms: int) -> None:
    """Earlier records don't set Kafka Streams' partition time back."""
    start = begin(CommittedOffset(40, metadata))
    assert (start.offset, start.partition_time_ms, start.progress) == (40, time_ms, None)
    assert start.by_kafka_streams


@pytest.mark.parametrize(
    ("reset", "values"),
    [(timedelta(hours=6), ["b", "c"]), (timedelta(minutes=1), []), ("latest", []), (None, ["a", "b", "c"])],
)  # fmt: skip
@pytest.mark.parametrize("shards", [1, 4])
def test_the_offset_reset_of_a_source_sets_its_start(
    reset: Any, values: list[str], shards: int
) -> None:
    builder = StreamsBuilder()
    text: dict[str, Any] = {"key_serde": str, "value_serde": str}
    builder.stream("in", offset_reset=reset, **text).to("out", **text)
    bench = Bench(builder.build(), {"in": 1, "out": 1})
    bench.plan = with_shards(bench.plan, shards)
    everyone = frozenset(bench.plan.tasks)
    hour, now_ms = 3_600_000, time.time_ns() // 1_000_000
    for value, hours in (("a", 9), ("b", 5), ("c", 3)):
        bench.send("in", "k", value, timestamp=now_ms - hours * hour)
    assert bench.live(assigned=everyone)
    assert bench.outputs("out") == [("k", value.encode()) for value in values]
    bench.send("in", "k", "old", timestamp=0)
    assert bench.live(assigned=everyone)
    assert bench.outputs("out")[len(values) :] == [("k", b"old")]


def test_F1_latest_does_not_skip_open_transactions() -> None:
    builder = StreamsBuilder()
    text: dict[str, Any] = {"key_serde": str, "value_serde": str}
    builder.stream("in", offset_reset="latest", **text).to("out", **text)
    bench = Bench(builder.build(), {"in": 1, "out": 1})
    bench.send("in", "k", "before", timestamp=0)
    writer = bench.broker.open_transaction("writer")
    bench.broker._append("in", 0, b"k", b"open", 0, (), writer)
    assert bench.live()
    bench.broker.commit("writer", writer)
    assert bench.live()
    assert bench.outputs("out") == [("k", b"open")]


def test_a_source_without_a_start_offset_stops_the_start() -> None:
    builder = StreamsBuilder()
    builder.stream("in", offset_reset="none", key_serde=str, value_serde=str).foreach(print)
    bench = Bench(builder.build(), {"in": 1})
    with pytest.raises(StreamsError, match=r'nothing is committed for in-0.*offset_reset="none"'):
        bench.live()
    bench.clients.admin().alter_committed(APP, {TopicPartition("in", 0): 0})
    with pytest.raises(StreamsError, match="--accept-offsets"):
        bench.live()
    assert bench.live(accept_offsets=True)
    assert bench.live()


def test_a_recreated_topic_is_not_read_on() -> None:
    with pytest.raises(
        StreamsError, match=r"orders was deleted and created again.*40.*tidewheel reset"
    ):
        begin(committed(40, topic_id=b"the topic before"))


@pytest.mark.parametrize(
    ("offset", "facts"), [(9, {}), (101, {}), (40, {"log_start": 41}), (40, {"log_end": 39})]
)
@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_an_offset_outside_the_log_is_an_error(
    offset: int, facts: dict[str, Any], reset: str
) -> None:
    with pytest.raises(StreamsError, match=r"outside the log.*tidewheel reset"):
        begin(committed(offset), reset=reset, **facts)


def test_producers_of_earlier_commits_are_found() -> None:
    one, two, three = "app-fixed-0", "app-fixed-1", f"app-{'0a' * 16}-2"
    others = ("payments-prod-0", "app-prod-0", "app-leader", "application-fixed-0", "")
    named = [three, two, three, one, *others]
    found = {
        TopicPartition("a", number): committed(5, transactional_id=each)
        for number, each in enumerate(named)
    }
    found |= {
        TopicPartition("b", 4): CommittedOffset(9, "note"),
        TopicPartition("b", 5): CommittedOffset(-1001, ""),
    }
    assert earlier_transactional_ids("app", found, {two}) == sorted([one, three])
    assert earlier_transactional_ids("app", found, {two, three}) == [one]
    assert earlier_transactional_ids("app", {}, {two}) == []


@pytest.mark.parametrize(("fastest", "log_end"), [(101, 100), (5_000, 100), (5_000, 4_999)])
def test_a_log_end_below_the_fastest_range_is_an_error(fastest: int, log_end: int) -> None:
    with pytest.raises(
        StreamsError, match=rf"orders-3.*{fastest}.*ends at {log_end}.*tidewheel reset"
    ):
        begin(committed_by_ranges(40, fastest), log_end=log_end)


@given(st.integers(40, 100))
def test_ranges_apart_within_the_log_continue(fastest: int) -> None:
    assert begin(committed_by_ranges(40, fastest)).offset == 40


@pytest.mark.parametrize(("fastest", "asked"), [(40, []), (41, [PARTITION])])
def test_the_end_of_a_granted_input_is_read_only_if_ranges_are_apart(
    fastest: int, asked: list[TopicPartition]
) -> None:
    builder = StreamsBuilder()
    builder.stream("orders", key_serde=str, value_serde=str).foreach(print)
    bench = Bench(builder.build(), {"orders": 4})
    asks = list[TopicPartition]()
    log_end = [41]

    class Cluster:
        """Knows one committed offset and one end."""

        def committed(self, *_: Any, **__: Any) -> dict[TopicPartition, CommittedOffset]:
            return {PARTITION: committed_by_ranges(40, fastest, task_epoch=1)}

        def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
            asks.extend(partitions)
            return dict.fromkeys(partitions, log_end[0])

        def offsets_of_age(self, _: Any) -> dict[TopicPartition, int]:
            return {}

    def starts() -> int:
        found = find_granted_starts(
            bench.plan,
            {TaskId(0, 3): Grant(task_epoch=1)},
            admin=cast("Admin", Cluster()),
            rules=StartRules(group_id=APP),
            topic_ids={"orders": TOPIC_ID},
        )
        return found[PARTITION].offset

    assert starts() == 40
    assert asks == asked
    log_end[0] = 40
    if asked:
        with pytest.raises(StreamsError, match=r"orders-3.*41.*ends at 40"):
            starts()


def _progress(
    slowest: int, fastest: int, *times_ms: int, topology_hash: bytes = bytes(8)
) -> Progress | None:
    return Progress(
        task_epoch=1,
        transactional_id="app-1",
        topic_id=TOPIC_ID,
        topology_hash=topology_hash,
        vector=Vector((0, 1 << 31), (slowest, fastest)),
        stream_time_ms=9_999,
        operator_times_ms=times_ms,
    )


@pytest.mark.parametrize(
    ("told", "expected", "of_a_copy"),
    [
        ([], None, -1),
        ([None], None, -1),
        ([_progress(5, 5, 70, -1)], None, 70),
        ([_progress(5, 6, 70, -1)], 70, 70),
        ([_progress(5, 6, 70, -1), _progress(9, 9, 70, -1)], 70, 70),
        ([_progress(5, 6, 60, -1), _progress(9, 9, 70, -1), None], 70, 70),
        ([_progress(5, 6, -1)], -1, -1),
        ([_progress(5, 6)], -1, -1),
        ([_progress(5, 6, 70, topology_hash=b"before..")], -1, -1),
        ([_progress(5, 5, 70, topology_hash=b"before..")], None, -1),
    ],
)
def test_K3_the_commit_names_the_slowest_key_range(
    told: list[Progress | None], expected: int | None, of_a_copy: int
) -> None:
    assert slowest_position_ms(told, bytes(8), may_part=False) == expected
    assert slowest_position_ms(told, bytes(8), may_part=True) == of_a_copy
