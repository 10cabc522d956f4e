"""One lifetime of a group from a seed, checked after every event and at its end."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tests.simulation.host import Host, MemberSettings
from tests.simulation.inbox import Inbox
from tests.simulation.laws.data_invariants import DataInvariants
from tests.simulation.laws.invariants import LogInvariants
from tests.simulation.laws.progress import ProgressInvariant
from tests.simulation.laws.safe_hold import SafeHold
from tests.simulation.metrics import Metrics
from tests.simulation.model.leading import LEADER_ID, Leading, twin
from tests.simulation.model.model_broker import BrokerError, Log, Transaction
from tests.simulation.model.model_commits import CommittingWorker
from tests.simulation.model.model_tasks import ActiveTask, Disk, Rules
from tests.simulation.model.world import Process, World
from tests.simulation.next_version import UNKNOWN_RECORD, Rolling, newer_form
from tests.simulation.resting import Resting
from tests.simulation.scenario import FAULTS_COUNTED_MS, INPUT_UNTIL_MS, Scenario
from tests.simulation.toxics import Toxic, bad_time, make_up, strike
from tests.simulation.workload import TaskNames, Workload
from tidewheel.rebalance.assignors import builtin
from tidewheel.rebalance.assignors.task_assignor import AssignmentRequest
from tidewheel.rebalance.leader.coordinator import Coordinator
from tidewheel.rebalance.leader.decision import Fence
from tidewheel.rebalance.protocol import group as fold_rules
from tidewheel.rebalance.protocol import records as record_forms
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.messages import AnyMessage
from tidewheel.rebalance.protocol.orders import AnyOrder, AnyReport, TaskRunning
from tidewheel.rebalance.protocol.records import AnyRecord, decode_record, encode_record
from tidewheel.rebalance.runtime.log_keys import LogKeys
from tidewheel.rebalance.runtime.ports import LoggedRecord

STATE = "shop-group-state-0"
#: Maximum time to settle after the last disturbance.
SETTLED_WITHIN_MS = 40_000
LOOK_EACH_MS = 500
PROGRESS_EACH_MS = 100
#: Maximum changelog records written between a copy's check and its grant.
WRITTEN_MEANWHILE = 25


class Simulation:
    """One lifetime; environment of hosts, workers and leaders."""

    def __init__(self, scenario: Scenario, rules: Rules | None = None) -> None:
        self.scenario = scenario
        self.settings = scenario.settings
        self.state_log = STATE
        self.together_ms = scenario.together_ms
        self.world = World(scenario.seed)
        self.broker = self.world.broker
        self.workload = Workload(
            stateful=scenario.stateful,
            stateless=scenario.stateless,
            rate_per_s=scenario.rate_per_s,
            history=scenario.history,
            shards=scenario.shards,
        )
        self.workload.until_ms = INPUT_UNTIL_MS
        self.rules = Rules() if rules is None else rules
        self.commit_interval_ms = scenario.commit_interval_ms
        self.acceptable_recovery_lag = scenario.settings.acceptable_recovery_lag
        self.restore_per_s = scenario.restore_per_s
        self.log = LogInvariants(self.world, scenario.limits())
        self.data = DataInvariants(self.world, self.workload, self.broker, self.log)
        self.progress = ProgressInvariant(
            self.world, self.workload, self.log, self.commit_interval_ms
        )
        self.metrics = Metrics()
        self.hosts: list[Host] = []
        self.spare = list(scenario.spare)
        self.kill_at = ""  # Kill the leader after a record of this kind; "" for none.
        self.kill_after_records = 0
        self.kill_toxic: Toxic | None = None
        self.restart_when_closed: set[Host] = set()
        self.rolling = Rolling(self, scenario.newer)
        self.safe_hold = SafeHold(self)
        self.resting = Resting(self)
        self.inbox = Inbox(self)
        self._no_return: set[Host] = set()
        self._misfits: set[str] = set()
        self._folded = Group()
        self._folded_to = 0
        self._keys = LogKeys()
        self._leader_fences: dict[str, int] = {}
        self.broker.decided.append(self._decided)
        self.broker.fenced.append(self._producer_made)
        self.world.healed.append(self._healed)

    # A lifetime.

    def run(self) -> Metrics:
        self.data.begin()
        for number, (start_ms, settings) in enumerate(self.scenario.members):
            host = self._add(settings, number)
            self.world.at(start_ms, host.start)
        for toxic in self.scenario.toxics:
            self.world.at(toxic.at_ms, strike, self, toxic, FAULTS_COUNTED_MS)
        if self.scenario.faults:
            self.world.at(FAULTS_COUNTED_MS, make_up, self, INPUT_UNTIL_MS)
        self.world.after(LOOK_EACH_MS, self._look)
        self.world.after(PROGRESS_EACH_MS, self._check_progress)
        self.world.run(INPUT_UNTIL_MS)
        self._make_peace()
        self._settle()
        self.rolling.check_version()
        if self.rolling.newer and self.scenario.rolls_back:
            self.rolling.begin(self.hosts, newer=False)
            self._settle()
            self.rolling.check_version()
        self._check_end()
        self.metrics.events = self.world.events
        self.metrics.leaders = self.log.claims
        self.metrics.commits = self.data.commits
        self.metrics.targets = self.log.targets
        self.metrics.member_moves = self.log.member_moves
        self.metrics.task_moves = self.log.task_moves
        return self.metrics

    def _look(self) -> None:
        self.world.after(LOOK_EACH_MS, self._look)
        self.log.check_unowned_tasks()

    def _check_progress(self) -> None:
        self.world.after(PROGRESS_EACH_MS, self._check_progress)
        self.progress.look(self.hosts, lose=self.inbox.lose, pauses=self.resting.is_active)

    def _make_peace(self) -> None:
        """End all faults; make sure a member remains."""
        world = self.world
        world.trace_event("-- peace")
        self.inbox.lose, self.kill_at = 0.0, ""
        world.latency_ms, world.broker_paused = (1, 9), False
        for host in self.hosts:
            for process in (host, host.worker):
                process.cut, process.lose_replies, process.repeat_ends = False, 0, 0
                world.resume(process)
            host.worker.slow_until_ms = host.worker.no_disk_until_ms = 0
        world.heal()
        self._start_a_member()
        self.disturb(1_000)
        if self.rolling.newer:
            self.rolling.begin(self.hosts, newer=True)

    def _start_a_member(self) -> None:
        """Start a member if none remains, after its earlier leave."""
        if any(each.up and each.worker.up and not each.worker.leaving for each in self.hosts):
            return
        may_return = [each for each in self.hosts if each not in self._no_return]
        down = [each for each in may_return if not each.up]
        if down:
            self.start_later(down[0], 100)
        else:
            self.restart_when_closed.update(may_return[:1])

    def _settle(self) -> None:
        """Wait until the group is at rest (invariants 19, 23)."""
        until = self.world.now + SETTLED_WITHIN_MS
        quiet = 0
        while quiet < 2:
            self.world.run(self.world.now + LOOK_EACH_MS)
            left = (
                ("the application rests" if self.resting.is_active else "")
                or self.log.unsettled()
                or self.data.behind()
                or self._pending_change()
                or self._decides()
            )
            quiet = 0 if left else quiet + 1
            if left and self.world.now >= until:
                self.world.fail(f"invariant 19: the group does not come to rest: {left}")

    def _pending_change(self) -> str:
        for host in self.hosts:
            if host.up != host.worker.up:
                return f"{host.name} comes or goes"
            if host.up and host.worker.leaving:
                return f"{host.name} is leaving"
        if self.scenario.newer and not self.rolling.rolled.issuperset(self.hosts):
            return "not all are rolled to the other version"
        if not any(each.leading is not None and each.leading.coordinator for each in self.hosts):
            return "nobody leads"
        there = {each.worker.incarnation for each in self.hosts if each.up}
        known = self.log.live()
        if there != known:
            return f"{sorted(there)} are there, {sorted(known)} are in the log"
        return ""

    def _check_end(self) -> None:
        for host in self.hosts:
            if host.up and host.worker.up:
                for active in host.worker.active.values():
                    if active.names.stateful:
                        self.data.same_state(host.worker.incarnation, active.names, active.disk)
                for copy in host.worker.copies.values():
                    self.data.same_state(host.worker.incarnation, copy.names, copy.disk)
        self.log.converged(
            [each.settings.member for each in self.hosts if each.up and each.worker.up]
        )
        self._check_fold()

    def _decides(self) -> str:
        """Return an undecided change, or ""; ignores a join of this moment."""
        for host in self.hosts:
            if host.leading is not None and host.leading.coordinator is not None:
                records = twin(host.leading.coordinator).decide(self.world.now).records
                if records:
                    return f"{host.name} decides {records}"
        return ""

    # Members.

    def _add(self, settings: MemberSettings, number: int) -> Host:
        host = Host(self, settings, number)
        self.hosts.append(host)
        return host

    def start_later(self, host: Host, delay_ms: int) -> None:
        self.world.after(delay_ms, self._start, host)

    def _start(self, host: Host) -> None:
        if not host.up and host not in self._no_return:
            self.world.trace_event(f"{host.name} starts again")
            host.start()

    def add_spare(self) -> Host | None:
        if not self.spare:
            return None
        host = self._add(self.spare.pop(0), len(self.hosts))
        self.world.trace_event(f"{host.name} joins")
        host.start()
        return host

    def add_twin(self, host: Host) -> None:
        twin = self._add(host.settings, len(self.hosts))
        twin.worker.incarnations = 100 * len(self.hosts)
        self.world.trace_event(f"{twin.name} starts under the name of {host.name}")
        self._no_return.add(host)
        twin.start()

    def add_misfit(self, settings: MemberSettings) -> None:
        host = self._add(settings, len(self.hosts))
        self._misfits.add(settings.member)
        self._no_return.add(host)
        self.world.trace_event(f"{settings.member} tries to join")
        host.start()

    def kill_for_good(self, host: Host) -> None:
        """Kill an ephemeral member without a return."""
        self._no_return.add(host)
        if host.up:
            self.world.trace_event(f"{host.name} vanishes")
            host.kill()
            self.disturb(0)
        if self.world.now > INPUT_UNTIL_MS:
            self._start_a_member()

    def restart_in_order(self, host: Host) -> None:
        """Restart a member, unless its settings must be refused."""
        if host.settings.member not in self._misfits:
            self._no_return.discard(host)
        host.worker.leave(rejoin=True, drain_ms=0)
        self.restart_when_closed.add(host)

    def closed(self, host: Host) -> None:
        self.world.trace_event(f"{host.name} has ended")
        if host in self.restart_when_closed:
            self.restart_when_closed.discard(host)
            self.start_later(host, 400)

    def disturb(self, length_ms: int) -> None:
        """Suspend time bounds for a while."""
        evidence = self.log.evidence
        evidence.disturbed_until_ms = max(evidence.disturbed_until_ms, self.world.now + length_ms)

    # Faults.

    def pause(self, process: Any, length_ms: int) -> None:
        self.world.trace_event(f"{process.name} is stopped for {length_ms} ms")
        process.paused = True
        self.world.after(length_ms, self._resume, process, process.life)

    def _resume(self, process: Process, life: int) -> None:
        if process.life == life and process.up:
            self.world.trace_event(f"{process.name} goes on")
            self.world.resume(process)

    def cut(self, host: Host, length_ms: int) -> None:
        self.world.trace_event(f"{host.name} is cut off for {length_ms} ms")
        host.cut = host.worker.cut = True
        self.disturb(length_ms)
        self.world.after(length_ms, self._uncut, host)

    def _uncut(self, host: Host) -> None:
        host.cut = host.worker.cut = False
        self.world.heal()

    def pause_broker(self, length_ms: int) -> None:
        self.world.trace_event(f"the broker is stopped for {length_ms} ms")
        self.world.broker_paused = True
        self.disturb(length_ms)
        self.world.after(length_ms, self._resume_broker)

    def _resume_broker(self) -> None:
        self.world.broker_paused = False
        self.world.heal()

    def _healed(self) -> None:
        self.inbox.healed()
        for host in self.hosts:
            host.healed()

    def compact(self, draw: float) -> None:
        """Compact the log as a cleaner may, and compare the folds."""
        if not self.topics_life():
            return
        for host in self.hosts:
            leading = host.leading
            if leading is not None and leading.coordinator is not None and draw > 0.3:
                leading.forget(self._keys.stale(self._folded, limit=10_000))
        log = self.broker.log(STATE)
        log.compact(
            int(log.start + (log.end - log.start) * (0.5 + draw / 2)), tombstones_before_ms=-1
        )
        for names in self.workload.names.values():
            if names.stateful:
                self.broker.log(names.changelog_key).compact(1 << 60)
        self._check_fold()

    def night(self, length_ms: int) -> None:
        """Pass hours; remove tombstones that no open store still needs."""
        open_at: dict[str, int] = {}
        for host in self.hosts:
            if host.worker.up:
                held = [(each.names, each.disk) for each in host.worker.copies.values()]
                held += [(each.names, each.disk) for each in host.worker.active.values()]
                for names, disk in held:
                    key = names.changelog_key
                    open_at[key] = min(open_at.get(key, 1 << 60), disk.offset)
        before_ms = self.world.wall_ms()
        self.world.wall_offset_ms += length_ms
        for names in self.workload.names.values():
            if names.stateful:
                key = names.changelog_key
                self.broker.log(key).compact(
                    open_at.get(key, 1 << 60), tombstones_before_ms=before_ms
                )

    def forge(self, record: AnyRecord) -> None:
        """Write a foreign record to the group log."""
        if not self.topics_life():
            return
        for _, key, value in self.state_records([record]):
            self.broker.append(STATE, key, value, self.world.wall_ms())
        self.state_marked()

    def grow(self, more: int) -> None:
        """Add partitions to the stateful topic; members notice one by one."""
        self.workload.grow(0, more, self.world.now)
        self.world.trace_event(f"{more} partitions more")
        self.disturb(4_000)
        for host in self.hosts:
            self.world.after(int(self.world.chance.uniform(50, 2_000)), host.topics_changed)

    # What hosts, workers and leaders ask for.

    def ordered(self, host: Host, order: AnyOrder) -> None:
        self.world.trace_event(host.worker.incarnation, "<-", order)
        self.log.ordered(host.worker.incarnation, order)
        if host.settings.member in self._misfits and not _is_end(order):
            self.world.fail(f"invariant 17: {host.settings.member} is told to {order}")

    def reported(self, host: Host, report: AnyReport) -> None:
        if isinstance(report, TaskRunning):
            self.log.reported_running(report.task, report.task_epoch)
            self.metrics.began(
                warm=report.restored <= self.acceptable_recovery_lag + WRITTEN_MEANWHILE,
                planned=(report.task, report.task_epoch) in self.log.moves,
                restored=report.restored,
            )

    def opened(self, worker: CommittingWorker, active: ActiveTask) -> None:
        self.log.open_once(worker.name, active.names.text, worker.active, worker.copies)
        self.data.opened(worker.incarnation, active)
        self.progress.processed(active)

    def processed(self, worker: CommittingWorker, active: ActiveTask) -> None:
        self.safe_hold.check_input(worker)
        self.progress.processed(active)

    def applied(self, worker: CommittingWorker, names: TaskNames, disk: Disk) -> None:
        self.log.open_once(worker.name, names.text, worker.active, worker.copies)
        self.data.applied(worker.incarnation, names, disk)

    def _decided(self, transaction: Transaction) -> None:
        if transaction.transactional_id == LEADER_ID:
            if transaction.committed:
                found = [_decoded(value) for _, _, value in transaction.records if value]
                records = [each for each in found if each is not None]
                for record in records:
                    self.world.trace_event("log", record)
                self.log.transaction(records)
                bad_time(self, records)
        else:
            self.data.decided(transaction)

    def _producer_made(self, transactional_id: str) -> None:
        if transactional_id != LEADER_ID:
            incarnation = transactional_id.removeprefix("shop-").rpartition("-")[0]
            self.log.evidence.used_ids[incarnation].add(transactional_id)

    def fence_begun(self, leader: str, count: int) -> None:
        self.log.fences_in_flight(count)

    def fence_done(self, leader: str, fence: Fence) -> None:
        self.world.trace_event(f"{leader} has fenced {', '.join(fence.transactional_ids)}")
        self.log.evidence.fenced_ids.update(fence.transactional_ids)

    def ends_asked(self, keys: Sequence[str]) -> dict[str, int]:
        ends = {key: self.broker.log(key).last_stable_offset for key in keys}
        self.log.ends_read(ends)
        return ends

    def assign(self, request: AssignmentRequest) -> tuple[Any, str]:
        return builtin.resolve(request.assignor).assign(request), ""

    def decides(self, leading: Leading) -> None:
        if leading.leader_epoch == self.log.leader_epoch:
            self.log.evidence.leader.decide(self.world.now)

    def takes_over(self, leading: Leading) -> None:
        self.metrics.newer_leaders += self.rolling.is_newer(leading.process)
        self.disturb(1_500)

    # The group log.

    def state_records(
        self, records: Sequence[AnyRecord], writer: Process | None = None
    ) -> list[tuple[str, Any, Any]]:
        """Return encoded records; the next version adds fields and a kind of its own."""
        keys = record_forms.record_keys(records)
        written: list[tuple[str, Any, Any]] = [
            (STATE, key, encode_record(record)) for key, record in zip(keys, records, strict=True)
        ]
        if self.rolling.is_newer(writer):
            written = [(log, key, newer_form(data)) for log, key, data in written]
            written.append((STATE, b"%d/forecast" % records[-1].leader_epoch, UNKNOWN_RECORD))
        return written

    def state_marked(self) -> None:
        for host in self.hosts:
            host.state_grew()

    def fold(self) -> tuple[Group, int]:
        """Return the group and its log position, shared by all readers."""
        if not self.topics_life():
            raise BrokerError("UNKNOWN_TOPIC_OR_PARTITION")
        log = self.broker.log(STATE)
        batch = log.read(self._folded_to, 1 << 60)
        for _, key, value in batch.records:
            record = _decoded(value)
            self._keys.add(LoggedRecord(key.decode(), record, tombstone=value is None))
            if record is not None:
                before = self._folded
                self._folded = fold_rules.apply(before, record)
                if record.leader_epoch < before.leader_epoch and self._folded != before:
                    self.world.fail(f"invariant 5: {record} changes the group")
        self._folded_to = batch.position
        return self._folded, self._folded_to

    def topics_life(self) -> int:
        return self.safe_hold.life

    def forget_log(self) -> None:
        """Restart with an empty log; earlier inbox messages can't return."""
        self._folded, self._folded_to, self._keys = Group(), 0, LogKeys()
        self.inbox.forget()

    def _check_fold(self) -> None:
        """Invariant 6: all readers of the log, however compacted, have the same group."""
        group, _ = self.fold()
        log = self.broker.log(STATE)
        for below in (0, log.start + (log.end - log.start) * 2 // 3, log.end):
            read = Log()
            read.offsets, read.entries, read.end = list(log.offsets), list(log.entries), log.end
            read.open = dict(log.open)
            if below:
                read.compact(below, tombstones_before_ms=1 << 62)
            found = [_decoded(value) for _, _, value in read.read(0, 1 << 60).records]
            again = fold_rules.replay([each for each in found if each is not None])
            if again != group:
                self.world.fail(
                    f"invariant 6: compacted below {below}, the log says {again}, not {group}"
                )

    # The inbox.

    def publish(self, sender: Process, message: AnyMessage) -> None:
        self.inbox.publish(sender, message)
        self.resting.hear(message)

    def observe(
        self, coordinator: Coordinator, message: AnyMessage, writing: Sequence[AnyRecord]
    ) -> None:
        """Deliver a message to a leader; see `Inbox.observe`."""
        self.inbox.observe(coordinator, message, writing)


@lru_cache(maxsize=1 << 13)
def _decoded(value: bytes | None) -> AnyRecord | None:
    """Decode once for checkers, fold and full reads: the answers are equal."""
    return decode_record(value)


def _is_end(order: AnyOrder) -> bool:
    return type(order).__name__ == "EndIncarnation"
