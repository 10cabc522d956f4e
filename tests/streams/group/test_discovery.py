"""Owners of keys by the group log (Kafka Streams' StreamsMetadataState)."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rebalance.leader.group_logs import LogBook
from tidewheel import StreamsBuilder, StreamsConfig, Windowed
from tidewheel.rebalance.model import MemberPhase, Shard, TaskId, TaskPhase, TopicPartition
from tidewheel.streams.errors import InvalidStateStoreError, SerializationError, StreamsError
from tidewheel.streams.group.discovery import all_clients, partitioner_of, where_is, without_headers
from tidewheel.streams.group.key_metadata import HostInfo, KeyQueryMetadata, StreamsMetadata
from tidewheel.streams.serdes import Serdes
from tidewheel.streams.serdes.partitioning import partition_of
from tidewheel.tasks.key_ranges.key_ranges import key_hash
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.api.topology_spec import Partitioner, TopologySpec

APP = "shop"
A, B = HostInfo("a", 80), HostInfo("b", 81)
#: Sub-topologies: 0 global store, 1 splits lines, 2 counts after a repartition topic.
TASKS = ("1_0", "1_1", "2_0", "2_1")
COUNTS_IN = "shop-counts-repartition"


def _spec() -> TopologySpec:
    builder = StreamsBuilder()
    builder.global_table("rates", key_serde=str, value_serde=str, store="rates")
    lines = builder.stream(re.compile("lines-.*"), key_serde=str, value_serde=str)
    words = lines.flat_map_values(str.split)
    words.group_by(lambda word: word, key_serde=str, value_serde=str).count(store="counts")
    config = StreamsConfig(application_id=APP)
    return builder.build(config).spec(config)


SPEC = _spec()


def _book() -> LogBook:
    """Members `a` and `b` share the tasks and copies; `c` has no endpoint."""
    book = LogBook().leader("p1")
    book.about(*TASKS, partitions={"lines-1": 2, "lines-2": 1, COUNTS_IN: 2})
    book.member("a", endpoint="a:80").member("b", endpoint="b:81").member("c")
    book.target({"1_0": "a", "1_1": "b", "2_0": "a", "2_1": "b"})
    book.step(learners={"2_1": ("c-1", 1)}, standbys={"2_0": ("b-1", 1), "2_1": ("a-1", 1)})
    return book.grant("1_0", "a").grant("1_1", "b").grant("2_0", "a").grant("2_1", "b")


def _where(
    book: LogBook,
    key: Any,
    store: str = "counts",
    *,
    choose: Partitioner | None = None,
    here: HostInfo | None = None,
) -> KeyQueryMetadata:
    return where_is(book.group, SPEC, APP, store, key, choose or partitioner_of(str), here)


KEY = {partition_of(key.encode(), 2): key for key in ("one", "two", "three", "four")}


def test_the_owner_of_a_key_is_the_owner_of_its_partition() -> None:
    assert _where(_book(), KEY[0]) == KeyQueryMetadata(
        active_host=A, standby_hosts=frozenset({B}), partition=0
    )
    assert _where(_book(), KEY[1]) == KeyQueryMetadata(
        active_host=B, standby_hosts=frozenset({A}), partition=1
    )


def test_an_owner_keeps_its_task_until_it_releases_it() -> None:
    book = _book().revoke("2_0", "a", "b")
    assert _where(book, KEY[0]).active_host == A
    book.released("2_0", next_member="b")
    gone = KeyQueryMetadata(active_host=None, standby_hosts=frozenset({B}), partition=0)
    assert _where(book, KEY[0]) == gone
    book.grant("2_0", "b")
    assert _where(book, KEY[0]) == KeyQueryMetadata(
        active_host=B, standby_hosts=frozenset(), partition=0
    )


def test_a_dead_member_owns_no_tasks() -> None:
    book = _book().fence_wait("2_1", "b")
    assert _where(book, KEY[1]).active_host is None
    assert _where(book, KEY[1]).standby_hosts == {A}


def test_an_owner_without_an_endpoint_is_not_returned() -> None:
    book = _book().released("2_0").grant("2_0", "c")
    assert _where(book, KEY[0]).active_host is None
    assert _where(book, KEY[0]).partition == 0


def test_a_group_without_a_claim_has_no_owners() -> None:
    nothing = KeyQueryMetadata(active_host=None, standby_hosts=frozenset(), partition=None)
    assert _where(LogBook(), KEY[0]) == nothing
    assert all_clients(LogBook().group, SPEC, APP) == []


def test_every_process_has_a_global_store() -> None:
    for here, active in ((B, B), (None, A)):
        assert _where(_book(), "eur", "rates", here=here) == KeyQueryMetadata(
            active_host=active, standby_hosts=frozenset(), partition=None
        )


def test_a_missing_store_is_named() -> None:
    with pytest.raises(InvalidStateStoreError, match=r"no store sums \(stores: counts, rates\)"):
        _where(_book(), "one", "sums")


def test_a_custom_partitioner_is_used() -> None:
    asked: list[tuple[Any, ...]] = []

    def choose(*arguments: Any) -> list[int]:
        asked.append(arguments)
        return [1]

    assert _where(_book(), 7, choose=choose).active_host == B
    assert asked == [(COUNTS_IN, 7, None, 2)]
    for answer in (None, 2, -1, [0, 1], [], "0"):
        with pytest.raises(
            StreamsError, match="store counts: key 7 must be in one partition of 0 to 1"
        ):
            _where(_book(), 7, choose=lambda *_, answer=answer: answer)


def test_keys_are_partitioned_as_they_are_written() -> None:
    number = Serdes.int64().serialize("", 7)
    assert partitioner_of(int)("in", 7, None, 9) == partition_of(number, 9)
    windowed = Serdes.windowed(str, 1_000)
    assert partitioner_of(windowed)("in", Windowed("one", 0, 1_000), None, 9) == partition_of(
        b"one", 9
    )


def _sharded_group(count: int) -> Any:
    """Return a group in which partition 0 of the counts has a member for each shard."""
    shards = [TaskId(2, 0, shard) for shard in Shard.all_of(count)]
    book = LogBook().leader("p1")
    for task in shards:
        book.member(str(task.shard.number), endpoint=f"{task.shard}:80")
    return SimpleNamespace(
        tasks=dict.fromkeys((*shards, TaskId(2, 1))),
        about=SimpleNamespace(partitions={COUNTS_IN: 2}),
        states={task: SimpleNamespace(owner=f"{task.shard.number}-1") for task in shards},
        step=SimpleNamespace(copies=lambda _: ()),
        phase_of=lambda _: TaskPhase.RUNNING,
        members=book.group.members,
    )


@given(key=st.text(min_size=1), count=st.sampled_from([2, 4, 64]))
def test_the_owner_of_a_key_is_the_owner_of_its_shard(key: str, count: int) -> None:
    group = _sharded_group(count)
    for wanted in (key, Windowed(key, 0, 1_000)):
        found = where_is(group, SPEC, APP, "counts", wanted, lambda *_: 0, None)
        assert found.partition == 0
        assert found.active_host is not None
        shard = TaskId.parse(f"2_0/{found.active_host.host}").shard
        assert shard.first_hash <= key_hash(key.encode(), 0) < shard.end_hash


def test_keys_that_have_no_partition_are_refused() -> None:
    with pytest.raises(StreamsError, match="store counts: the key is None"):
        _where(_book(), None)
    with pytest.raises(SerializationError):
        _where(_book(), 7)
    with pytest.raises(StreamsError, match=r"key_serde=.* is not a serde"):
        partitioner_of(7)  # type: ignore[arg-type]  # what is tested


def test_each_process_is_returned_with_its_stores_and_inputs() -> None:
    book = _book().member("d", endpoint="a:80").released("1_1").grant("1_1", "d")
    assert all_clients(book.group, SPEC, APP) == [
        StreamsMetadata(
            host_info=A,
            state_store_names=frozenset({"counts", "rates"}),
            topic_partitions=frozenset(
                {
                    TopicPartition("lines-1", 0),
                    TopicPartition("lines-2", 0),
                    TopicPartition("lines-1", 1),
                    TopicPartition(COUNTS_IN, 0),
                }
            ),
            standby_state_store_names=frozenset({"counts"}),
            standby_topic_partitions=frozenset({TopicPartition(COUNTS_IN, 1)}),
        ),
        StreamsMetadata(
            host_info=B,
            state_store_names=frozenset({"counts", "rates"}),
            topic_partitions=frozenset({TopicPartition(COUNTS_IN, 1)}),
            standby_state_store_names=frozenset({"counts"}),
            standby_topic_partitions=frozenset({TopicPartition(COUNTS_IN, 0)}),
        ),
    ]


def test_members_without_tasks_are_returned_and_members_that_left_are_not() -> None:
    book = _book().member("e", endpoint="e:1").member("b", MemberPhase.GONE, endpoint="b:81")
    assert [each.host_info for each in all_clients(book.group, SPEC, APP)] == [
        A,
        HostInfo("e", 1),
    ]
    newcomer = all_clients(book.group, SPEC, APP)[1]
    assert newcomer.state_store_names == {"rates"}
    assert newcomer.topic_partitions == frozenset()


def test_a_partitioner_may_choose_by_headers() -> None:
    def by_region(topic: str, key: str, value: None, headers: Headers, partitions: int) -> int:
        return len(dict(headers)["region"] or b"") % partitions

    def plain(topic: str, key: str, value: None, partitions: int) -> int:
        return partitions - 1

    headers = (("region", b"eu-1"),)
    assert without_headers(by_region, headers)("in", "k", None, 3) == 1
    assert without_headers(plain, headers) is plain
    with pytest.raises(StreamsError, match=r"query_metadata_for_key: header 0 \('region'\)"):
        without_headers(by_region, [("region", 7)])
