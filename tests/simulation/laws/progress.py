"""Progress invariant (7): unaffected tasks never stop.

A task whose owner reported that it runs, in a healthy environment with input left, processes
records in every window of more than two commit intervals.
"""

from collections.abc import Iterable

from tests.simulation.host import Host
from tests.simulation.laws.invariants import LogInvariants
from tests.simulation.model.model_tasks import ActiveTask
from tests.simulation.model.world import World
from tests.simulation.workload import Workload
from tidewheel.rebalance.model import TaskPhase

#: Loop interval, and maximum delay of transaction markers.
SLICE_MS = 200
LATE_MARKERS_MS = 200
#: A healthy member's next beat is acknowledged within this time, which renews its lease.
LEASE_AGAIN_MS = 1_500
QUICK_MS = 10
#: Below this share of lost beats a member keeps its lease.
LOSES_SELDOM = 0.1


class ProgressInvariant:
    def __init__(
        self, world: World, workload: Workload, log: LogInvariants, commit_interval_ms: int
    ) -> None:
        self.world = world
        self.workload = workload
        self.log = log
        self.window_ms = 2 * commit_interval_ms + SLICE_MS + LATE_MARKERS_MS
        self._positions: dict[tuple[str, int], int] = {}
        #: (position, time of its last change).
        self._still: dict[tuple[str, int], tuple[int, int]] = {}
        self._trouble_ms: dict[str, int] = {}
        self._all_trouble_ms = 0

    def processed(self, active: ActiveTask) -> None:
        self._positions[active.names.text, active.order.task_epoch] = active.position

    def look(self, hosts: Iterable[Host], *, lose: float, pauses: bool = False) -> None:
        now = self.world.now
        hosts = list(hosts)
        if pauses or lose > LOSES_SELDOM or self._leases_may_end(hosts):
            self._all_trouble_ms = now
        unconcerned = {
            host.worker.incarnation: self._calm_ms(host)
            for host in hosts
            if host.up and host.worker.up
        }
        running = TaskPhase.RUNNING.value
        for task, state in self.log.tasks.items():
            since_ms = unconcerned.get(state.owner or "")
            begun = self.log.running.get(task, 0) >= state.task_epoch
            if state.phase == running and begun and since_ms is not None:
                self._check_task(task, state.task_epoch, since_ms, state.owner or "")

    def _leases_may_end(self, hosts: list[Host]) -> bool:
        """Return True if leases may end: slow network or broker, or no leader."""
        world = self.world
        leads = any(
            host.leading is not None
            and host.leading.coordinator is not None
            and not _troubled(host)
            for host in hosts
        )
        return not leads or world.broker_paused or world.latency_ms[1] > QUICK_MS

    def _calm_ms(self, host: Host) -> int:
        if _troubled(host):
            self._trouble_ms[host.worker.incarnation] = self.world.now
        mine_ms = self._trouble_ms.setdefault(host.worker.incarnation, self.world.now)
        return max(mine_ms, self._all_trouble_ms) + LEASE_AGAIN_MS

    def _check_task(self, task: str, epoch: int, calm_ms: int, owner: str) -> None:
        now, key = self.world.now, (task, epoch)
        position = self._positions.get(key, 0)
        before, since_ms = self._still.get(key, (-1, now))
        if position != before or position >= self.workload.input_end(task, now):
            self._still[key] = (position, now)
            return
        if now - max(since_ms, calm_ms) > self.window_ms:
            self.world.fail(
                f"invariant 7: {task} stands at {position} in {owner} for {now - since_ms} ms, and nothing is wrong there"
            )


def _troubled(host: Host) -> bool:
    """Return True for a stopped, cut-off or producer-replacing (H8) member."""
    worker = host.worker
    return (
        not (host.up and worker.up)
        or host.paused
        or host.cut
        or worker.paused
        or worker.cut
        or worker.unknown is not None
        or worker.epoch is None
    )
