"""Prometheus metrics of a group, without stale figures."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidewheel.rebalance.inspect.describe import GroupPhase
from tidewheel.rebalance.model import TaskRole
from tidewheel.rebalance.protocol.group import LIVE
from tidewheel.streams.dashboard.poller import PollResult
from tidewheel.streams.group.status import GroupStatus, MemberTask


class Gauge(NamedTuple):
    """A metric of the group: its text, and its labels besides `application`."""

    text: str
    labels: tuple[str, ...] = ()


_OF_TASK: Final = ("task", "role", "member")

#: By name, without `tidewheel_group_`.
GAUGES: Final = {
    "readable": Gauge("1 if the group's two topics could be read; else 0, without other metrics"),
    "phase": Gauge("1 for the phase that the group is in", ("phase",)),
    "leader_heard_seconds": Gauge("Time since the leader's last beat"),
    "members": Gauge("Members by phase", ("phase",)),
    "stale_members": Gauge("Members that are silent for longer than their session timeout"),
    "member_longest_call_seconds": Gauge(
        "Longest call of user code in progress at a member, 0 below a second", ("member",)
    ),
    "tasks": Gauge("Tasks by phase", ("phase",)),
    "copies": Gauge("Learners and standbys", ("role", "phase")),
    "alarms": Gauge("Alarms by name", ("alarm",)),
    "task_lag_records": Gauge("Records to process or to restore, unless unknown", _OF_TASK),
    "task_records_per_second": Gauge("Records processed or restored, unless unknown", _OF_TASK),
    "task_dropped_records": Gauge(
        "Records that a rule dropped (null keys, late records)", _OF_TASK
    ),
    "task_skipped_records": Gauge("Records that exception handlers skipped", _OF_TASK),
    "task_oldest_record_in_hand_seconds": Gauge(
        "Age of the oldest record in progress in a key range, from a second on", _OF_TASK
    ),
}


def metrics_text(application_id: str, poll: PollResult) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(application_id, poll))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, application_id: str, poll: PollResult) -> None:
        self._application_id = application_id
        self._polled = poll.polled

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield self._gauge("readable", {(): 0 if self._polled is None else 1})
        if self._polled is not None:
            yield from self._of_group(self._polled.status)
            yield from self._of_tasks(self._polled.status)

    def _of_group(self, status: GroupStatus) -> Iterator[GaugeMetricFamily]:
        phases: dict[tuple[str, ...], float] = {
            (phase.name,): int(phase.value == status.phase) for phase in GroupPhase
        }
        yield self._gauge("phase", phases)
        if status.leader_heard_ms_ago is not None:
            yield self._gauge("leader_heard_seconds", {(): status.leader_heard_ms_ago / 1000})
        yield self._gauge("members", _counted((member.phase,) for member in status.members))
        yield self._gauge("stale_members", {(): sum(member.stale for member in status.members)})
        calls: dict[tuple[str, ...], float] = {
            (member.member,): member.call_ms / 1000
            for member in status.members
            if member.phase in LIVE and not member.stale
        }
        yield self._gauge("member_longest_call_seconds", calls)
        yield self._gauge("tasks", _counted((task.phase,) for task in status.tasks))
        copies = (*status.learners, *status.standbys)
        yield self._gauge("copies", _counted((copy.role, copy.phase) for copy in copies))
        yield self._gauge("alarms", _counted((alarm.name,) for alarm in status.alarms))

    def _of_tasks(self, status: GroupStatus) -> Iterator[GaugeMetricFamily]:
        fresh = [
            task for task in (*status.tasks, *status.learners, *status.standbys) if not task.stale
        ]
        lags = {_labels(figures): figures.lag for figures in fresh if figures.lag is not None}
        yield self._gauge("task_lag_records", lags)
        rates = {_labels(figures): figures.rate for figures in fresh if figures.rate is not None}
        yield self._gauge("task_records_per_second", rates)
        active = [figures for figures in fresh if figures.role == TaskRole.ACTIVE]
        for name in ("dropped", "skipped"):
            count_of = attrgetter(name)
            counts = {_labels(figures): float(count_of(figures)) for figures in active}
            yield self._gauge(f"task_{name}_records", counts)
        stuck = {
            _labels(figures): max(record.age_ms for record in figures.ranges) / 1000
            for figures in fresh
            if figures.ranges
        }
        yield self._gauge("task_oldest_record_in_hand_seconds", stuck)

    def _gauge(self, name: str, values: Mapping[tuple[str, ...], float]) -> GaugeMetricFamily:
        text, labels = GAUGES[name]
        gauge = GaugeMetricFamily(f"tidewheel_group_{name}", text, labels=("application", *labels))
        for key, value in values.items():
            gauge.add_metric((self._application_id, *key), value)
        return gauge


def _counted(keys: Iterable[tuple[str, ...]]) -> Counter[tuple[str, ...]]:
    return Counter(keys)


def _labels(figures: MemberTask) -> tuple[str, ...]:
    return figures.task, figures.role, figures.member
