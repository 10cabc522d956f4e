"""A worker's lives on a fake cluster: nothing is lost or doubled after any crash."""

import itertools
import re
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.broker import CommitFate
from tests.tasks.loop.bench import APP, Bench, Source
from tidewheel import (
    FencedError,
    Materialized,
    Processor,
    PunctuationType,
    RecordFailedError,
    Serdes,
    StreamsBuilder,
    StreamsError,
    Topology,
)
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.layout.envelope import unwrap_value

STRING, INT = Serdes.string(), Serdes.int64()
CHANGELOG = "app-counts-changelog"


def counting(
    *, caching: bool = True, repartition: bool = False, store_type: Any = "rocksdb"
) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=STRING, value_serde=STRING)
    grouped = (
        stream.group_by(lambda value: value, key_serde=STRING)
        if repartition
        else stream.group_by_key()
    )
    store = Materialized("counts", caching=caching, store_type=store_type)
    grouped.count(store=store).to_stream().to("out", key_serde=STRING, value_serde=INT)
    return builder.build()


def counts_of(bench: Bench) -> dict[str, int]:
    return {
        key.decode(): int.from_bytes(unwrap_value(stored)[0], "big")
        for key, stored in bench.rows("counts").items()
    }


def outputs_of(bench: Bench) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = {}
    for key, value in bench.outputs("out"):
        found.setdefault(key, []).append(int.from_bytes(value or b"", "big"))
    return found


def fill(bench: Bench, keys: str, *, repartition: bool = False) -> None:
    for key in keys:
        if repartition:
            bench.send("in", None, key)
        else:
            bench.send("in", key, "x")


def test_a_run_processes_and_commits_all_records() -> None:
    bench = Bench(counting(), {"in": 2, "out": 2})
    fill(bench, "abcabca")
    assert bench.live()
    assert counts_of(bench) == {"a": 3, "b": 2, "c": 2}
    assert outputs_of(bench) == {"a": [1, 2, 3], "b": [1, 2], "c": [1, 2]}
    assert sum(bench.committed.values()) == 7
    assert bench.running == [False, True]
    fill(bench, "a")
    assert bench.live()
    assert bench.events == []
    assert counts_of(bench)["a"] == 4
    assert outputs_of(bench)["a"] == [1, 2, 3, 4]


def test_a_run_without_records_commits_its_positions() -> None:
    bench = Bench(counting(), {"in": 2, "out": 1}, auto_offset_reset="latest")
    fill(bench, "aabb")
    assert bench.live()
    assert outputs_of(bench) == {}
    assert sum(bench.committed.values()) == 4
    fill(bench, "c")
    assert bench.live()
    assert outputs_of(bench) == {"c": [1]}


def test_repartitioned_records_are_processed_by_their_task() -> None:
    bench = Bench(counting(repartition=True), {"in": 3, "out": 1}, repartition_purge_interval_ms=50)
    fill(bench, "abcabca", repartition=True)
    assert bench.live()
    assert counts_of(bench) == {"a": 3, "b": 2, "c": 2}
    assert outputs_of(bench) == {"a": [1, 2, 3], "b": [1, 2], "c": [1, 2]}
    (topic,) = bench.plan.repartition_topics
    logs = bench.broker.topics[topic.name].logs
    assert sum(log.start for log in logs) > 0
    for number, log in enumerate(logs):
        assert log.start <= bench.committed.get(TopicPartition(topic.name, number), 0)


# -- crashes ----------------------------------------------------------------------------------------------------------

LIVES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6)), max_size=4)


@pytest.mark.slow
@settings(max_examples=50)
@given(
    records=st.lists(st.text("abcd", max_size=8), min_size=1, max_size=5),
    lives=LIVES,
    fates=st.lists(st.sampled_from(CommitFate), max_size=6),
    cached=st.booleans(),
    repartition=st.booleans(),
    at_least_once=st.booleans(),
    slice_records=st.sampled_from([1, 2, None]),
    commit_turns=st.sampled_from([0, 1, 3, 12]),
    store_type=st.sampled_from(["rocksdb", "in_memory"]),
    early_ms=st.sampled_from([0, 7]),
)
def test_every_record_counts_exactly_once(
    records: list[str],
    lives: list[tuple[int, int]],
    fates: list[CommitFate],
    *,
    cached: bool,
    repartition: bool,
    at_least_once: bool,
    slice_records: int | None,
    commit_turns: int,
    store_type: str,
    early_ms: int,
) -> None:
    bench = Bench(
        counting(caching=cached, repartition=repartition, store_type=store_type),
        {"in": 2, "out": 1},
        cache_bytes=1_000_000 if cached else 0,
        guarantee="at_least_once" if at_least_once else "exactly_once",
        commit_interval_ms=30,
        early_ms=early_ms,
    )
    bench.idle_polls = 15
    bench.slice_records, bench.commit_turns = slice_records, commit_turns
    bench.broker.commit_fates.extend(fates)
    batches = iter(records)
    # The fake client closes an open commit immediately while it waits, so nothing joins it. Caches
    # are flushed twice where possible.
    with (
        patch("tidewheel.tasks.commit.committer._OPEN_S", 0.0),
        patch("tidewheel.tasks.commit.commit_schedule._PAUSE_COMMITS", 0),
    ):
        for crash_after, lost_writes in lives:
            fill(bench, next(batches, ""), repartition=repartition)
            bench.live(crash_after=crash_after)
            bench.disk.lose(lost_writes)
        for batch in batches:
            fill(bench, batch, repartition=repartition)
        assert bench.live()
    expected = Counter("".join(records))
    changelog = {
        key: int.from_bytes(value or b"", "big") for key, value in bench.outputs(CHANGELOG)
    }
    assert changelog == expected
    if store_type == "rocksdb":
        assert counts_of(bench) == expected
    seen = outputs_of(bench)
    assert {key: numbers[-1] for key, numbers in seen.items()} == expected
    for key, numbers in seen.items():
        if at_least_once:
            assert cached or set(numbers) == set(range(1, expected[str(key)] + 1))
        elif cached:
            assert numbers == sorted(set(numbers))
        else:
            assert numbers == list(range(1, expected[str(key)] + 1))


def test_changes_of_a_flush_to_its_own_store_are_not_lost() -> None:
    class Reset(Processor[str, int, None, None]):
        def process(self, record: Any) -> None:
            if record.value == 3:
                self.context.get_state_store("counts").delete(record.key)
                fill(bench, "kx")

    builder = StreamsBuilder()
    counts = builder.stream("in", key_serde=STRING, value_serde=STRING).group_by_key()
    counts.count(store=Materialized("counts")).to_stream().process(Reset, stores=["counts"])
    bench = Bench(builder.build(), {"in": 1}, cache_bytes=1_000_000, commit_interval_ms=20)
    fill(bench, "kkk")
    bench.idle_polls = 60
    assert bench.live()
    assert counts_of(bench) == {"k": 1, "x": 1}
    changelog = {key: value for key, value in bench.outputs(CHANGELOG) if value is not None}
    assert {key: int.from_bytes(value, "big") for key, value in changelog.items()} == {
        "k": 1,
        "x": 1,
    }


def test_a_commit_leaves_out_buffered_records() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=20)
    bench.slice_records = 1
    assert bench.live()
    fill(bench, "abcabcabcabc")
    for crash in range(3):
        assert not bench.live(crash_at="committed")
        assert 0 < bench.committed[TopicPartition("in", 0)] < 12, crash
    assert bench.live()
    assert counts_of(bench) == {"a": 4, "b": 4, "c": 4}
    assert {tuple(numbers) for numbers in outputs_of(bench).values()} == {(1, 2, 3, 4)}


@pytest.mark.parametrize(
    ("turns", "cache_bytes"), [(0, 0), (12, 0), (0, 1_000_000), (12, 1_000_000)]
)
def test_a_crash_at_any_step_with_early_commits_loses_no_record(
    monkeypatch: pytest.MonkeyPatch, turns: int, cache_bytes: int
) -> None:
    for wait in (
        "commit.committer._OPEN_S",
        "commit.committer._SENDING_S",
        "task.worker_input._GATHER_S",
    ):
        monkeypatch.setattr(f"tidewheel.tasks.{wait}", 0.0)
    monkeypatch.setattr("tidewheel.tasks.commit.commit_schedule._PAUSE_COMMITS", 0)

    def life(step: int | None = None) -> tuple[Bench, bool]:
        bench = Bench(
            counting(),
            {"in": 2, "out": 1},
            commit_interval_ms=40,
            early_ms=10,
            max_poll_records=5,
            cache_bytes=cache_bytes,
        )
        bench.commit_turns, bench.idle_polls = turns, 15
        keys = iter("ab" * 40)
        bench.at_poll.append(lambda *_: fill(bench, next(keys, "")))
        return bench, bench.live(crash_after=step)

    whole, _ = life()
    assert whole.worker is not None
    steps = whole.fuse.steps
    # Two parts, each with outputs and changelogs, and one commit of both.
    initials = {"produce": "o", "produce changelog": "l", "commit": "c"}
    parts = "".join(initials.get(name, "") for name in steps)
    assert bool(re.search("co+l+o+l+c", parts)) is (turns > 0), parts
    crashes = 0
    for step in range(len(steps)):
        bench, survived = life(step)
        crashes += not survived
        last = bench.fuse.steps[-1]
        assert bench.live()
        expected = Counter(each.key.decode() for each in bench.broker.records("in") if each.key)
        assert counts_of(bench) == expected, last
        seen = outputs_of(bench)
        assert seen.keys() == expected.keys(), last
        for key, counts in seen.items():
            count = expected[str(key)]
            assert counts[-1] == count, last
            assert counts == (sorted(set(counts)) if cache_bytes else [*range(1, count + 1)]), last
    assert crashes >= len(steps) * 3 // 4


def test_a_crash_at_any_step_loses_no_record() -> None:
    whole = Bench(counting(repartition=True), {"in": 2, "out": 1})
    fill(whole, "abcab", repartition=True)
    assert whole.live()
    kinds = set(whole.fuse.steps)
    assert {
        "init",
        "initialised",
        "produce",
        "produce changelog",
        "commit",
        "committed",
        "write",
        "written",
    } <= kinds
    crashes = 0
    for step in range(len(whole.fuse.steps)):
        bench = Bench(counting(repartition=True), {"in": 2, "out": 1})
        fill(bench, "abcab", repartition=True)
        crashes += not bench.live(crash_after=step)
        last = bench.fuse.steps[-1]
        assert bench.live()
        assert outputs_of(bench) == outputs_of(whole), last
        assert counts_of(bench) == counts_of(whole), last
    # How many steps a life has depends a little on which task is restored first.
    assert crashes >= len(whole.fuse.steps) * 3 // 4


@pytest.mark.parametrize(
    "fate", [CommitFate.UNKNOWN_COMMITTED, CommitFate.UNKNOWN_OPEN, CommitFate.ABORTS]
)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_unknown_outcome_changes_nothing(fate: CommitFate, which: int) -> None:
    bench = Bench(counting(), {"in": 1, "out": 1})
    bench.broker.commit_fates.extend([CommitFate.COMMITS] * which + [fate])
    fill(bench, "aab")
    bench.at_poll.append(
        lambda worker, source: (
            fill(bench, "ab") if source.polls in (15, 30) and not bench.events else None
        )
    )
    assert bench.live()
    expected = Counter(record.key.decode() for record in bench.broker.records("in") if record.key)
    assert counts_of(bench) == expected
    assert outputs_of(bench) == {key: list(range(1, count + 1)) for key, count in expected.items()}
    assert bench.worker is not None
    assert bench.worker.metrics.rolled_back == (fate is CommitFate.UNKNOWN_OPEN)


# -- restoring --------------------------------------------------------------------------------------------------------


def test_a_lost_disk_is_restored_from_the_changelog() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1})
    fill(bench, "aabbb")
    assert bench.live()
    bench.disk.versions.clear()
    fill(bench, "a")
    assert bench.live()
    assert counts_of(bench) == {"a": 3, "b": 3}
    kinds = [event.kind for event in bench.events]
    assert (kinds[0], kinds[-1]) == ("start", "end")
    assert "batch" in kinds
    first, last = bench.events[0], bench.events[-1]
    assert (first.store, first.topic, first.partition, first.start, first.restored) == (
        "counts",
        CHANGELOG,
        0,
        0,
        0,
    )
    assert last.restored == 2
    assert last.end == first.end > 0


def test_a_disk_behind_the_changelog_replays_the_tail_only() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1})
    fill(bench, "abcdefgh")
    assert bench.live()
    fill(bench, "a")
    assert not bench.live(crash_at="committed")
    assert bench.live()
    assert bench.events[0].start > 0
    assert bench.events[-1].restored == 1
    assert counts_of(bench)["a"] == 2
    assert outputs_of(bench)["a"] == [1, 2]


def test_a_damaged_database_is_wiped_and_restored() -> None:
    bench = Bench(counting(), {"in": 2, "out": 1})
    fill(bench, "abcdefgh")
    assert bench.live()
    before = counts_of(bench)
    bench.disk.corrupted.add("0_1")
    assert bench.live()
    assert {event.partition for event in bench.events} == {1}
    assert counts_of(bench) == before


def test_a_recreated_changelog_empties_its_store() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1})
    fill(bench, "ab")
    assert bench.live()
    bench.broker.delete_topic(CHANGELOG)
    bench.broker.create_topic(CHANGELOG, 1)
    assert bench.live()
    assert counts_of(bench) == {}


# -- starting ---------------------------------------------------------------------------------------------------------


def test_earlier_producers_are_fenced_before_offsets_are_read() -> None:
    bench = Bench(counting(), {"in": 2, "out": 1})
    fill(bench, "aabb")
    for _ in range(2):
        assert bench.live(transactional_id="app-fixed-1")
        fill(bench, "ab")
        assert not bench.live(transactional_id="app-fixed-1", crash_at="commit")
    bench.broker.fenced.clear()
    assert bench.live(transactional_id="app-fixed-2")
    assert bench.broker.fenced == ["app-fixed-1"]
    assert counts_of(bench) == Counter("aabbabab")


def test_a_fenced_worker_ends() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1})
    fill(bench, "a")

    def take_over(worker: Any, source: Source) -> None:
        if source.polls == 3:
            bench.broker.init_producer("app-fixed-0")
            fill(bench, "b")

    bench.at_poll.append(take_over)
    with pytest.raises(FencedError):
        bench.live()
    assert bench.outputs("out") == []


def test_a_group_with_subscribers_is_refused() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1})
    bench.broker.members[APP] = ("'billing' on 10.0.0.7", "'audit' on 10.0.0.8")
    with pytest.raises(
        StreamsError, match=r"2 subscribed members \('billing' on 10.0.0.7, 'audit' on"
    ):
        bench.live()


def test_a_recreated_input_topic_is_not_read_on() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1})
    fill(bench, "aaa")
    assert bench.live()
    bench.broker.delete_topic("in")
    bench.broker.create_topic("in", 1)
    fill(bench, "bbbb")
    with pytest.raises(StreamsError, match="in was deleted and created again"):
        bench.live()


def test_stream_time_continues_after_a_restart() -> None:
    fired: list[int] = []

    class Ticking(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            super().init(context)
            times.append(context.current_stream_time_ms())
            context.schedule(100, PunctuationType.STREAM_TIME, fired.append)

        def process(self, record: Any) -> None:
            times.append(self.context.current_stream_time_ms())

    times: list[int] = []
    topology = (
        Topology()
        .add_source("read", "in", key_serde=STRING, value_serde=STRING)
        .add_processor("tick", Ticking, "read")
    )
    bench = Bench(topology, {"in": 1})
    bench.send("in", "k", "v", 450)
    bench.send("in", "k", "v", 420)
    assert bench.live()
    bench.send("in", "k", "v", 430)
    assert bench.live()
    assert times == [-1, 450, 450, 450, 450]


def test_a_worker_without_tasks_is_running() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1})
    worker = bench.make_worker(assigned=frozenset())
    inner = worker._wake.wait

    def wait(timeout: float | None = None) -> bool:
        worker.stop()
        return inner(0)

    worker._wake.wait = wait  # type: ignore[method-assign]
    worker.run()
    assert bench.running[-1] is True


def test_workers_share_tasks_by_assignment() -> None:
    bench = Bench(counting(), {"in": 2, "out": 1})
    fill(bench, "abcdefgh")
    assert bench.live(assigned=frozenset({TaskId(0, 0)}), transactional_id="app-fixed-0")
    first = set(counts_of(bench))
    assert bench.live(assigned=frozenset({TaskId(0, 1)}), transactional_id="app-1")
    assert first < set(counts_of(bench)) == set("abcdefgh")


# -- sinks, errors ----------------------------------------------------------------------------------------------------


def test_at_least_once_flushes_sinks_before_offsets() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, guarantee="at_least_once")
    fill(bench, "aab")
    assert bench.live()
    steps = [step for step in bench.fuse.steps if step in ("send", "flush", "commit")]
    assert "send" in steps
    assert steps.index("send") < len(steps) - 2
    for before, after in itertools.pairwise(steps):
        assert after != "commit" or before == "flush"


def test_a_failing_record_stops_the_worker_and_is_not_committed() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=STRING, value_serde=STRING)
    stream.map_values(lambda value: str(1 // int(value))).to(
        "out", key_serde=STRING, value_serde=STRING
    )
    bench = Bench(builder.build(), {"in": 1, "out": 1})
    bench.send("in", "k", "1")
    assert bench.live()
    bench.send("in", "k", "1")
    bench.send("in", "k", "0")
    for _ in range(2):
        with pytest.raises(RecordFailedError, match=r"in-0 offset 2.*ZeroDivisionError"):
            bench.live()
        assert bench.outputs("out") == [("k", b"1")]
        assert bench.committed == {TopicPartition("in", 0): 1}


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_refused_output_is_left_out_with_a_dead_letter(guarantee: str) -> None:
    bench = Bench(
        counting(caching=False),
        {"in": 1, "out": 1, "dead": 1},
        guarantee=guarantee,
        production_exception_handler="continue",
        dead_letter_queue_topic="dead",
    )
    bench.broker.refuse("out", lambda record: record.value == (2).to_bytes(8, "big"))
    fill(bench, "aaab")
    assert bench.live()
    assert outputs_of(bench) == {"a": [1, 3], "b": [1]}
    assert bench.outputs("dead") == [("a", b"x")]
    assert counts_of(bench) == {"a": 3, "b": 1}
