"""Probes of a test's worker, wrapped around the product's methods.

They count on a scoreboard, or end the process at a step of a commit.
"""

import functools
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.integration.programs.scoreboard import Scoreboard
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.streams.kafka.producers.producer import ProducerClient
from tidewheel.streams.kafka.producers.transactional_producer import KafkaTransactionalProducer
from tidewheel.streams.worker.application.application_state import KafkaStreamsState
from tidewheel.tasks.commit.committer import Commit, Committer
from tidewheel.tasks.restore.run_ports import RunSettings
from tidewheel.tasks.restore.state_updater import RestoreEvent
from tidewheel.tasks.task.active_task import ActiveTask
from tidewheel.tasks.task.parallel_task import ParallelTask
from tidewheel.tasks.task.state_manager import StateManager
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.task_life import TaskLife

STEPS: Final = (
    "before_produce",
    "before_flush",
    "before_offsets",
    "before_commit",
    "ahead_of_commit",
    "during_commit",
    "after_commit",
    "ahead_of_apply",
    "before_apply",
    "after_apply",
)

#: A commit waits at most this long (s) for the loop to process more records meanwhile. Without such
#: records the next commit is tried, up to this many times.
_AHEAD_S: Final = 0.1
_AHEAD_TRIES: Final = 300

STATE_NUMBERS: Final = {state: number for number, state in enumerate(KafkaStreamsState)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """A signal that a worker sends itself at the `nth` time a commit with changes reaches a step.

    Steps in order: `before_produce`, `before_flush` (K1), `before_offsets` (K2), `before_commit`
    (K3), `during_commit` (K4, at a random moment), `after_commit` and `before_apply` (K5),
    `after_apply`. `ahead_of_commit` and `ahead_of_apply` come before and after K4, after records of
    the next commit were processed. Restores from sorted runs have `before_ingest` and
    `after_ingest`; additions to an open commit have `before_join` and `after_join`.
    """

    step: str
    nth: int
    signal: str = "SIGKILL"

    def strike(self) -> None:
        """Signal this thread: after SIGSTOP to the process, it could run until another thread
        stops.
        """
        signal.pthread_kill(threading.get_ident(), getattr(signal, self.signal))


def _wrapped(wrapper: Callable[..., None], method: Callable[..., None]) -> Callable[..., None]:
    return lambda self, *arguments: wrapper(method, self, *arguments)


def count_on(board: Scoreboard) -> Callable[[RestoreEvent], None]:
    """Count tasks and commits on a scoreboard; return a restore listener that counts too.

    `start:P` is the committed offset at which partition P began, `begun:P` the number of begins,
    `owns:P` is 1 while it is processed here. `position:P`, the next offset, changes after every
    slice of records. `committing` is 1 during a commit; `commits` counts all commits, `changes`
    those that change state. `restored:P` and `restore-from:P` describe changelogs.
    """
    process = ActiveTask.process

    def counting_start(start: Callable[..., None], self: Task, offsets: Any, *times: Any) -> None:
        for partition, offset in offsets.items():
            board[f"position:{partition}"] = offset
            board[f"start:{partition}"] = offset
            board[f"owns:{partition}"] = 1
            board.add(f"begun:{partition}")
        start(self, offsets, *times)

    def counting_retire(retire: Callable[[TaskLife], None], self: TaskLife) -> None:
        for partition in self.inputs.next_offsets:
            board[f"owns:{partition}"] = 0
        retire(self)

    def counting_process(self: ActiveTask, *arguments: Any) -> int:
        done = process(self, *arguments)
        for partition, offset in self.next_offsets.items():
            board[f"position:{partition}"] = offset
        return done

    def on_restore(event: RestoreEvent) -> None:
        where = f"{event.topic}-{event.partition}"
        board[f"restore-from:{where}"] = event.start
        board[f"restored:{where}"] = event.restored

    for kind in (ActiveTask, ParallelTask):
        wrapped: Any = kind
        wrapped.start = _wrapped(counting_start, kind.start)
    TaskLife.retire = _wrapped(counting_retire, TaskLife.retire)  # type: ignore[method-assign]
    ActiveTask.process = counting_process  # type: ignore[assignment,method-assign]
    _count_commits(board)
    return on_restore


def _count_commits(board: Scoreboard) -> None:
    prepare, complete = Committer.prepare, Committer.complete
    changes: list[bool] = []

    def counting_prepare(self: Committer, commit: Any, *background: Any, **options: Any) -> None:
        board["committing"] = 1
        changes[:] = [bool(commit.changelogs)]
        prepare(self, commit, *background, **options)

    def counting_complete(self: Committer) -> Any:
        positions = complete(self)
        board["committing"] = 0
        board.add("commits")
        if changes[0]:
            board.add("changes")
        return positions

    Committer.prepare = counting_prepare  # type: ignore[method-assign]
    Committer.complete = counting_complete  # type: ignore[method-assign]


def runs_from(records: int) -> Callable[..., RunSettings]:
    return functools.partial(RunSettings, from_records=records)


def meet(fate: Fate) -> None:
    counted = _Count(fate.nth)
    match fate.step:
        case "before_offsets":
            _around_call("send_offsets_to_transaction", fate, counted, after=False)
        case "before_commit" | "after_commit":
            _around_call("commit_transaction", fate, counted, after=fate.step == "after_commit")
        case "during_commit":
            _during_commit(fate, counted)
        case "ahead_of_commit" | "ahead_of_apply":
            _ahead(fate, counted)
        case "before_apply" | "after_apply":
            _around_apply(fate, counted, after=fate.step == "after_apply")
        case "before_ingest" | "after_ingest":
            _around_ingest(fate)
        case step:
            hit, owner, name = _CALLS[step]
            hit(owner, name, fate, counted)


def _around_ingest(fate: Fate) -> None:
    """Strike around an ingest of sorted files, while the store has no position."""
    ingest = TaskDatabase.ingest
    left = [fate.nth]

    def wrapped(self: TaskDatabase, family: str, files: Any) -> None:
        left[0] -= 1
        if left[0] == 0 and fate.step == "before_ingest":
            fate.strike()
        ingest(self, family, files)
        if left[0] == 0:
            fate.strike()

    TaskDatabase.ingest = wrapped  # type: ignore[method-assign]


class _Count:
    def __init__(self, nth: int) -> None:
        self._left = nth
        self._changing = False
        prepare = Committer.prepare

        def noting_prepare(
            committer: Committer, commit: Commit, *background: Any, **options: Any
        ) -> None:
            self._changing = bool(commit.changelogs)
            prepare(committer, commit, *background, **options)

        committer: Any = Committer
        committer.prepare = noting_prepare

    def reached(self) -> bool:
        if self._changing:
            self._left -= 1
        return self._changing and self._left == 0


def _before(owner: type, name: str, fate: Fate, count: _Count) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if count.reached():
            fate.strike()
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def _after(owner: type, name: str, fate: Fate, count: _Count) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if result is not False and count.reached():
            fate.strike()
        return result

    setattr(owner, name, wrapped)


_CALLS: Final[Mapping[str, tuple[Callable[[type, str, Fate, _Count], None], type, str]]] = {
    "before_produce": (_before, KafkaTransactionalProducer, "begin"),
    "before_flush": (_before, KafkaTransactionalProducer, "commit"),
    "before_join": (_before, Committer, "extend"),
    "after_join": (_after, Committer, "extend"),
    "offsets_sent_ahead": (_after, KafkaTransactionalProducer, "send_offsets"),
}


def _around_call(operation_name: str, fate: Fate, count: _Count, *, after: bool) -> None:
    call = ProducerClient.call_until

    def wrapped(
        self: ProducerClient,
        deadline_s: Callable[[], float],
        operation: Callable[..., Any],
        *arguments: Any,
        **options: Any,
    ) -> None:
        now = operation.__name__ == operation_name and count.reached()
        if now and not after:
            fate.strike()
        call(self, deadline_s, operation, *arguments, **options)
        if now and after:
            fate.strike()

    ProducerClient.call_until = wrapped  # type: ignore[method-assign]


def _during_commit(fate: Fate, count: _Count) -> None:
    call = ProducerClient.call_until

    def strike_soon() -> None:
        time.sleep(0.001)
        fate.strike()

    def wrapped(
        self: ProducerClient,
        deadline_s: Callable[[], float],
        operation: Callable[..., Any],
        *arguments: Any,
        **options: Any,
    ) -> None:
        if operation.__name__ == "commit_transaction" and count.reached():
            threading.Thread(target=strike_soon).start()
        call(self, deadline_s, operation, *arguments, **options)

    ProducerClient.call_until = wrapped  # type: ignore[method-assign]


def _ahead(fate: Fate, count: _Count) -> None:
    """Strike during or after a commit, once the loop has processed more records."""
    commit, process = KafkaTransactionalProducer.commit, ActiveTask.process
    in_commit, ahead = threading.Event(), threading.Event()
    tries = 0

    def held_commit(self: KafkaTransactionalProducer, *arguments: Any) -> Any:
        nonlocal tries
        if not (count.reached() or tries):
            return commit(self, *arguments)
        tries += 1
        assert tries <= _AHEAD_TRIES, "no record is processed during a commit"
        positions = commit(self, *arguments) if fate.step == "ahead_of_apply" else None
        ahead.clear()  # it may be left from the previous try
        in_commit.set()
        if ahead.wait(_AHEAD_S):
            fate.strike()
        in_commit.clear()
        return commit(self, *arguments) if positions is None else positions

    def noticed_process(self: ActiveTask, *arguments: Any) -> int:
        done = process(self, *arguments)
        if done and in_commit.is_set():
            ahead.set()
        return done

    KafkaTransactionalProducer.commit = held_commit  # type: ignore[assignment,method-assign]
    ActiveTask.process = noticed_process  # type: ignore[assignment,method-assign]


def _around_apply(fate: Fate, count: _Count, *, after: bool) -> None:
    apply = StateManager.apply

    def wrapped(self: StateManager, drained: Any, positions: Any, *, now_ms: int) -> None:
        now = bool(drained) and count.reached()
        if now and not after:
            fate.strike()
        apply(self, drained, positions, now_ms=now_ms)
        if now and after:
            # The write is in RocksDB's memory only: as far as possible from the next durable point.
            fate.strike()

    StateManager.apply = wrapped  # type: ignore[method-assign]
