"""Rounds of a worker: purging, pausing, caches, schedules, contents of each commit."""

import itertools
import threading
from typing import Any

import pytest

from tests.fakes.broker import CommitFate
from tests.tasks.loop.bench import APP, Bench, Producer, Sinks, Source
from tests.tasks.loop.test_stream_worker import counting, counts_of, fill, outputs_of
from tidewheel import (
    Processor,
    PunctuationType,
    RecordFailedError,
    Serdes,
    StreamsBuilder,
    StreamsError,
    Topology,
)
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.tasks.commit.commit_schedule import CommitState
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector
from tidewheel.tasks.loop.stream_worker import StreamWorker
from tidewheel.tasks.task.worker_settings import recommit_interval_ms

STRING, INT = Serdes.string(), Serdes.int64()


def test_a_failed_purge_does_not_stop_the_worker() -> None:
    bench = Bench(counting(repartition=True), {"in": 1, "out": 1}, repartition_purge_interval_ms=20)
    fill(bench, "abc", repartition=True)
    admin = bench.clients.admin()
    calls: list[int] = []

    def refuse(before: Any) -> None:
        calls.append(len(before))
        raise StreamsError("no controller")

    admin.delete_records = refuse  # type: ignore[method-assign]
    bench.clients.admin = lambda: admin  # type: ignore[method-assign]
    assert bench.live()
    assert calls
    assert counts_of(bench) == {"a": 1, "b": 1, "c": 1}


def test_idle_producers_deliver_their_events_while_no_commit_is_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, guarantee="at_least_once")
    served: list[tuple[str, CommitState]] = []
    workers: list[StreamWorker] = []
    bench.at_poll.append(lambda worker, _: workers.append(worker))
    for name, kind in (("producer", Producer), ("sinks", Sinks)):

        def serve(_: Any, name: str = name) -> None:
            state = workers[-1]._loop.commits.state if workers else CommitState.NONE
            served.append((name, state))

        monkeypatch.setattr(kind, "serve", serve)
    assert bench.live()
    assert {("producer", CommitState.NONE), ("sinks", CommitState.NONE)} == set(served)


# -- pace -------------------------------------------------------------------------------------------------------------


def test_full_partitions_are_paused_and_resumed() -> None:
    bench = Bench(
        counting(), {"in": 2, "out": 1}, max_poll_records=1_000, buffered_records_per_partition=40
    )
    for number in range(400):
        bench.send("in", f"{number % 2}-{number % 7}", "x", partition=number % 2)
    moves: list[tuple[str, int]] = []
    largest = 0

    def watch(worker: Any, source: Source) -> None:
        nonlocal largest
        if source.polls == 1:
            worker.paused = frozenset({0})
            for name in ("pause", "resume"):
                inner = getattr(source, name)

                def recorded(partitions: Any, name: str = name, inner: Any = inner) -> None:
                    buffered = worker.tasks[TaskId(0, partitions[0].partition)].group.records
                    moves.append((name, buffered))
                    inner(partitions)

                setattr(source, name, recorded)
        if source.polls == 10:
            worker.paused = frozenset()
        largest = max(largest, *(task.group.records for task in worker.tasks.values()))

    bench.at_poll.append(watch)
    assert bench.live()
    assert sum(counts_of(bench).values()) == 400
    assert {name for name, _ in moves} == {"pause", "resume"}
    assert all(buffered >= 40 for name, buffered in moves if name == "pause")
    assert all(buffered <= 10 for name, buffered in moves if name == "resume")


def test_a_paused_worker_processes_no_records_and_resumes_at_its_position() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1})
    fill(bench, "aab")
    processed: list[int] = []

    def watch(worker: Any, source: Source) -> None:
        worker.paused = frozenset({0} if source.polls < 40 else ())
        if worker.paused:
            processed.append(worker.metrics.processed)

    bench.at_poll.append(watch)
    assert bench.live()
    # The first poll may come before the pause.
    assert set(processed[2:]) == {processed[2]}
    assert counts_of(bench) == {"a": 2, "b": 1}


def test_a_paused_subtopology_does_not_stop_the_others() -> None:
    bench = Bench(counting(repartition=True), {"in": 1, "out": 1}, commit_interval_ms=5)
    fill(bench, "aab", repartition=True)
    seen: list[tuple[int, int]] = []

    def watch(worker: Any, source: Source) -> None:
        worker.paused = frozenset({1} if source.polls < 60 else ())
        if worker.paused:
            done = {
                each.subtopology: task.counters.processed for each, task in worker.tasks.items()
            }
            seen.append((done.get(0, 0), done.get(1, 0)))

    bench.at_poll.append(watch)
    assert bench.live()
    assert seen[-1] == (3, 0)
    assert counts_of(bench) == {"a": 2, "b": 1}


def test_uncommitted_bytes_force_a_commit() -> None:
    small = Bench(
        counting(),
        {"in": 1, "out": 1},
        commit_interval_ms=60_000,
        statestore_uncommitted_max_bytes=1,
    )
    fill(small, "abcdef" * 20)
    large = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=60_000)
    fill(large, "abcdef" * 20)
    assert small.live()
    assert large.live()
    assert small.worker is not None
    assert large.worker is not None
    assert small.worker.metrics.commits > large.worker.metrics.commits
    assert counts_of(small) == counts_of(large)


def test_a_full_cache_forwards_the_least_recently_changed() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, cache_bytes=60, commit_interval_ms=60_000)
    fill(bench, "abcdefgh" * 3)
    assert bench.live()
    assert {key: numbers[-1] for key, numbers in outputs_of(bench).items()} == dict.fromkeys(
        "abcdefgh", 3
    )


def test_lag_is_computed_from_the_ends_the_client_knows() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1})
    assert bench.make_worker().lags() == {}
    fill(bench, "aaaa")
    lags: list[Any] = []
    bench.at_poll.append(lambda worker, source: lags.append(worker.lags()))
    assert bench.live()
    assert lags[-1] == {TopicPartition("in", 0): 0}


def test_wall_clock_schedules_run_in_a_worker() -> None:
    fired: list[int] = []

    class Ticking(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(40, PunctuationType.WALL_CLOCK_TIME, fired.append)

        def process(self, record: Any) -> None:
            pass

    topology = (
        Topology()
        .add_source("read", "in", key_serde=STRING, value_serde=STRING)
        .add_processor("tick", Ticking, "read")
    )
    bench = Bench(topology, {"in": 1})
    begin_ms = bench.clock.now_ms()
    assert bench.live()
    assert len(fired) >= 3
    assert all(later - earlier >= 40 for earlier, later in itertools.pairwise(fired))
    assert fired[0] >= begin_ms + 40


def test_quiet_partitions_are_committed_again() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1})
    fill(bench, "a")
    assert bench.live()
    commits: list[int] = []

    def later(worker: Any, source: Source) -> None:
        commits.append(worker.metrics.commits)
        if source.polls == 25:
            bench.clock.advance(13 * 3_600_000)

    bench.at_poll.append(later)
    bench.idle_polls = 60
    assert bench.live()
    assert commits[20] == commits[24]
    assert commits[-1] == commits[24] + 1


def test_a_shorter_offset_retention_commits_quiet_partitions_more_often() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, recommit_ms=recommit_interval_ms(86_400_000))
    fill(bench, "a")
    assert bench.live()
    commits: list[int] = []

    def later(worker: Any, source: Source) -> None:
        commits.append(worker.metrics.commits)
        if source.polls in (25, 45):
            bench.clock.advance(7 * 1_800_000)

    bench.at_poll.append(later)
    bench.idle_polls = 80
    assert bench.live()
    assert commits[20] == commits[44], "three and a half hours are not enough, six are"
    assert commits[-1] == commits[44] + 1


def test_commit_metadata_has_the_transactional_id_and_progress() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1})
    bench.send("in", "a", "x", 700)
    bench.send("in", "a", "x", 650)
    assert bench.live()
    found: CommittedOffset = bench.broker.groups[APP][TopicPartition("in", 0)]
    progress = Progress.decode(found.metadata, committed_offset=found.offset)
    assert progress is not None
    assert progress.transactional_id == "app-fixed-0"
    assert progress.topic_id == bench.broker.topics["in"].topic_id
    assert progress.vector == Vector.at(2)
    assert progress.stream_time_ms == 700


def test_only_commits_count_as_commits() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=1)
    bench.idle_polls = 300
    still = bench.clock.monotonic_s

    def moving() -> float:
        bench.clock.advance(1)
        return still()

    bench.clock.monotonic_s = moving  # type: ignore[method-assign]
    fill(bench, "aab")
    assert bench.live()
    assert bench.worker is not None

    number, total_s, longest_s = bench.worker.metrics.commit_times

    assert number == bench.worker.metrics.commits > 0
    assert 0 < total_s / number <= longest_s


# -- while a commit is under way ---------------------------------------------------------------------------------------


def steps_of_a_long_commit(bench: Bench) -> list[tuple[int, int]]:
    bench.commit_turns = 40
    seen: list[tuple[int, int]] = []
    keys = iter("a" * 100)

    def feed(worker: StreamWorker, _: Source) -> None:
        fill(bench, next(keys, ""))
        if worker._loop.commits.state is not CommitState.NONE and worker.metrics.processed:
            seen.append((worker.metrics.processed, worker.metrics.commits))

    bench.at_poll.append(feed)
    assert bench.live()
    return seen


def test_records_are_processed_during_a_commit() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=5)
    seen = steps_of_a_long_commit(bench)
    one_commit = [processed for processed, commits in seen if commits == seen[0][1]]
    assert one_commit[-1] - one_commit[0] > 10
    (numbers,) = outputs_of(bench).values()
    assert numbers == list(range(1, len(numbers) + 1))
    assert counts_of(bench) == {"a": len(numbers)}


def test_the_loop_is_a_commit_interval_ahead_at_most() -> None:
    for interval_ms, most_ms in ((5, 100), (150, 150)):
        bench = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=interval_ms)
        bench.commit_turns, bench.idle_polls = 1_000_000, 60
        in_progress_ms: dict[int, list[int]] = {}

        def note(
            worker: StreamWorker,
            _: Source,
            bench: Bench = bench,
            in_progress_ms: dict[int, list[int]] = in_progress_ms,
        ) -> None:
            if worker._loop.commits.state is not CommitState.NONE:
                now_ms = bench.clock.now_ms()
                in_progress_ms.setdefault(worker.metrics.commits, []).append(now_ms)

        bench.at_poll.append(note)
        fill(bench, "abc")
        assert bench.live()
        lengths = [each[-1] - each[0] for each in in_progress_ms.values()]
        assert lengths
        assert most_ms - 30 <= max(lengths) <= most_ms


@pytest.mark.parametrize(
    ("turns", "busy", "from_begin"), [(20, True, True), (80, True, False), (80, False, True)]
)
def test_the_next_interval_starts_with_a_commit_unless_a_busy_worker_took_long(
    turns: int, busy: bool, from_begin: bool
) -> None:
    bench = Bench(
        counting(),
        {"in": 1, "out": 1},
        commit_interval_ms=100,
        max_poll_records=1 if busy else 1_000,
    )
    bench.commit_turns = turns
    under_way: list[tuple[int, bool]] = []
    keys = iter("a" * 1_200)

    def feed(worker: StreamWorker, _: Source) -> None:
        fill(bench, next(keys, ""))
        under_way.append((bench.clock.now_ms(), worker._loop.commits.state is not CommitState.NONE))

    bench.at_poll.append(feed)
    assert bench.live()
    changes = [now for before, now in itertools.pairwise(under_way) if before[1] != now[1]]
    begins = [at_ms for at_ms, begun in changes if begun][1:5]
    apart = [after - before for before, after in itertools.pairwise(begins)]
    assert len(apart) == 3
    assert all(abs(each - (100 if from_begin else 100 + turns)) <= 3 for each in apart), apart


class Wakes(threading.Event):
    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []
        self.sets = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        return super().wait(timeout)

    def set(self) -> None:
        self.sets += 1
        super().set()


def waits_of(bench: Bench) -> Wakes:
    wakes = Wakes()
    make_worker = bench.make_worker

    def make(**changes: Any) -> StreamWorker:
        worker = make_worker(**changes)
        worker._wake = wakes
        return worker

    def feed(_: StreamWorker, source: Source) -> None:
        if source.polls < 20:
            fill(bench, "a")

    vars(bench)["make_worker"] = make
    bench.at_poll.append(feed)
    assert bench.live()
    assert counts_of(bench) == {"a": 19}
    return wakes


def test_few_records_are_gathered_while_results_wait_for_a_commit() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=60_000)
    waits = waits_of(bench).waits
    assert 0.0 < max(waits) < 0.0101
    assert sum(each > 0.0 for each in waits) > 10


@pytest.mark.parametrize(
    "settings", [{"guarantee": "at_least_once"}, {"max_poll_records": 1}], ids=["sinks", "all"]
)
def test_records_are_fetched_immediately_if_awaited_or_at_the_limit(
    settings: dict[str, Any],
) -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=60_000, **settings)
    assert waits_of(bench).waits == []


def test_the_end_of_a_commit_wakes_the_loop() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=5)
    wakes = waits_of(bench)
    assert bench.worker is not None
    assert wakes.sets > bench.worker.metrics.commits // 2 > 1


def test_gathering_does_not_delay_buffered_records() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, max_poll_records=1_000)
    fill(bench, "abc")
    seen: list[tuple[float, float]] = []

    def note(worker: StreamWorker, source: Source) -> None:
        if source.polls < 20:
            fill(bench, "ab")
        tasks = list(worker.tasks.values())
        if any(task.group.records for task in tasks):
            seen.append((worker._loop.work.gather_s(()), worker._loop.work.gather_s(tasks)))

    bench.at_poll.append(note)
    bench.slice_records = 1
    assert bench.live()
    assert any(gathering > 0.0 for gathering, _ in seen)
    assert all(current_record == 0.0 for _, current_record in seen)


def test_a_worker_with_buffered_records_does_not_keep_up() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, max_poll_records=1_000)
    bench.slice_records = 1
    fill(bench, "a" * 600)
    seen: dict[int, bool] = {}

    def note(worker: StreamWorker, source: Source) -> None:
        seen[source.polls] = worker._loop.work.keeps_up
        if source.polls == 10:
            bench.slice_records = None

    bench.at_poll.append(note)
    assert bench.live()
    assert not any(seen[polls] for polls in range(5, 11))
    assert seen[max(seen)]


def test_bytes_of_a_commit_in_progress_count_as_uncommitted() -> None:
    bench = Bench(
        counting(), {"in": 1, "out": 1}, commit_interval_ms=5, statestore_uncommitted_max_bytes=1
    )
    assert steps_of_a_long_commit(bench) == []
    assert counts_of(bench) == {"a": 100}


@pytest.mark.parametrize("fate", CommitFate)
def test_the_error_that_ends_the_tasks_is_raised_for_any_commit_outcome(fate: CommitFate) -> None:
    def checked(value: str) -> str:
        if value == "bad" and not mended:
            raise ValueError(value)
        return value

    mended: list[bool] = []
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=STRING, value_serde=STRING).map_values(checked)
    counts = stream.group_by_key().count(store="counts").to_stream()
    counts.to("out", key_serde=STRING, value_serde=INT)
    bench = Bench(builder.build(), {"in": 1, "out": 1}, commit_interval_ms=5)
    bench.commit_turns = 1_000_000

    def send_bad_record(worker: StreamWorker, _: Source) -> None:
        if worker._loop.commits.state is not CommitState.NONE and worker.metrics.processed == 1:
            bench.send("in", "a", "bad")
            bench.at_poll.clear()

    bench.at_poll.append(send_bad_record)
    bench.send("in", "a", "good")
    bench.broker.commit_fates.append(fate)
    with pytest.raises(RecordFailedError, match="bad"):
        bench.live()
    mended.append(True)
    assert bench.live()
    assert outputs_of(bench) == {"a": [1, 2]}
    assert counts_of(bench) == {"a": 2}


def test_a_commit_requested_during_another_follows_it_immediately() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=5_000)
    bench.commit_turns, bench.idle_polls = 50, 60
    requested: list[tuple[int, int]] = []
    began_ms: list[int] = []

    def request_commit(worker: StreamWorker, _: Source) -> None:
        if not worker.metrics.processed:
            worker._schedule.due_s = 0.0
        elif worker._loop.commits.state is not CommitState.NONE and not requested:
            fill(bench, "b")
            requested.append((bench.clock.now_ms(), worker._loop.commits.round.sequence.number))
        elif requested and worker.metrics.processed == 2 and not began_ms:
            if worker._loop.commits.round.sequence.number > requested[0][1]:
                began_ms.append(bench.clock.now_ms())
            elif worker._loop.commits.state is not CommitState.NONE:
                worker._schedule.due_s = worker._schedule.ahead_until_s = 0.0

    bench.at_poll.append(request_commit)
    fill(bench, "a")
    assert bench.live()
    assert began_ms
    assert began_ms[0] - requested[0][0] < 1_000
