"""Early commits change only when a commit starts."""

import itertools
import threading
import time
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest

from tests.fakes.clients import FakeTransactionalProducer
from tests.tasks.loop.bench import Bench, Producer, Source
from tests.tasks.loop.test_stream_worker import counting, counts_of, fill, outputs_of
from tidewheel.rebalance.model import TaskId
from tidewheel.tasks.commit.commit_schedule import CommitState
from tidewheel.tasks.commit.committer import run_in_thread
from tidewheel.tasks.kafka.ports import Positions
from tidewheel.tasks.loop.stream_worker import StreamWorker
from tidewheel.tasks.task.active_task import ActiveTask
from tidewheel.tasks.task.task import Task

#: As many keys as records: no key repeats.
DIFFERENT = "".join(map(chr, range(0x4E00, 0x4E00 + 600)))

#: Ten keys that repeat often.
OFTEN = "abcdefghij" * 60


def commit_steps_of(bench: Bench, records: str = "a" * 600) -> list[tuple[int, str]]:
    seen: list[tuple[int, str]] = []
    keys = iter(records)

    def watch(worker: StreamWorker, _: Source) -> None:
        fill(bench, key := next(keys, ""))
        committer = worker._loop.commits.round.committer
        if not key:
            del committer.prepare, committer.extend
            bench.at_poll.clear()
        elif "prepare" not in vars(committer):
            prepare, extend = committer.prepare, committer.extend

            def prepared(commit: Any, background: Any, *, opens: bool = False) -> None:
                seen.append((bench.clock.now_ms(), "open" if opens else "begin"))
                prepare(commit, background, opens=opens)

            def extended(more: Any) -> bool:
                seen.append((bench.clock.now_ms(), "join"))
                return extend(more)

            vars(committer).update(prepare=prepared, extend=extended)

    bench.at_poll.append(watch)
    bench.commit_turns = 12
    with (
        patch("tidewheel.tasks.commit.committer._OPEN_S", 0.0),
        patch("tidewheel.tasks.task.worker_input._GATHER_S", 0.0),
    ):
        assert bench.live()
    assert counts_of(bench) == Counter(records)
    return seen


def test_commits_of_a_worker_that_keeps_up_start_early_and_keep_their_deadlines() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=100, early_ms=6)
    steps = commit_steps_of(bench)
    first = [what for _, what in steps].index("join")  # how much comes before depends on the start
    seen = steps[first + 1 :]
    assert [what for _, what in seen] == ["open", "join"] * (len(seen) // 2)
    opened, whole = ([at_ms for at_ms, what in seen if what == each] for each in ("open", "join"))
    assert len(whole) >= 4
    assert all(4 <= due - at <= 8 for at, due in zip(opened, whole, strict=True)), seen
    apart = [after - before for before, after in itertools.pairwise(whole)]
    assert all(98 <= each <= 103 for each in apart), apart


@pytest.mark.parametrize(("early_ms", "what"), [(12, "join"), (0, "begin")])
def test_a_commit_that_starts_late_does_not_delay_later_ones(early_ms: int, what: str) -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=100, early_ms=early_ms)
    bench.at_poll.append(lambda *_: bench.clock.advance(2))
    times = [at_ms for at_ms, each in commit_steps_of(bench)[2:] if each == what]
    assert len(times) >= 10
    apart = [after - before for before, after in itertools.pairwise(times)]
    assert set(apart) == {99, 102}, apart
    assert abs(sum(apart) / len(apart) - 100) <= 0.3, apart


@pytest.mark.parametrize(
    "changes",
    [
        {"guarantee": "at_least_once"},
        {"max_poll_records": 1},
        {"early_ms": 0},
        {"threads": 2},
    ],
)
def test_commits_start_at_their_deadline_without_a_gain(changes: dict[str, Any]) -> None:
    settings = {"commit_interval_ms": 100, "early_ms": 6, **changes}
    seen = commit_steps_of(Bench(counting(), {"in": 1, "out": 1}, **settings))
    assert len(seen) >= 3
    assert {what for _, what in seen} == {"begin"}


def cached() -> Bench:
    return Bench(
        counting(), {"in": 1, "out": 1}, commit_interval_ms=100, early_ms=6, cache_bytes=1_000_000
    )


def test_a_cache_without_repeated_keys_is_flushed_early() -> None:
    bench = cached()
    seen = commit_steps_of(bench, DIFFERENT)[2:]
    assert [what for _, what in seen] == ["open", "join"] * (len(seen) // 2)
    assert len(seen) >= 6
    assert outputs_of(bench) == {key: [1] for key in DIFFERENT}


def test_a_cache_with_repeated_keys_is_flushed_at_the_deadline() -> None:
    bench = cached()
    seen = [what for _, what in commit_steps_of(bench, OFTEN)]
    assert seen[seen.index("join") :] == ["join"] + ["begin"] * (len(seen) - seen.index("join") - 1)
    assert seen.count("begin") >= 4
    # And one more, when the worker ends.
    assert all(len(each) <= len(seen) + 1 for each in outputs_of(bench).values())


def test_early_cache_flushes_are_tried_again_after_a_pause() -> None:
    with patch("tidewheel.tasks.commit.commit_schedule._PAUSE_COMMITS", 2):
        seen = [what for _, what in commit_steps_of(cached(), OFTEN[:200] + DIFFERENT[:400])]
    assert "begin" in seen[seen.index("join") :]
    assert seen[-4:] == ["open", "join"] * 2


def test_a_cache_is_flushed_once_after_a_separate_early_commit() -> None:
    bench = cached()
    bench.commit_turns = 60
    keys = iter(DIFFERENT)
    opened: list[int] = []

    def close(worker: StreamWorker, _: Source) -> None:
        fill(bench, next(keys, ""))
        committer = worker._loop.commits.round.committer
        if worker._loop.commits.round.is_early:
            opened.append(worker._loop.commits.round.sequence.number)
            assert committer._in_flight is not None
            committer._in_flight.attempt.result()  # nothing has joined it in time

    bench.at_poll.append(close)
    with (
        patch("tidewheel.tasks.commit.committer._OPEN_S", 0.0),
        patch("tidewheel.tasks.task.worker_input._GATHER_S", 0.0),
    ):
        assert bench.live()
    assert len(set(opened)) == 1
    assert outputs_of(bench) == {key: [1] for key in DIFFERENT}


def test_repeated_keys_without_a_cache_allow_early_commits() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=100, early_ms=6)
    steps = [what for _, what in commit_steps_of(bench)]
    first = steps.index("open", 2)  # how much comes before depends on the start
    assert steps[first : first + 6] == ["open", "join"] * 3


def test_repartition_topics_exclude_early_commits() -> None:
    bench = Bench(
        counting(repartition=True), {"in": 1, "out": 1}, commit_interval_ms=100, early_ms=6
    )
    values = iter("a" * 600)
    opened: list[bool] = []

    def watch(worker: StreamWorker, _: Source) -> None:
        fill(bench, next(values, ""), repartition=True)
        opened.append(worker._loop.commits.round.is_early)

    bench.at_poll.append(watch)
    assert bench.live()
    assert not any(opened)
    assert counts_of(bench) == {"a": 600}


def test_an_open_commit_without_a_second_part_is_followed_by_another() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=100, early_ms=20)
    bench.commit_turns = 60
    keys = iter("a" * 600)
    late: list[bool] = []

    def close(worker: StreamWorker, _: Source) -> None:
        fill(bench, next(keys, ""))
        committer = worker._loop.commits.round.committer
        left_s = worker._schedule.due_s - bench.clock.monotonic_s()
        if worker._loop.commits.round.is_early and left_s < 0.0005:  # a turn is a millisecond here
            assert committer._in_flight is not None
            committer._in_flight.attempt.result()  # it has had to wait until now
            late.append(not committer._in_flight.is_open)

    bench.at_poll.append(close)
    with (
        patch("tidewheel.tasks.commit.committer._OPEN_S", 0.0),
        patch("tidewheel.tasks.task.worker_input._GATHER_S", 0.0),
    ):
        assert bench.live()
    assert bench.worker is not None
    number, total_s, _ = bench.worker.metrics.commit_times
    assert number == bench.worker.metrics.commits > 0
    assert total_s > 0
    assert len(late) >= 2
    assert all(late)
    assert counts_of(bench) == {"a": 600}
    assert outputs_of(bench) == {"a": list(range(1, 601))}


class SlowOffsets:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answered = threading.Event()
        send_offsets = FakeTransactionalProducer.send_offsets

        def send(producer: FakeTransactionalProducer, group: str, offsets: Any) -> None:
            assert self.answered.wait(30)
            send_offsets(producer, group, offsets)

        monkeypatch.setattr("tidewheel.tasks.commit.committer._OPEN_S", 60.0)
        monkeypatch.setattr("tidewheel.tasks.task.worker_input._GATHER_S", 0.0)
        monkeypatch.setattr(Producer, "send_offsets", send)
        self.bench = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=100, early_ms=20)
        self.bench.background = run_in_thread
        self.keys = iter("a" * 600)
        self.bench.at_poll.append(lambda *_: fill(self.bench, next(self.keys, "")))

    def late_ms(self, worker: StreamWorker) -> float:
        if worker._loop.commits.state is not CommitState.OPENING or self.answered.is_set():
            return 0.0
        return 1000 * (self.bench.clock.monotonic_s() - worker._schedule.due_s)


def test_the_loop_does_not_wait_for_slow_offsets_of_an_open_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = SlowOffsets(monkeypatch)
    done: list[int] = []
    joined: list[bool] = []

    def watch(worker: StreamWorker, _: Source) -> None:
        committer = worker._loop.commits.round.committer
        if "extend" not in vars(committer):
            extend = committer.extend

            def joining(more: Any) -> bool:
                joined.append(extend(more))
                return joined[-1]

            vars(committer).update(extend=joining)
        late_ms = slow.late_ms(worker)
        if late_ms > 0:
            done.append(worker.metrics.processed)
        if late_ms > 30:
            assert not joined
            slow.answered.set()
            while committer.state is CommitState.OPENING:
                time.sleep(0.001)

    slow.bench.at_poll.append(watch)
    assert slow.bench.live()
    assert done[-1] - done[0] >= 25
    assert joined[0]
    assert counts_of(slow.bench) == {"a": 600}
    assert outputs_of(slow.bench) == {"a": list(range(1, 601))}


def test_the_loop_is_no_further_ahead_of_an_open_commit_than_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = SlowOffsets(monkeypatch)
    opened_ms: list[int] = []
    ended_ms: list[int] = []

    def watch(worker: StreamWorker, _: Source) -> None:
        committer = worker._loop.commits.round.committer
        if worker._loop.commits.round.is_early:
            opened_ms.append(slow.bench.clock.now_ms())
        if opened_ms and "complete" not in vars(committer):
            complete = committer.complete

            def ending() -> Positions:
                ended_ms.append(slow.bench.clock.now_ms())
                slow.answered.set()
                return complete()

            vars(committer).update(complete=ending)

    slow.bench.at_poll.append(watch)
    assert slow.bench.live()
    assert 98 <= ended_ms[0] - opened_ms[0] <= 102
    assert counts_of(slow.bench) == {"a": 600}
    assert outputs_of(slow.bench) == {"a": list(range(1, 601))}


def test_a_task_that_starts_during_an_open_commit_joins_it() -> None:
    bench = Bench(counting(), {"in": 2, "out": 1}, commit_interval_ms=100, early_ms=20)
    bench.commit_turns = 1_000_000
    late: list[Task] = []

    def hide(worker: StreamWorker, _: Source) -> None:
        running = worker._loop.manager.running
        if worker._loop.commits.round.is_early and late:
            task = late.pop()
            running[task.task_id] = task
        elif (
            worker.metrics.processed and worker._loop.commits.state is CommitState.NONE and not seen
        ):
            seen.append(True)
            late.append(running.pop(TaskId(0, 1)))

    seen: list[bool] = []
    keys = iter("abcdefgh" * 20)
    bench.at_poll += [lambda *_: fill(bench, next(keys, "")), hide]
    assert bench.live()
    assert seen
    assert not late
    assert counts_of(bench) == dict.fromkeys("abcdefgh", 20)


def test_an_idle_worker_waits_until_the_deadline() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=1_000, early_ms=250)
    bench.idle_polls = 400
    waits: list[float] = []

    def watch(_: StreamWorker, source: Source) -> None:
        if "poll" not in vars(source):
            poll = source.poll

            def recorded(max_records: int, timeout_s: float) -> Any:
                waits.append(timeout_s)
                return poll(max_records, timeout_s)

            vars(source)["poll"] = recorded

    bench.at_poll.append(watch)
    fill(bench, "a")
    assert bench.live()
    assert len(waits) > 300
    assert sum(1 for each in waits if each <= 0) <= 2 * (len(waits) // 100 + 1)


def test_a_custom_store_joins_no_open_commit() -> None:
    bench = Bench(counting(), {"in": 2, "out": 1}, commit_interval_ms=100, early_ms=20)
    bench.commit_turns = 1_000_000
    keys = iter("abcdefgh" * 40)
    in_progress: list[bool] = []

    def admit(worker: StreamWorker, _: Source) -> None:
        fill(bench, next(keys, ""))
        task = worker.tasks[TaskId(0, 1)]
        if worker._loop.commits.round.is_early and not in_progress:
            task.__class__ = OwnStores
            in_progress.append(True)
        elif in_progress:
            in_progress.append(
                worker._loop.commits.state in (CommitState.COMMITTING, CommitState.ANSWERED)
            )

    bench.at_poll.append(admit)
    assert bench.live()
    assert len(in_progress) > 50
    assert not any(in_progress[1:])
    assert counts_of(bench) == dict.fromkeys("abcdefgh", 40)


class OwnStores(ActiveTask):
    @property
    def may_be_ahead(self) -> bool:
        return False


def test_rows_that_cannot_be_merged_are_restored() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=100, early_ms=20)
    bench.commit_turns = 1_000_000
    keys = iter("ab" * 100)
    bench.at_poll.append(lambda *_: fill(bench, next(keys, "")))
    with (
        patch("tidewheel.tasks.commit.commit_round.merge_changes", side_effect=MemoryError),
        pytest.raises(MemoryError),
    ):
        bench.live()
    assert bench.live()
    assert set(counts_of(bench)) == {"a", "b"}
    assert outputs_of(bench) == {key: list(range(1, n + 1)) for key, n in counts_of(bench).items()}
    written = [each.key.decode() for each in bench.broker.records("in") if each.key]
    assert counts_of(bench) == {key: written.count(key) for key in "ab"}
