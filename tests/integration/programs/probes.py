"""What a test's worker does besides working: it counts on a scoreboard, or ends itself at a chosen step of a commit.

The product has no hooks for this: its classes are wrapped here, at the seams between the steps.
"""

import functools
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from state_stores.rocksdb.task_database import TaskDatabase
from streams.kafka.producer import ProducerClient
from streams.kafka.transactional_producer import KafkaTransactionalProducer
from streams.states import KafkaStreamsState
from tasks.active_task import ActiveTask
from tasks.commit import Commit, Committer
from tasks.run_ports import RunSettings
from tasks.state_manager import StateManager
from tasks.state_updater import RestoreEvent
from tests.integration.programs.scoreboard import Scoreboard

#: Every step of a commit at which a worker can meet its fate, in their order.
STEPS: Final = (
    "before_produce",
    "before_flush",
    "before_offsets",
    "before_commit",
    "during_commit",
    "after_commit",
    "before_apply",
    "after_apply",
)

#: Numbers of the states on a scoreboard.
STATE_NUMBERS: Final = {state: number for number, state in enumerate(KafkaStreamsState)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """A signal that a worker sends to itself at the `nth` time it comes to a step of a commit that changes state.

    Steps, in their order: `before_produce`, `before_flush` (K1), `before_offsets` (K2), `before_commit` (K3),
    `during_commit` (K4: at any moment of it), `after_commit` and `before_apply` (K5), `after_apply`. And of a restore from
    sorted runs: `before_ingest`, `after_ingest`.
    """

    step: str
    nth: int
    signal: str = "SIGKILL"

    def strike(self) -> None:
        """Send the signal, to this very thread: SIGSTOP sent to the process lets the thread go on until another one has taken it."""
        signal.pthread_kill(threading.get_ident(), getattr(signal, self.signal))


def count_on(board: Scoreboard) -> Callable[[RestoreEvent], None]:
    """Have this process's tasks and commits counted on a scoreboard; returns a restore listener that counts too.

    `start:P` is the committed offset from which partition P was begun, `begun:P` how often, `owns:P` whether it is still
    processed here, `position:P` the next offset to be processed,
    brought up to date after every slice of records, before anything else can happen to them; `committing` is 1 inside
    a commit; `commits` counts them, `changes` those that change state; `restored:P` and `restore-from:P` tell of changelogs.
    """
    start, process, carry_out = ActiveTask.start, ActiveTask.process, Committer.carry_out
    retire = ActiveTask.retire

    def counting_start(self: ActiveTask, offsets: Any, *times: Any) -> None:
        for partition, offset in offsets.items():
            board[f"position:{partition}"] = offset
            board[f"start:{partition}"] = offset
            board[f"owns:{partition}"] = 1
            board.add(f"begun:{partition}")
        start(self, offsets, *times)

    def counting_retire(self: ActiveTask) -> None:
        for partition in self.next_offsets:
            board[f"owns:{partition}"] = 0
        retire(self)

    def counting_process(self: ActiveTask, *arguments: Any) -> int:
        done = process(self, *arguments)
        for partition, offset in self.next_offsets.items():
            board[f"position:{partition}"] = offset
        return done

    def counting_carry_out(self: Committer, commit: Any) -> Any:
        board["committing"] = 1
        positions = carry_out(self, commit)
        board["committing"] = 0
        board.add("commits")
        if commit.changelogs:
            board.add("changes")
        return positions

    def on_restore(event: RestoreEvent) -> None:
        where = f"{event.topic}-{event.partition}"
        board[f"restore-from:{where}"] = event.start
        board[f"restored:{where}"] = event.restored

    ActiveTask.start = counting_start  # type: ignore[assignment,method-assign]
    ActiveTask.retire = counting_retire  # type: ignore[method-assign]
    ActiveTask.process = counting_process  # type: ignore[assignment,method-assign]
    Committer.carry_out = counting_carry_out  # type: ignore[method-assign]
    return on_restore


def runs_from(records: int) -> Callable[..., RunSettings]:
    """Return what makes `wiring`'s settings of restores so that gaps of more than so many records are built into runs."""
    return functools.partial(RunSettings, from_records=records)


def meet(fate: Fate) -> None:
    """Have this process meet its fate at the nth commit with changes that comes to its step."""
    counted = _Count(fate.nth)
    match fate.step:
        case "before_produce":
            _before(KafkaTransactionalProducer, "begin", fate, counted)
        case "before_flush":
            _before(KafkaTransactionalProducer, "commit", fate, counted)
        case "before_offsets":
            _around_call("send_offsets_to_transaction", fate, counted, after=False)
        case "before_commit":
            _around_call("commit_transaction", fate, counted, after=False)
        case "during_commit":
            _during_commit(fate, counted)
        case "after_commit":
            _around_call("commit_transaction", fate, counted, after=True)
        case "before_apply":
            _around_apply(fate, counted, after=False)
        case "after_apply":
            _around_apply(fate, counted, after=True)
        case "before_ingest" | "after_ingest":
            _around_ingest(fate)
        case _:
            raise ValueError(f"no step {fate.step}")


def _around_ingest(fate: Fate) -> None:
    """Strike before or after sorted files are taken in: with the old position gone, and before the new one is written."""
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
    """Counts the commits that change state; on a busy machine there are others, of records on their way to another task."""

    def __init__(self, nth: int) -> None:
        self._left = nth
        self._changing = False
        carry_out = Committer.carry_out

        def noting_carry_out(committer: Committer, commit: Commit) -> Any:
            self._changing = bool(commit.changelogs)
            return carry_out(committer, commit)

        committer: Any = Committer
        committer.carry_out = noting_carry_out

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


def _around_call(operation_name: str, fate: Fate, count: _Count, *, after: bool) -> None:
    """Strike before or after one operation of the client, which knows nothing of ours."""
    call = ProducerClient.call

    def wrapped(
        self: ProducerClient, operation: Callable[..., Any], *arguments: Any, **options: Any
    ) -> None:
        now = operation.__name__ == operation_name and count.reached()
        if now and not after:
            fate.strike()
        call(self, operation, *arguments, **options)
        if now and after:
            fate.strike()

    ProducerClient.call = wrapped  # type: ignore[method-assign]


def _during_commit(fate: Fate, count: _Count) -> None:
    call = ProducerClient.call

    def strike_soon() -> None:
        # Commits take some ms here; where in them it strikes is left to chance, both outcomes are legal.
        time.sleep(0.001)
        fate.strike()

    def wrapped(
        self: ProducerClient, operation: Callable[..., Any], *arguments: Any, **options: Any
    ) -> None:
        if operation.__name__ == "commit_transaction" and count.reached():
            threading.Thread(target=strike_soon).start()
        call(self, operation, *arguments, **options)

    ProducerClient.call = wrapped  # type: ignore[method-assign]


def _around_apply(fate: Fate, count: _Count, *, after: bool) -> None:
    apply = StateManager.apply

    def wrapped(self: StateManager, drained: Any, positions: Any, *, now_ms: int) -> None:
        now = bool(drained) and count.reached()
        if now and not after:
            fate.strike()
        apply(self, drained, positions, now_ms=now_ms)
        if now and after:
            # As far from the next durable point as it can be: the write is in RocksDB's memory only.
            fate.strike()

    StateManager.apply = wrapped  # type: ignore[method-assign]
