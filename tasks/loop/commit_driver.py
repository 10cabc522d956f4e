"""Commit driver: carries out the steps of the schedule for one worker's running tasks."""

import logging
from collections.abc import Mapping
from types import TracebackType

from tidewheel.rebalance.model import TaskId
from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.commit.commit_round import CommitRound, Work
from tidewheel.tasks.commit.commit_schedule import CommitSchedule, CommitState, Step
from tidewheel.tasks.commit.committer import run_now
from tidewheel.tasks.errors import TaskCorruptedError
from tidewheel.tasks.kafka.ports import Admin, Background, Clock
from tidewheel.tasks.loop.metrics import CommitTimes, WorkerMetrics
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.worker_input import WorkerInput

_log = logging.getLogger(__name__)


class CommitDriver:
    """The path of a commit: schedule (when), round (contents), committer (producer).

    Args:
        uncommitted_bytes_max: Memory of uncommitted work above which a commit starts.
    """

    def __init__(
        self,
        commit_round: CommitRound,
        schedule: CommitSchedule,
        running: Mapping[TaskId, Task],
        work_input: WorkerInput,
        admin: Admin,
        *,
        uncommitted_bytes_max: int,
        metrics: WorkerMetrics,
        clock: Clock,
        background: Background,
    ) -> None:
        self.round = commit_round
        self.schedule = schedule
        self._running = running
        self._input = work_input
        self._admin = admin
        self._uncommitted_bytes_max = uncommitted_bytes_max
        self._metrics = metrics
        self._clock = clock
        self._background = background

    # -- work for the schedule ---------------------------------------------------------------------

    @property
    def state(self) -> CommitState:
        return self.round.state

    @property
    def must_commit(self) -> bool:
        return (
            any(task.commit_requested for task in self._running.values())
            or self.uncommitted_bytes > self._uncommitted_bytes_max
        )

    @property
    def can_run_ahead(self) -> bool:
        return all(task.may_be_ahead for task in self._running.values())

    @property
    def keeps_up(self) -> bool:
        return self._input.keeps_up

    @property
    def cached_bytes(self) -> int:
        caches = (task.caches for task in self._running.values())
        return sum(graph.cached_bytes() for graph in caches if graph is not None)

    @property
    def uncommitted_bytes(self) -> int:
        return self.round.uncommitted_bytes(self._running.values())

    def wait_s(self) -> float:
        """Return the seconds until the schedule's next step, unless an event comes first."""
        return self.schedule.wait_s(self._clock.monotonic_s(), self.state, self)

    # -- steps -------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Take the steps that are due; at most one of them starts or extends a commit."""
        now_s = self._clock.monotonic_s()
        while (step := self.schedule.decide(now_s, self.state, self)) is Step.COMPLETE:
            self.complete()
        match step:
            case Step.PREPARE:
                self._prepare()
            case Step.PREPARE_EARLY:
                self._prepare_early()
            case Step.EXTEND:
                self._extend()
            case _:
                pass

    def commit(self) -> None:
        """Commit all finished work; it is durable at the return."""
        self.complete()
        self._prepare(run_now)
        self.complete()

    def complete_if_answered(self) -> None:
        if self.state is CommitState.ANSWERED:
            self.complete()

    def complete(self) -> None:
        if self.state is CommitState.NONE:
            return
        was_early = self.round.is_early
        took_s = self.round.complete()
        number, total_s, longest_s = self._metrics.commit_times
        self._metrics.commit_times = CommitTimes(
            number + 1, total_s + took_s, max(longest_s, took_s)
        )
        self._metrics.commit_latency.observe(took_s)
        self._metrics.committed = self.round.committed
        self._metrics.produced = self.round.collector.produced
        self._metrics.changelog_records += sum(self.round.written.values())
        self._metrics.puts.update(self.round.puts)
        if self._metrics.on_commit is not None:
            self._metrics.on_commit(took_s)
        self.schedule.record_complete(
            self._clock.monotonic_s(), took_s, keeps_up=self.keeps_up, was_early=was_early
        )

    def _prepare(self, background: Background | None = None) -> None:
        start_s = self._clock.monotonic_s()
        can_run_ahead = self.can_run_ahead
        work = self._collect()
        if work is None:
            self.round.committer.serve()
        else:
            self.round.prepare(work, background or (self._background if can_run_ahead else run_now))
        self.schedule.record_prepare(start_s, self._clock.monotonic_s(), is_empty=work is None)
        if not can_run_ahead:
            self.complete()

    def _prepare_early(self) -> None:
        start_s = self._clock.monotonic_s()
        work = self._collect()
        if work is not None:
            self.round.prepare(work, self._background, opens=True)
        self.schedule.record_early(start_s)

    def _extend(self) -> None:
        start_s = self._clock.monotonic_s()
        work = self._collect(force=True)
        assert work is not None, "forced"
        if self.round.extend(work):
            self.schedule.record_extend(
                start_s,
                self._clock.monotonic_s(),
                keys=self.round.forwarded,
                twice=self.round.twice,
            )
        else:
            # The background thread already closed the early commit: `work` becomes the next one.
            self.complete()
            self.round.prepare(work, self._background)
            self.schedule.record_prepare(start_s, self._clock.monotonic_s(), is_empty=False)

    def _collect(self, *, force: bool = False) -> Work | None:
        work = self.round.collect(list(self._running.values()), force=force)
        self._metrics.lags = self._input.lags(self.round.offsets)
        return work

    # -- clean stop --------------------------------------------------------------------------------

    def finish(self) -> None:
        self.round.finish(list(self._running.values()), self._admin)

    def abandon(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Wait for the commit in progress when the tasks end, because of `error` if given."""
        restarts = error is None or isinstance(error, TaskCorruptedError)
        try:
            self.round.abandon(find_out=restarts)
        except StreamsError as lost:
            if restarts:
                raise
            _log.warning("the commit in progress cannot be completed: %s", lost)
