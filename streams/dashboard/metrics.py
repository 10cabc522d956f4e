"""Prometheus metrics of a group, without stale figures."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidewheel.rebalance.inspect.describe import GroupPhase
from tidewheel.rebalance.model import TaskRole
from tidewheel.rebalance.protocol.group import LIVE
from tidewheel.streams.dashboard.poller import PollResult
from tidewheel.streams.group.status import GroupStatus, MemberTask


def metrics_text(application_id: str, poll: PollResult) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(application_id, poll))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, application_id: str, poll: PollResult) -> None:
        self._application_id = application_id
        self._polled = poll.polled

    def collect(self) -> Iterator[GaugeMetricFamily]:
        readable = 0 if self._polled is None else 1
        yield self._gauge(
            "readable", "1 if the group's two topics could be read, else 0", {(): readable}
        )
        if self._polled is not None:
            yield from self._of_group(self._polled.status)
            yield from self._of_tasks(self._polled.status)

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
        members = _counted((member.phase,) for member in status.members)
        yield self._gauge("members", "Members by phase", members, ("phase",))
        stale = sum(member.stale for member in status.members)
        yield self._gauge("stale_members", "Members that have gone silent", {(): stale})
        calls: dict[tuple[str, ...], float] = {
            (member.member,): member.call_ms / 1000
            for member in status.members
            if member.phase in LIVE and not member.stale
        }
        yield self._gauge(
            "member_longest_call_seconds",
            "How long a worker has been in its longest call of user code, 0 below a second",
            calls,
            ("member",),
        )
        tasks = _counted((task.phase,) for task in status.tasks)
        yield self._gauge("tasks", "Tasks by phase", tasks, ("phase",))
        copies = _counted((copy.role, copy.phase) for copy in (*status.learners, *status.standbys))
        yield self._gauge("copies", "Learners and standbys", copies, ("role", "phase"))
        alarms = _counted((alarm.name,) for alarm in status.alarms)
        yield self._gauge("alarms", "Alarms by name", alarms, ("alarm",))

    def _of_tasks(self, status: GroupStatus) -> Iterator[GaugeMetricFamily]:
        labels = ("task", "role", "member")
        fresh = [
            task for task in (*status.tasks, *status.learners, *status.standbys) if not task.stale
        ]
        lags = {_labels(figures): figures.lag for figures in fresh if figures.lag is not None}
        yield self._gauge("task_lag_records", "Records to process or to restore", lags, labels)
        rates = {_labels(figures): figures.rate for figures in fresh if figures.rate is not None}
        yield self._gauge("task_records_per_second", "Processed or restored", rates, labels)
        active = [figures for figures in fresh if figures.role == TaskRole.ACTIVE]
        for name, text, of in (
            ("dropped", "Dropped by a rule (null keys, late records)", attrgetter("dropped")),
            ("skipped", "Skipped by exception handlers", attrgetter("skipped")),
        ):
            counts = {_labels(figures): float(of(figures)) for figures in active}
            yield self._gauge(f"task_{name}_records", text, counts, labels)
        stuck = {
            _labels(figures): max(record.age_ms for record in figures.ranges) / 1000
            for figures in fresh
            if figures.ranges
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


def _labels(figures: MemberTask) -> tuple[str, ...]:
    return figures.task, figures.role, figures.member
