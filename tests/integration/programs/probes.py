"""Probes of a test's worker, wrapped around the product's methods.

They count on a scoreboard, or arm a failpoint once the worker has changed its state.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, Final

from tests.integration.programs.scoreboard import Scoreboard
from tidewheel.state_stores import failpoints
from tidewheel.streams.worker.application.application_state import KafkaStreamsState
from tidewheel.tasks.commit.committer import Commit, Committer
from tidewheel.tasks.restore.run_ports import RunSettings
from tidewheel.tasks.restore.state_updater import RestoreEvent
from tidewheel.tasks.task.active_task import ActiveTask
from tidewheel.tasks.task.parallel_task import ParallelTask
from tidewheel.tasks.task.sink_task import SinkTask
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.task_life import TaskLife

STATE_NUMBERS: Final = {state: number for number, state in enumerate(KafkaStreamsState)}


def _wrapped(wrapper: Callable[..., None], method: Callable[..., None]) -> Callable[..., None]:
    return lambda self, *arguments: wrapper(method, self, *arguments)


def count_on(board: Scoreboard) -> Callable[[RestoreEvent], None]:
    """Count tasks and commits on a scoreboard; return a restore listener that counts too.

    `start:P` is the committed offset at which partition P began, `begun:P` the number of begins,
    `owns:P` is 1 while it is processed here. `position:P`, the next offset, changes after every
    slice of records. `committing` is 1 during a commit; `commits` counts all commits, `changes`
    those that change state; `clock_ms` is the wall clock at the last one. `restored:P` and
    `restore-from:P` describe changelogs.
    """
    process = {kind: kind.process for kind in (ActiveTask, SinkTask)}

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

    def counting_process(self: Any, *arguments: Any) -> int:
        done: int = process[type(self)](self, *arguments)
        for partition, offset in self.next_offsets.items():
            board[f"position:{partition}"] = offset
        return done

    def on_restore(event: RestoreEvent) -> None:
        where = f"{event.topic}-{event.partition}"
        board[f"restore-from:{where}"] = event.start
        board[f"restored:{where}"] = event.restored

    for kind in (ActiveTask, ParallelTask, SinkTask):
        wrapped: Any = kind
        wrapped.start = _wrapped(counting_start, kind.start)
    TaskLife.retire = _wrapped(counting_retire, TaskLife.retire)  # type: ignore[method-assign]
    ActiveTask.process = counting_process  # type: ignore[assignment,method-assign]
    SinkTask.process = counting_process  # type: ignore[assignment,method-assign]
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
        board["clock_ms"] = time.time_ns() // 1_000_000
        if changes[0]:
            board.add("changes")
        return positions

    Committer.prepare = counting_prepare  # type: ignore[method-assign]
    Committer.complete = counting_complete  # type: ignore[method-assign]


def runs_from(records: int) -> Callable[..., RunSettings]:
    return functools.partial(RunSettings, from_records=records)


def arm_at_change(failpoint: str, nth: int) -> None:
    """Arm a failpoint when the `nth` commit that changes state is prepared."""
    prepare = Committer.prepare
    left = [nth]

    def arming_prepare(self: Committer, commit: Commit, *background: Any, **options: Any) -> None:
        left[0] -= bool(commit.changelogs)
        if left == [0] and commit.changelogs:
            failpoints.arm(failpoint)
        prepare(self, commit, *background, **options)

    Committer.prepare = arming_prepare  # type: ignore[method-assign]
