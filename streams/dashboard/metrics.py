"""Prometheus metrics of a group, without stale figures."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidewheel.rebalance.group import LIVE
from tidewheel.rebalance.inspect.describe import GroupPhase
from tidewheel.rebalance.model import TaskRole
from tidewheel.streams.dashboard.poller import PollResult
from tidewheel.streams.group.status import GroupStatus, TaskFigures


def metrics_text(application_id: str, poll: PollResult) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(application_id, poll))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, application_id: str, poll: PollResult) -> None:
        self._application_id = application_id
        self._seen = poll.seen

    def collect(self) -> Iterator[GaugeMetricFamily]:
        readable = 0 if self._seen is None else 1
        yield self._gauge(
            "readable", "Whether the group's two topics could be read", {(): readable}
        )
        if self._seen is not None:
            yield from self._of_group(self._seen.status)
            yield from self._of_tasks(self._seen.status)

    def _of_group(self, status: GroupStatus) -> Iterator[GaugeMetricFamily]:
        phases: dict[tuple[str, ...], float] = {
            (phase.name,): int(phase.value == status.phase) for phase in GroupPhase
        }
        yield self._gauge("phase", "1 for the phase that the group is in", phases, ("phase",))
        if status.leader_heard_ms_ago is not None:
            yield self._gauge(
                "leader_heard_seconds",
                "Time since the leader's last beat",
                {(): status.leader_heard_ms_ago / 1000},
            )
        members = _counted((each.phase,) for each in status.members)
        yield self._gauge("members", "Members by phase", members, ("phase",))
        stale = sum(each.stale for each in status.members)
        yield self._gauge("stale_members", "Members that have gone silent", {(): stale})
        calls: dict[tuple[str, ...], float] = {
            (each.member,): each.call_ms / 1000
            for each in status.members
            if each.phase in LIVE and not each.stale
        }
        yield self._gauge(
            "member_longest_call_seconds",
            "How long a worker has been in its longest call of user code, 0 below a second",
            calls,
            ("member",),
        )
        tasks = _counted((each.phase,) for each in status.tasks)
        yield self._gauge("tasks", "Tasks by phase", tasks, ("phase",))
        copies = _counted((each.role, each.phase) for each in (*status.learners, *status.standbys))
        yield self._gauge("copies", "Learners and standbys", copies, ("role", "phase"))
        alarms = _counted((each.name,) for each in status.alarms)
        yield self._gauge("alarms", "Alarms by name", alarms, ("alarm",))

    def _of_tasks(self, status: GroupStatus) -> Iterator[GaugeMetricFamily]:
        labels = ("task", "role", "member")
        fresh = [
            each for each in (*status.tasks, *status.learners, *status.standbys) if not each.stale
        ]
        lags = {_labels(each): each.lag for each in fresh if each.lag is not None}
        yield self._gauge("task_lag_records", "Records to process or to restore", lags, labels)
        rates = {_labels(each): each.rate for each in fresh if each.rate is not None}
        yield self._gauge("task_records_per_second", "Processed or restored", rates, labels)
        active = [each for each in fresh if each.role == TaskRole.ACTIVE]
        for name, text, of in (
            ("dropped", "Dropped by a rule (null keys, late records)", attrgetter("dropped")),
            ("skipped", "Skipped by exception handlers", attrgetter("skipped")),
        ):
            counts = {_labels(each): float(of(each)) for each in active}
            yield self._gauge(f"task_{name}_records", text, counts, labels)
        stuck = {
            _labels(each): max(record.age_ms for record in each.ranges) / 1000
            for each in fresh
            if each.ranges
        }
        yield self._gauge(
            "task_oldest_record_in_hand_seconds",
            "How long a key range has been at one record, where that is long",
            stuck,
            labels,
        )

    def _gauge(
        self,
        name: str,
        text: str,
        values: Mapping[tuple[str, ...], float],
        labels: tuple[str, ...] = (),
    ) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(f"tidewheel_group_{name}", text, labels=("application", *labels))
        for key, value in values.items():
            gauge.add_metric((self._application_id, *key), value)
        return gauge


def _counted(keys: Iterable[tuple[str, ...]]) -> Counter[tuple[str, ...]]:
    return Counter(keys)


def _labels(figures: TaskFigures) -> tuple[str, ...]:
    return figures.task, figures.role, figures.member
