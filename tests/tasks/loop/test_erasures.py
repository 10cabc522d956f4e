"""Erasure orders: the key is gone from the owner, the copies and restored stores; nothing else is."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.tasks.loop.group_bench import GroupBench, Host
from tests.tasks.loop.test_moving_tasks import fill, processed
from tests.tasks.loop.test_stream_worker import counting
from tests.tasks.task.custom_stores import Totals, counting_by
from tidewheel import (
    BufferConfig,
    JoinWindows,
    Materialized,
    Processor,
    Record,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Suppressed,
    TimeWindows,
    Topology,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    Windowed,
)
from tidewheel.rebalance.protocol.orders import EraseRows, KeepCopy, RowsErased
from tidewheel.state_stores.stores.key_value_store import KeyValueStore
from tidewheel.state_stores.stores.session_store import AggregationWithHeaders
from tidewheel.tasks.key_ranges.key_ranges import shard_of
from tidewheel.tasks.key_ranges.keyed_analysis import with_shards

TEXT: Any = {"key_serde": str, "value_serde": str}
LONG = 3_600_000

#: Keys in memory, which no test looks for on the disk.
IN_MEMORY = {"in_memory", "lru"}


def moments(key: str, *times: int, last: int) -> tuple[int, ...]:
    return (last,) if key == "time" else times


#: Per store kind: its maker, a processor's two writes of a key, and the number of rows.
KINDS: dict[str, tuple[Callable[[str], Any], Callable[[Any, str], object], int]] = {
    "key_value": (
        lambda name: Stores.key_value(name, **TEXT),
        lambda store, key: store.put(key, "v"),
        1,
    ),
    "cached": (
        lambda name: Stores.key_value(name, caching=True, **TEXT),
        lambda store, key: store.put(key, "v"),
        1,
    ),
    "in_memory": (
        lambda name: Stores.key_value(name, persistent=False, **TEXT),
        lambda store, key: store.put(key, "v"),
        1,
    ),
    "ttl": (
        lambda name: Stores.key_value(name, ttl=LONG, **TEXT),
        lambda store, key: store.put(key, "v"),
        1,
    ),
    "lru": (
        lambda name: Stores.lru(name, max_entries=100, **TEXT),
        lambda store, key: store.put(key, "v"),
        1,
    ),
    "timestamped": (
        lambda name: Stores.timestamped_key_value(name, **TEXT),
        lambda store, key: store.put(key, ValueAndTimestamp("v", 7)),
        1,
    ),
    "headers": (
        lambda name: Stores.timestamped_key_value_with_headers(name, **TEXT),
        lambda store, key: store.put(key, ValueTimestampHeaders("v", 7, (("h", b"1"),))),
        1,
    ),
    "versioned": (
        lambda name: Stores.versioned(name, history_retention=500, **TEXT),
        # All are older than the history when the key is deleted; the last is still the one that is valid.
        lambda store, key: [store.put(key, "v", at) for at in moments(key, 100, 200, last=9_000)],
        2,
    ),
    "window": (
        lambda name: Stores.window(name, retention=LONG, window_size=10, **TEXT),
        # The first has expired when the key is deleted, and is still on disk.
        lambda store, key: [
            store.put(key, "v", at) for at in moments(key, 0, 90_000, last=LONG + 30_000)
        ],
        2,
    ),
    "duplicates": (
        lambda name: Stores.window(
            name, retention=LONG, window_size=10, retain_duplicates=True, **TEXT
        ),
        lambda store, key: [store.put(key, "v", at) for at in (0, 0, 90_000)],
        3,
    ),
    "timestamped_window": (
        lambda name: Stores.timestamped_window(name, retention=LONG, window_size=10, **TEXT),
        lambda store, key: [store.put(key, ValueAndTimestamp("v", 7), at) for at in (0, 90_000)],
        2,
    ),
    "window_headers": (
        lambda name: Stores.timestamped_window_with_headers(
            name, retention=LONG, window_size=10, **TEXT
        ),
        lambda store, key: [
            store.put(key, ValueTimestampHeaders("v", 7, (("h", b"1"),)), at) for at in (0, 90_000)
        ],
        2,
    ),
    "session": (
        lambda name: Stores.session(name, retention=LONG, **TEXT),
        lambda store, key: [store.put(Windowed(key, at, at + 5), "v") for at in (0, 90_000)],
        2,
    ),
    "session_headers": (
        lambda name: Stores.session_with_headers(name, retention=LONG, **TEXT),
        lambda store, key: [
            store.put(Windowed(key, at, at + 5), AggregationWithHeaders("v", (("h", b"1"),)))
            for at in (0, 90_000)
        ],
        2,
    ),
}  # fmt: skip


def storing(kind: str) -> Topology:
    make, write, _ = KINDS[kind]

    class Keep(Processor[str, str, str, str]):
        def process(self, record: Record[str, str]) -> None:
            write(self.context.get_state_store("kept"), record.key)

    builder = StreamsBuilder().add_state_store(make("kept"))
    builder.stream("in", **TEXT).process(Keep, stores=["kept"])
    return builder.build()


def order(
    key: str,
    store: str = "kept",
    request: str = "r1",
    *,
    task: str = "0_0",
    task_epoch: int = 1,
    tail: int = 0,
) -> EraseRows:
    return EraseRows(
        request=request,
        task=task,
        task_epoch=task_epoch,
        store=store,
        key=key.encode(),
        tail=tail,
    )


def erase(
    host: Host, key: str, store: str = "kept", request: str = "r1", **values: Any
) -> RowsErased:
    host.member.give(order(key, store, request, **values))
    return host.said(RowsErased, request=request)


def keys_in(host: Host, store: str = "kept", task: str = "0_0") -> set[str]:
    rows = host.rows(store, task).items()
    return {
        name
        for name in ("alice", "bob")
        for key, row in rows
        if name.encode() in key and b"v" in row
    }


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_erased_key_is_deleted_in_every_copy(kind: str, guarantee: str) -> None:
    cached = 1_000_000 if kind == "cached" else 0
    topics = {"in": 1}
    with GroupBench(storing(kind), topics, guarantee=guarantee, cache_bytes=cached) as group:
        owner, standby = group.host("a"), group.host("b")
        owner.run_task("0_0", 1)
        for name in ("alice", "bob", "time"):
            group.send(name)
        processed(group, owner)
        standby.member.give(KeepCopy(task="0_0", role="standby", learn_epoch=1))
        standby.ready("0_0", 1)
        answer = erase(owner, "alice")
        rows = KINDS[kind][2]
        assert (answer.rows, answer.problem) == (rows, "")
        changelog = group.broker.topics["app-kept-changelog"].logs[0]
        tombstones = range(answer.first, answer.last + 1)
        assert len(tombstones) == rows
        written = [changelog.entries[at - changelog.start].record for at in tombstones]
        assert all(each is not None and each.value is None for each in written)
        assert all(each is not None and b"alice" in (each.key or b"") for each in written)
        standby.ready("0_0", 1, end=answer.last + 1)
        if kind not in IN_MEMORY:
            assert keys_in(standby) == keys_in(owner) == {"bob"}
        released = owner.release("0_0", 1)
        other = group.host("c")
        other.run_task("0_0", 2, released)
        if kind not in IN_MEMORY:
            assert keys_in(other) == {"bob"}
        again = erase(other, "alice", request="r2", task_epoch=2)
        assert (again.rows, again.first, again.last) == (0, -1, -1)
        assert erase(other, "bob", request="r3", task_epoch=2).rows == rows


def test_K8_a_shard_deletes_a_key_while_others_write_the_changelog() -> None:
    with GroupBench(counting(caching=False), {"in": 1, "out": 1}) as group:
        group.plan = with_shards(group.plan, 2)
        keys = "abcdefgh"
        host = group.host("a")
        for task in group.plan.tasks:
            host.run_task(str(task), 1)
        fill(group, keys)
        processed(group, host)
        for number, key in enumerate(keys[:-1]):
            shard = shard_of(key.encode(), 2)
            request = f"r{number}"
            answer = erase(host, key, "counts", request, task=f"0_0/{shard}")
            assert (answer.rows, answer.problem) == (1, "")
            log = group.broker.topics["app-counts-changelog"].logs[0]
            told = [
                log.entries[at - log.start].record for at in range(answer.first, answer.last + 1)
            ]
            assert [
                each for each in told if each and each.key == key.encode() and each.value is None
            ]
        left = [key for folder in host.disk.versions for key in host.rows("counts", folder)]
        assert left == [keys[-1].encode()]


def test_a_repeated_erasure_is_answered_again() -> None:
    with GroupBench(storing("key_value"), {"in": 1}) as group:
        host = group.host("a")
        host.run_task("0_0", 1)
        group.send("alice")
        processed(group, host)
        first = erase(host, "alice")
        group.send("alice")
        processed(group, host)
        host.member.forget()
        assert erase(host, "alice") == first
        assert keys_in(host) == {"alice"}


def test_a_later_owner_ignores_an_order_for_the_one_before() -> None:
    with GroupBench(storing("key_value"), {"in": 1}) as group:
        host = group.host("a")
        host.run_task("0_0", 2)
        group.send("alice")
        processed(group, host)
        host.member.give(order("alice", request="old", task_epoch=1))
        assert erase(host, "carol", request="new", task_epoch=2).rows == 0
        assert not [each for each in host.member.all_of(RowsErased) if each.request == "old"]
        assert keys_in(host) == {"alice"}


@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
def test_the_count_of_an_erased_key_starts_again(caching: bool) -> None:
    size = 1_000_000 if caching else 0
    with GroupBench(counting(caching=caching), {"in": 1, "out": 1}, cache_bytes=size) as group:
        host = group.host("a")
        host.run_task("0_0", 1)
        for _ in range(3):
            fill(group, "a")
            processed(group, host)
        answer = erase(host, "a", "counts")
        assert answer.rows == 1
        fill(group, "a")
        processed(group, host)
        values = [record.value for record in group.broker.records("out")]
        numbers = [None if value is None else int.from_bytes(value, "big") for value in values]
        assert numbers == ([1, 2, 3, None, 1] if caching else [1, 2, 3, 1])


def test_cached_records_are_erased_too() -> None:
    topology = counting(caching=True)
    topics = {"in": 1, "out": 1}
    with GroupBench(topology, topics, cache_bytes=1_000_000, commit_interval_ms=60_000) as group:
        host = group.host("a")
        host.run_task("0_0", 1)
        fill(group, "ab")
        host.until(lambda: host.worker.metrics.processed >= 2, "processing without a commit")
        assert erase(host, "a", "counts").rows == 1
        assert host.rows("counts", "0_0").keys() == {b"b"}


@pytest.mark.parametrize("threads", [2, 4])
def test_key_ranges_delete_in_their_own_threads(threads: int) -> None:
    topics = {"in": 1, "out": 1}
    with GroupBench(counting(caching=False), topics) as group:
        host = group.host("a", threads=threads)
        host.run_task("0_0", 1)
        keys = "abcdefghijklmnop"
        fill(group, keys)
        processed(group, host)
        for number, key in enumerate(keys[:-1]):
            answer = erase(host, key, "counts", request=f"r{number}")
            assert answer.rows == 1
            log = group.broker.topics["app-counts-changelog"].logs[0]
            told = [
                log.entries[at - log.start].record for at in range(answer.first, answer.last + 1)
            ]
            assert [
                each for each in told if each and each.key == key.encode() and each.value is None
            ]
        assert host.rows("counts", "0_0").keys() == {keys[-1].encode()}
        fill(group, "a")
        processed(group, host)
        assert group.outputs()["a"] == [1, 1]


def suppressed() -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream("in", **TEXT)
        .group_by_key()
        .windowed_by(TimeWindows(10, grace=0))
        .count(store=Materialized("counts", caching=False))
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_stream()
        .map(lambda windowed, count: (windowed.key, count))
        .to("out", key_serde=str, value_serde=int)
    )
    return builder.build()


def test_erased_rows_in_suppress_are_never_emitted() -> None:
    with GroupBench(suppressed(), {"in": 1, "out": 1}) as group:
        host = group.host("a")
        host.run_task("0_0", 1)
        fill(group, "aabb")
        processed(group, host)
        store = next(
            each.name for each in group.plan.subtopologies[0].spec.stores if "SUPPRESS" in each.name
        )
        assert erase(host, "a", store, tail=8).rows == 1
        assert erase(host, "a", "counts", request="r2").rows == 1
        group.broker.send("in", b"x", b"c", timestamp=5_000)
        processed(group, host)
        host.until(lambda: group.outputs() == {"b": [2]}, "the window of b")


def _table() -> Topology:
    builder = StreamsBuilder()
    builder.table("in", store="counts", **TEXT).to_stream().to("out", **TEXT)
    config = StreamsConfig(application_id="app", bootstrap_servers="unused:9092")
    return builder.build(config)


def _unlogged() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXT)
    stream.group_by_key().count(store=Materialized("counts", caching=False, logging=False))
    return builder.build()


def _outer_join() -> Topology:
    builder = StreamsBuilder()
    left, right = (builder.stream(each, **TEXT) for each in ("in", "out"))
    left.outer_join(right, lambda a, b: f"{a}{b}", within=JoinWindows(10, grace=0), name="counts")
    return builder.build()


#: Stores without erasure, and a word of the reason.
REFUSED: dict[str, tuple[Callable[[], Topology], str]] = {
    "unknown": (lambda: counting(caching=False), "no such store"),
    "without changelog": (_unlogged, "no changelog"),
    "restored from its topic": (_table, "topic in"),
    "custom": (lambda: counting_by(Totals), "custom store"),
    "waiting for a join": (_outer_join, "grace"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_erasure_ends_no_worker(case: str) -> None:
    make, word = REFUSED[case]
    with GroupBench(make(), {"in": 1, "out": 1}) as group:
        host = group.host("a")
        host.run_task("0_0", 1)
        names = [each.name for each in group.plan.subtopologies[0].spec.stores]
        waiting = [name for name in names if "shared" in name]
        answer = erase(host, "a", "none" if case == "unknown" else (waiting or names)[0])
        assert answer.rows == 0
        assert word in answer.problem
        host.until(lambda: host.status("0_0").state == "RUNNING", "the next status")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_serde_error_in_an_erasure_ends_no_worker(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with GroupBench(counting(caching=False), {"in": 1, "out": 1}) as group:
        host = group.host("a", threads=threads)
        host.run_task("0_0", 1)
        fill(group, "a")
        processed(group, host)

        def failing(*_: object) -> int:
            raise ValueError("alice is no number")

        with monkeypatch.context() as patched:
            patched.setattr(KeyValueStore, "erase", failing)
            answer = erase(host, "a", "counts")
        assert answer.rows == 0
        assert "ValueError" in answer.problem
        assert "alice" not in answer.problem
        fill(group, "a")
        processed(group, host)
        assert group.outputs()["a"] == [1, 2]
