"""A host program: worker, and watchdog with real `Member`, `Election` and `Coordinator`."""

from dataclasses import dataclass, field
from typing import Protocol

from tests.simulation.model.leading import Control, Leading
from tests.simulation.model.model_tasks import Surroundings
from tests.simulation.model.model_worker import ModelWorker
from tests.simulation.model.world import Process, World
from tests.simulation.workload import APP, ASSIGNOR, TOPOLOGY_HASH
from tidewheel.rebalance.member.member import Member
from tidewheel.rebalance.protocol.field_types import ShardCount
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.messages import (
    PROTOCOL_MAX,
    AnyMessage,
    DiskCopy,
    JoinGroup,
    JoinRefused,
    LeaderBeat,
    ShardCopy,
)
from tidewheel.rebalance.protocol.orders import (
    LASTING,
    AnyOrder,
    AnyReport,
    EndIncarnation,
    Welcome,
)
from tidewheel.rebalance.runtime.election import Election

#: Delay between two local processes.
LINK_MS = 1
#: Time for a worker to connect to a new watchdog; also its retry while the log is being read.
HELLO_AGAIN_MS = 20
#: Interval of recovery checks while held.
HELD_LOOK_MS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    member: str
    static: bool = False
    threads: int = 1
    heartbeat_interval_ms: int = 500
    session_timeout_ms: int = 2_000
    rejoin_timeout_ms: int = 8_000
    hang_timeout_ms: int = 3_000
    topology_hash: str = TOPOLOGY_HASH
    assignor: str = ASSIGNOR
    protocol: tuple[int, int] = (1, PROTOCOL_MAX)
    host: str = ""
    shards: ShardCount = 1


class Lifetime(Surroundings, Control, Protocol):
    def ordered(self, host: "Host", order: AnyOrder) -> None: ...

    def reported(self, host: "Host", report: AnyReport) -> None: ...

    def closed(self, host: "Host") -> None: ...

    def topics_life(self) -> int:
        """Return the generation of the control topics, 0 while deleted."""


@dataclass(slots=True)
class _Followed:
    group: Group = field(default_factory=Group)
    offset: int = 0


class Host(Process):
    """One host program; as a `Process` it is its watchdog."""

    def __init__(self, lifetime: Lifetime, settings: MemberSettings, number: int) -> None:
        super().__init__(f"p{number}")
        self.lifetime = lifetime
        self.world: World = lifetime.world
        self.settings = settings
        self.number = number
        self.starts = 0
        self.worker = ModelWorker(
            f"w{number}",
            settings.member,
            APP,
            lifetime,
            send_report=self._say,
            hello=self._hello,
            gone=self._gone,
            lease_left=self.lease_left,
        )
        self.member: Member | None = None
        self.old_members: list[Member] = []  # Ended incarnations with unsent messages.
        self.election: Election | None = None
        self.leading: Leading | None = None
        self.lease_until_ms: int | None = None
        self._lasting: dict[type[AnyReport], AnyReport] = {}
        #: The worker's incarnation once welcomed, as in `streams/processes/watchdog/link.py`.
        self._welcomed = ""
        self._followed = _Followed()
        self._is_read = False
        self._inbox: list[AnyMessage] = []
        self._poll_due = False
        self._state_due = False
        self._wake_at = -1
        self._seen_progress = (-1, 0)
        self._topics_life = 1
        #: Start of SAFE_HOLD, or None.
        self.held_ms: int | None = None
        self.process_id = self.name

    # Lives.

    def start(self) -> None:
        self._start_watchdog()
        self.worker.start()

    def _start_watchdog(self) -> None:
        self.begin()
        self.starts += 1
        self.process_id = f"{self.name}.{self.starts}"
        self.member, self.old_members, self.leading = None, [], None
        self._topics_life = self.lifetime.topics_life()
        self.held_ms = None if self._topics_life else self.world.now
        self._followed, self._is_read = _Followed(), False
        self._inbox, self._poll_due, self._state_due, self._wake_at = [], False, False, -1
        self.election = self._new_election()
        self.state_grew()
        self.world.post(self, 1, self._check_worker)
        if self.held_ms is not None:
            self.world.post(self, 1, self.check_control_topics)
        self._wake(self.world.now + 1)

    def restart_watchdog(self) -> None:
        """Kill the watchdog; the worker starts another and reconnects with the same incarnation."""
        self.stop()
        self._start_watchdog()
        if self.worker.up:
            self.world.post(self, HELLO_AGAIN_MS, self._hello_again)

    def _hello_again(self) -> None:
        """Host the existing worker again, once the log was read."""
        if self.worker.up and self.member is None:
            if not self._is_read:
                self.world.post(self, HELLO_AGAIN_MS, self._hello_again)
                return
            self._greet()
            for kind in LASTING:
                if kind in self._lasting:
                    self._send_report(self._lasting[kind])

    def kill(self) -> None:
        self.stop()
        self.leading = None
        self.worker.crash()

    def kill_worker(self) -> None:
        """Kill the worker; its watchdog sees the closed pipe, reports the death and ends."""
        self.worker.crash()
        self.world.post(self, 5, self._worker_died)

    def _worker_died(self) -> None:
        self._retire_member("its process is gone")
        self._leave_program()

    def _gone(self) -> None:
        self.world.post(self, 30, self._worker_closed)

    def _worker_closed(self) -> None:
        self._retire_member("closed")
        self._leave_program()

    def _leave_program(self) -> None:
        if self.leading is not None:
            self.leading.resign()
        self.world.post(self, 100, self._end)

    def _end(self) -> None:
        self.stop()
        self.leading = None
        self.lifetime.closed(self)

    def _retire_member(self, reason: str) -> None:
        if self.member is not None:
            self.member.died(reason, self.world.now)
            self.old_members.append(self.member)
            self.member = None
            self._decide()

    # The worker's side of the link.

    def _say(self, report: AnyReport) -> None:
        self.lifetime.reported(self, report)
        if isinstance(report, LASTING):
            self._lasting[type(report)] = report
        self._send_report(report)

    def _send_report(self, report: AnyReport) -> None:
        self.world.post(self, LINK_MS, self._report_of, self.worker.incarnation, report)

    def _report_of(self, incarnation: str, report: AnyReport) -> None:
        if incarnation == self.worker.incarnation:
            self._report(report)

    def _report(self, report: AnyReport) -> None:
        if self.member is not None:
            self.member.report(report, self.world.now)
            self._wake(self.world.now)

    def _hello(self) -> None:
        self._lasting.clear()
        self.lease_until_ms = None
        self._greet()

    def _greet(self) -> None:
        self.world.post(self, LINK_MS, self._join, self.worker.incarnation)

    def _join(self, incarnation: str) -> None:
        worker, settings = self.worker, self.settings
        if incarnation != worker.incarnation:
            return
        if self._welcomed == incarnation and incarnation not in self._followed.group.members:
            self._end_forgotten()
            return
        self._retire_member("a new incarnation")
        workload = self.lifetime.workload
        copies = [
            (task, {workload.names[task].changelog_key: disk.offset})
            for task, disk in worker.disks.items()
            if disk.position is not None and workload.names[task].stateful
        ]
        join = JoinGroup(
            app=APP,
            member=settings.member,
            incarnation=incarnation,
            transactional_ids=(worker.transactional_id,),
            host=settings.host or self.name,
            pid=self.number,
            process_id=self.process_id,
            threads=settings.threads,
            static=settings.static,
            protocol=settings.protocol,
            topology_hash=settings.topology_hash,
            assignor=settings.assignor,
            tasks=workload.seen_tasks(),
            partitions=workload.partitions(),
            on_disk=tuple(
                DiskCopy(task=task, positions=positions)
                for task, positions in copies
                if "/" not in task
            ),
            shards=settings.shards,
            shards_on_disk=tuple(
                ShardCopy(task=task, positions=positions)
                for task, positions in copies
                if "/" in task
            ),
            session_timeout_ms=settings.session_timeout_ms,
            rejoin_timeout_ms=settings.rejoin_timeout_ms,
        )
        self.member = Member(
            join,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            session_timeout_ms=settings.session_timeout_ms,
            now_ms=self.world.now,
        )
        self._follow_member(self.member)
        self._wake(self.world.now)

    def _end_forgotten(self) -> None:
        """End an incarnation that the log no longer has: it must not join a second time."""
        order = EndIncarnation(reason="the group log does not have this incarnation any more")
        self.lifetime.ordered(self, order)
        self.world.post(self.worker, LINK_MS, self._deliver, self.worker.incarnation, order)

    def lease_left(self) -> int | None:
        """Return the worker's lease as read from shared memory."""
        return None if self.lease_until_ms is None else self.lease_until_ms - self.world.now

    def _check_worker(self) -> None:
        self.world.post(self, self.settings.heartbeat_interval_ms, self._check_worker)
        progress, since = self._seen_progress
        now = self.world.now
        if self.worker.progress != progress:
            self._seen_progress = (self.worker.progress, now)
        alive = self.worker.progress != progress or now - since <= self.settings.hang_timeout_ms
        if self.member is not None:
            self.member.set_health(alive, now)
            self._wake(now)

    # The control topics.

    def state_grew(self) -> None:
        if not self._state_due and self.up:
            self._state_due = True
            self.world.post(self, self.world.delay_ms(), self._read_state)

    def _read_state(self) -> None:
        self._state_due = False
        if not self.world.reachable(self):
            return
        if self.held_ms is not None or self.lifetime.topics_life() != self._topics_life:
            self.check_control_topics()
            return
        group, offset = self.lifetime.fold()
        self._is_read = True
        if offset == self._followed.offset:
            return
        self._followed.group, self._followed.offset = group, offset
        now = self.world.now
        if self.leading is not None and 0 < self.leading.leader_epoch < group.leader_epoch:
            self.leading.end(f"{group.leader} has claimed epoch {group.leader_epoch}")
        if self.election is not None:
            self.election.follow(group, now)
        for member in (self.member, *self.old_members):
            if member is not None:
                self._follow_member(member)
        self._wake(now)

    def check_control_topics(self) -> None:
        """Hold while the control topics differ; resume with recovered ones (H24)."""
        life = self.lifetime.topics_life()
        if not self.world.reachable(self):
            self.world.post(self, HELD_LOOK_MS, self.check_control_topics)
        elif life and life == self._topics_life and self.held_ms is None:
            return
        elif life:
            self._go_on(life)
        else:
            if self.held_ms is None:
                self.world.trace_event(f"{self.process_id} holds still")
                self.held_ms = self.world.now
                if self.leading is not None:
                    self.leading.end("SAFE_HOLD")
            self.world.post(self, HELD_LOOK_MS, self.check_control_topics)

    def _go_on(self, life: int) -> None:
        """Restart with recovered topics; earlier log state is void."""
        self.world.trace_event(f"{self.process_id} goes on with new control topics")
        if self.leading is not None:
            self.leading.end("the control topics are new")
        self._topics_life, self.held_ms = life, None
        self._followed, self._is_read = _Followed(), False
        self.old_members = []
        self._inbox = []
        if self.member is not None:
            self.member = None
            self._end_forgotten()
        self.election = self._new_election()
        self.state_grew()
        self._wake(self.world.now + 1)

    def _new_election(self) -> Election:
        return Election(
            self.process_id,
            app=APP,
            jitter_seed=self.number,
            heartbeat_interval_ms=self.settings.heartbeat_interval_ms,
            now_ms=self.world.now,
        )

    def _follow_member(self, member: Member) -> None:
        member.follow(self._followed.group, self._followed.offset, self.world.now)

    def receive_soon(self, message: AnyMessage) -> None:
        self._inbox.append(message)
        if not self._poll_due:
            self._poll_due = True
            self.world.post(self, self.world.delay_ms(), self._poll)

    def _poll(self) -> None:
        self._poll_due = False
        if not self.world.reachable(self) or self.held_ms is not None:
            return
        messages, self._inbox = self._inbox, []
        now = self.world.now
        for message in messages:
            if isinstance(message, (LeaderBeat, JoinRefused)):
                for member in (self.member, *self.old_members):
                    if member is not None:
                        member.receive(message, now)
            if self.election is not None:
                self.election.receive(message, now)
        if self.leading is not None:
            self.leading.observe(messages)
        self._wake(now)

    def healed(self) -> None:
        if self.up and self.world.reachable(self):
            self.state_grew()
            if self._inbox and not self._poll_due:
                self._poll_due = True
                self.world.post(self, self.world.delay_ms(), self._poll)

    def topics_changed(self) -> None:
        if self.up and self.worker.up:
            self.worker.topics_changed()

    # Decisions.

    def _wake(self, when_ms: int) -> None:
        """Decide at this time or earlier."""
        when_ms = max(when_ms, self.world.now)
        if self._wake_at < 0 or when_ms < self._wake_at:
            self._wake_at = when_ms
            self.world.post(self, when_ms - self.world.now, self._woken, when_ms)

    def _woken(self, when_ms: int) -> None:
        if when_ms == self._wake_at:
            self._wake_at = -1
            self._decide()

    def _decide(self) -> None:
        if self.held_ms is not None:
            return
        now = self.world.now
        wake = [self._decide_member(member, now) for member in [*self.old_members, self.member]]
        wake.append(self._decide_election(now))
        due = [each for each in wake if each is not None]
        if due:
            self._wake(max(min(due), now + 1))

    def _decide_member(self, member: Member | None, now: int) -> int | None:
        if member is None:
            return None
        decision = member.decide(now)
        for message in decision.messages:
            self.lifetime.publish(self, message)
        if member is self.member:
            # A watchdog that knows no lease leaves the one in the worker's memory.
            if decision.lease_until_ms is not None:
                self.lease_until_ms = decision.lease_until_ms
            for order in decision.orders:
                self.lifetime.ordered(self, order)
                self.world.post(self.worker, LINK_MS, self._deliver, self.worker.incarnation, order)
        if not decision.over:
            return decision.wake_ms
        if member in self.old_members:
            self.old_members.remove(member)
        return None

    def _deliver(self, incarnation: str, order: AnyOrder) -> None:
        if incarnation == self.worker.incarnation:
            if isinstance(order, Welcome):
                self._welcomed = incarnation
            self.worker.obey(order)

    def _decide_election(self, now: int) -> int | None:
        if self.election is None or self.leading is not None:
            return None
        decision = self.election.decide(now)
        for message in decision.messages:
            self.lifetime.publish(self, message)
        if decision.claim:
            self.leading = Leading(self, self.lifetime, self.process_id, over=self._stepped_down)
            self.leading.claim()
        return decision.wake_ms

    def _stepped_down(self) -> None:
        self.leading = None
        self._wake(self.world.now + 1)
