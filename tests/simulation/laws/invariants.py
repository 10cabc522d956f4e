"""Log invariants (1-10, 16-22, 24-26): records, orders and messages.

Written from the protocol's text. They read each record, message, order and fence, keep their own
tables, and use no code of `rebalance`. A log transaction arrives when it is decided.
"""

from collections.abc import Container, Iterable, Sequence

from msgspec.structs import replace

from tests.simulation.laws.evidence import EndsRead, Evidence, LeaderReports, Limits
from tests.simulation.laws.placement import has_twice, needless_moves
from tests.simulation.laws.tiling import expanded, not_tiled, overlapping
from tests.simulation.model.world import World
from tidewheel.rebalance.model import TaskPhase
from tidewheel.rebalance.protocol.messages import (
    AnyMessage,
    GrantedOk,
    JoinGroup,
    MemberDied,
    Ready,
    Revoked,
    TaskFailed,
)
from tidewheel.rebalance.protocol.orders import AnyOrder, KeepCopy, ReleaseTask, RunTask
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    GroupRecord,
    LeaderClaim,
    MemberRecord,
    SnapshotBegin,
    SnapshotEnd,
    StepRecord,
    TargetRecord,
    TaskRecord,
)

OWNED = {TaskPhase.RUNNING.value, TaskPhase.REVOKING.value, TaskPhase.FENCE_WAIT.value}

#: A live leader hears an inbox message, and logs its effect, within this time.
HEARD_WITHIN_MS = 1_000


class LogInvariants:
    """Follows one lifetime's log."""

    def __init__(self, world: World, limits: Limits) -> None:
        self.world = world
        self.limits = limits
        self.evidence = Evidence()
        self.leader_epoch = 0
        self.claims = 0
        self.claimed_ms = 0
        self.about: GroupRecord | None = None
        self.members: dict[str, MemberRecord] = {}
        self.tasks: dict[str, TaskRecord] = {}  # Last record per task.
        self.target: TargetRecord | None = None
        self.step: StepRecord | None = None
        #: Epoch of the last report that its owner processes, per task.
        self.running: dict[str, int] = {}
        #: Planned moves of stateful tasks, as (task, new epoch).
        self.moves: set[tuple[str, int]] = set()
        self.steps_since_target = 0
        self.most_steps = 0
        self.targets = 0
        self.member_moves: set[tuple[str, str]] = set()
        self.task_moves: set[tuple[str, str]] = set()
        self._stateful: set[str] = set()
        self._granted: dict[tuple[str, int], str] = {}
        self._revoked: set[tuple[str, int]] = set()
        self._copied: set[tuple[str, int, str]] = set()
        self._copies_now: set[tuple[str, int, str]] = set()
        self._last_owner: dict[str, TaskRecord] = {}
        self._planned: set[str] = set()
        self._not_running_since: dict[str, int] = {}
        self._left_ms: dict[str, int] = {}
        self._revoked_ms: dict[str, int] = {}
        self._in_snapshot = False
        self._in_this: set[str] = set()  # Tasks that the snapshot has so far.
        #: Highest committed epoch when the log restarted, until its first snapshot; else None.
        self._anew: int | None = None

    def restart_after_loss(self, committed_epoch: int) -> None:
        """Accept a new log after a loss: earlier incarnations are void (invariant 24)."""
        self._anew = committed_epoch
        self.leader_epoch = 0
        self.about = self.target = self.step = None
        self.tasks, self.running = {}, {}
        self._last_owner, self._copies_now = {}, set()
        for incarnation, record in self.members.items():
            self.members[incarnation] = replace(record, phase="GONE", leader_epoch=0, rejoin_ms=0)

    def release_all(self) -> None:
        """Accept a hold at rest: its members are fenced and gone, and own no task."""
        for task, state in self.tasks.items():
            if state.phase in OWNED:
                self.tasks[task] = replace(state, phase="RELEASED", owner=None, input={})
            else:
                self.tasks[task] = replace(state, input={})
            self._not_running_since[task] = self.world.now
        for incarnation, record in self.members.items():
            self.members[incarnation] = replace(record, phase="GONE", rejoin_ms=0)
        if self.step is not None:
            self.step = StepRecord(
                leader_epoch=self.step.leader_epoch,
                group_epoch=self.step.group_epoch,
                step_epoch=self.step.step_epoch,
            )
        self._copies_now = set()

    def fail(self, number: int, what: str) -> None:
        self.world.fail(f"invariant {number}: {what}")

    # The log.

    def transaction(self, records: Iterable[AnyRecord]) -> None:
        records = list(records)
        for record in records:
            self._record(record)
        changes = any(isinstance(each, StepRecord | TaskRecord) for each in records)
        if changes and self.step is not None:
            what = has_twice(self.step, self.tasks, self.members)
            if what:
                self.fail(22, what)

    def _record(self, record: AnyRecord) -> None:
        if isinstance(record, LeaderClaim):
            self._claim(record)
            return
        if record.leader_epoch != self.leader_epoch:
            self.fail(
                5,
                f"a leader of epoch {record.leader_epoch} wrote {type(record).__name__} under epoch {self.leader_epoch}",
            )
        match record:
            case SnapshotBegin():
                self._in_snapshot, self._in_this = True, set()
            case SnapshotEnd():
                owned = {task for task, state in self.tasks.items() if state.phase in OWNED}
                if left_out := sorted(owned - self._in_this):
                    self.fail(6, f"a snapshot leaves out {left_out}")
                self._in_snapshot, self._anew = False, None
            case _ if self._in_snapshot and self._anew is not None:
                self._check_recovered(record, self._anew)
            case _ if self._in_snapshot:
                self._restated(record)
            case _:
                self._change(record)

    def _claim(self, record: LeaderClaim) -> None:
        if self._anew is not None and record.leader_epoch <= self._anew:
            self.fail(24, f"epoch {record.leader_epoch} is claimed, {self._anew} has committed")
        if record.leader_epoch <= self.leader_epoch:
            self.fail(5, f"epoch {record.leader_epoch} is claimed after {self.leader_epoch}")
        self.leader_epoch = record.leader_epoch
        self.claims += 1
        self.claimed_ms = self.world.now
        self.evidence.leader = LeaderReports(decided_ms=self.world.now)

    def _change(self, record: AnyRecord) -> None:
        match record:
            case GroupRecord():
                self.about = record
                rows = expanded(record)
                self._stateful = {task for task, row in rows.items() if row.stateful}
                for task in rows:
                    self._not_running_since.setdefault(task, self.world.now)
            case MemberRecord():
                self._member(record)
            case TargetRecord():
                self._target(record)
            case StepRecord():
                self._step(record)
            case TaskRecord():
                self._task(record)
            case _:
                raise AssertionError(f"{record} belongs to claims and snapshots")

    def _check_recovered(self, record: AnyRecord, committed_epoch: int) -> None:
        """Check the first snapshot of a new log: no owners, epochs above every committed one."""
        if isinstance(record, GroupRecord):
            self._change(record)
        elif isinstance(record, TaskRecord):
            if record.owner is not None or record.task_epoch <= committed_epoch:
                self.fail(
                    24, f"after a recovery up to epoch {committed_epoch} the log says {record}"
                )
            self.tasks[record.task] = record
            self._not_running_since[record.task] = self.world.now

    def _restated(self, record: AnyRecord) -> None:
        if isinstance(record, TaskRecord):
            self._in_this.add(record.task)
            before = self.tasks.get(record.task)
            if before is None or (before.phase, before.task_epoch, before.owner) != (
                record.phase,
                record.task_epoch,
                record.owner,
            ):
                self.fail(6, f"a snapshot says {record} of a task that was {before}")
            self._floor_holds(record, before)
        elif isinstance(record, StepRecord):
            known = 0 if self.step is None else self.step.step_epoch
            self._never_back("step", known, record.step_epoch)
        elif isinstance(record, TargetRecord):
            known = 0 if self.target is None else self.target.group_epoch
            self._never_back("group", known, record.group_epoch)

    def _never_back(self, name: str, known: int, now: int) -> None:
        if now < known:
            self.fail(4, f"the {name} epoch {known} goes back to {now}")

    def _member(self, record: MemberRecord) -> None:
        before = self.members.get(record.incarnation)
        self.member_moves.add(("JOINING" if before is None else before.phase, record.phase))
        if before is not None:
            self._no_way_back(before, record)
            if record.phase == "FENCING" != before.phase:
                self._check_session_after_claim(record)
                if before.phase == "LEAVING":
                    self._was_drained(before)
        if record.phase == "LEAVING" and (before is None or before.phase != "LEAVING"):
            self._left_ms[record.incarnation] = self.evidence.leader.decided_ms
        if record.phase == "GONE":
            for task, state in self.tasks.items():
                if state.owner == record.incarnation:
                    self.fail(16, f"{record.incarnation} is GONE and still owns {task}: {state}")
        if record.phase == "FENCED":
            self._require_fenced(record.incarnation, 3, "is called FENCED")
        if record.phase == "ACTIVE" and self.about is not None:
            self._fits(record, self.about)
        self.members[record.incarnation] = record

    def _no_way_back(self, before: MemberRecord, record: MemberRecord) -> None:
        forgotten = before.phase == "GONE" and not before.rejoin_ms
        if forgotten and before.leader_epoch < self.leader_epoch:
            return  # a leader knows those that ended under it
        order = {"FENCING": 1, "FENCED": 2, "GONE": 3}
        if order.get(record.phase, 0) < order.get(before.phase, 0):
            self.fail(18, f"{record.incarnation} comes back from {before.phase} as {record.phase}")

    def _check_session_after_claim(self, record: MemberRecord) -> None:
        """H5: no member is fenced within a session after a claim."""
        grace_ms = self.world.now - self.claimed_ms
        if record.reason.startswith("no beat") and grace_ms < record.session_timeout_ms:
            self.fail(21, f"{record.incarnation} had {grace_ms} ms since the claim (H5)")

    def _was_drained(self, record: MemberRecord) -> None:
        """Invariant 16: a leaving member is fenced only if dead, replaced or too slow."""
        incarnation, evidence, leader = record.incarnation, self.evidence, self.evidence.leader
        if incarnation in evidence.died or evidence.newest.get(record.member) != incarnation:
            return
        if leader.silent_ms(incarnation, self.claimed_ms) >= record.session_timeout_ms:
            return
        if any(
            (state.owner, state.phase) == (incarnation, "REVOKING")
            and leader.decided_ms >= self._revoked_ms[task] + state.deadline_ms
            for task, state in self.tasks.items()
        ):
            return
        self.fail(16, f"{incarnation} leaves, is there and in time, and is fenced")

    def _drains(self, owner: MemberRecord) -> bool:
        """Return True if a leaving member still has time to work."""
        until_ms = self._left_ms.get(owner.incarnation, 0) + owner.drain_ms
        in_time = self.evidence.leader.decided_ms < until_ms
        return in_time and any(each.phase == "ACTIVE" for each in self.members.values())

    def _fits(self, record: MemberRecord, about: GroupRecord) -> None:
        others = [
            each
            for each in self.members.values()
            if each.phase in ("ACTIVE", "LEAVING") and each.incarnation != record.incarnation
        ]
        for other in others:
            if other.topology_epoch == record.topology_epoch and (
                other.topology_hash != record.topology_hash
            ):
                self.fail(17, f"{record.incarnation} and {other.incarnation} run two programs")
            if other.shards != record.shards:
                self.fail(17, f"{record.incarnation} and {other.incarnation} have other shards")
            if other.assignor != record.assignor:
                self.fail(17, f"{record.incarnation} and {other.incarnation} have two assignors")

    def _target(self, record: TargetRecord) -> None:
        before = self.target
        if before is not None:
            if record.group_epoch <= before.group_epoch:
                self.fail(
                    4, f"group epoch {before.group_epoch} is followed by {record.group_epoch}"
                )
            if what := needless_moves(before, record, self.tasks, self._threads()):
                self.fail(20, what)
        if self.about is not None and (what := not_tiled(record, self.about)):
            self.fail(25, what)
        self.target = record
        self.targets += 1
        self.steps_since_target = 0

    def _threads(self) -> dict[str, int]:
        """Return threads by member name, of its newest incarnation."""
        return {each.member: each.threads for each in self.members.values()}

    def _step(self, record: StepRecord) -> None:
        if self.step is not None and record.step_epoch <= self.step.step_epoch:
            self.fail(4, f"step epoch {self.step.step_epoch} is followed by {record.step_epoch}")
        self._budget(record)
        copies = [(task, copy) for task, copy in record.all_learners.items()]
        copies += [(task, copy) for task, each in record.all_standbys.items() for copy in each]
        now = {(task, copy.learn_epoch, copy.incarnation) for task, copy in copies}
        again = (now - self._copies_now) & self._copied
        if again:
            self.fail(4, f"copies that were dropped come back under their old epoch: {again}")
        self._copies_now = now
        self._copied |= now
        self.step = record
        calm = self.world.now > self.evidence.disturbed_until_ms
        self.steps_since_target = self.steps_since_target + 1 if calm else 0
        self.most_steps = max(self.most_steps, self.steps_since_target)

    def _budget(self, record: StepRecord) -> None:
        """Invariant 10, with the exception in `rebalance/refine/refine.py`.

        A step that adds a learner has at most `max_warmup_replicas`; two while a member leaves, but
        for tasks of staying owners never more than the setting.
        """
        leaving = any(each.phase == "LEAVING" for each in self.members.values())
        most = max(self.limits.max_warmup_replicas, 2 if leaving else 0)
        known = {} if self.step is None else self.step.all_learners
        grows = any(known.get(task) != copy for task, copy in record.all_learners.items())
        if not grows:
            return
        if len(record.all_learners) > most:
            self.fail(10, f"{len(record.all_learners)} learners at once, {most} are allowed")
        staying = sorted(task for task in record.all_learners if self._owner_stays(task))
        if len(staying) > self.limits.max_warmup_replicas:
            self.fail(10, f"places for who leaves are taken by tasks of who stays: {staying}")

    def _owner_stays(self, task: str) -> bool:
        state = self.tasks.get(task)
        owner = self.members.get(state.owner or "") if state is not None else None
        return owner is not None and owner.phase == "ACTIVE"

    # Tasks.

    def _task(self, record: TaskRecord) -> None:
        task = record.task
        before = self.tasks.get(task)
        phase = TaskPhase.UNOWNED.value if before is None else before.phase
        epoch = 0 if before is None else before.task_epoch
        self._floor_holds(record, before)
        arrow = (phase, record.phase)
        self.task_moves.add(arrow)
        match record.phase:
            case TaskPhase.RUNNING.value if arrow[0] in ("UNOWNED", "RELEASED"):
                self._grant(record, before, epoch)
            case TaskPhase.REVOKING.value if arrow[0] == "RUNNING" and before is not None:
                self._same_owner(record, before)
                self._revoke(record, before)
            case TaskPhase.FENCE_WAIT.value if phase in ("RUNNING", "REVOKING") and before:
                self._same_owner(record, before)
                if not self._is_over(before.owner or ""):
                    self.fail(9, f"{task} waits for the fence of {before.owner}, who lives")
            case TaskPhase.RELEASED.value if phase in ("REVOKING", "FENCE_WAIT") and before:
                self._release(record, before)
            case _:
                self.fail(3, f"{task} goes from {phase} to {record.phase}: {record}")
        self.tasks[task] = record
        self._not_running_since[task] = self.world.now

    def _same_owner(self, record: TaskRecord, before: TaskRecord) -> None:
        if (record.owner, record.task_epoch) != (before.owner, before.task_epoch):
            self.fail(4, f"{record.task} changes its owner without a grant: {before} {record}")

    def _grant(self, record: TaskRecord, before: TaskRecord | None, epoch: int) -> None:
        task = record.task
        if record.task_epoch <= epoch or (task, record.task_epoch) in self._granted:
            self.fail(4, f"{task} is granted again at epoch {record.task_epoch}, after {epoch}")
        owner = self.members.get(record.owner or "")
        if owner is None or owner.phase not in ("ACTIVE", "LEAVING"):
            self.fail(1, f"{task} is granted to {record.owner}, which is {owner and owner.phase}")
        last = self._last_owner.get(task)
        if last is not None:
            said = (task, last.task_epoch, last.owner or "") in self.evidence.revoked
            if not said:
                self._require_fenced(last.owner or "", 3, f"owned {task} before its grant")
        if task in self._planned:
            self._planned.discard(task)
            if task in self._stateful and before is not None and before.source == "ack":
                self.moves.add((task, record.task_epoch))
        if what := overlapping(task, self.tasks):
            self.fail(26, f"{task} is granted to {record.owner}: {what}")
        self._granted[task, record.task_epoch] = record.owner or ""
        self._last_owner[task] = record

    def _require_fenced(self, incarnation: str, number: int, why: str) -> None:
        open_ids = self.evidence.used_ids[incarnation] - self.evidence.fenced_ids
        if open_ids:
            self.fail(number, f"{incarnation} {why}, and {sorted(open_ids)} are not fenced")

    def _revoke(self, record: TaskRecord, before: TaskRecord) -> None:
        """Invariants 7-9, 16: a healthy member loses tasks only to its target, to a ready copy."""
        task, owner = record.task, self.members.get(before.owner or "")
        self._revoked.add((task, record.task_epoch))
        self._revoked_ms[task] = self.evidence.leader.decided_ms
        if owner is None:
            self.fail(1, f"{task} was owned by {before.owner}, whom nobody knows")
            return
        wanted = None if self.target is None else self.target.all_owners.get(task)
        leaves = owner.phase == "LEAVING" and self._drains(owner)
        if owner.phase != "ACTIVE" and not leaves:
            return  # its deadline has passed, or it set none
        if (task, before.task_epoch) in self.evidence.failed:
            return  # it failed to open it
        if not leaves and wanted == owner.member and self._program_is(owner):
            self.fail(7, f"{task} is taken from {owner.incarnation}, where it belongs")
        began_ms = self.evidence.began.get((task, before.task_epoch))
        if began_ms is None or self.world.now - began_ms < HEARD_WITHIN_MS:
            return  # no known state: nothing to wait for
        self._planned.add(task)
        if task in self._stateful and self.limits.refine:
            self._gate(record, owner, 16 if leaves else 8)

    def _program_is(self, owner: MemberRecord) -> bool:
        return self.about is not None and self.about.topology_hash == owner.topology_hash

    def _gate(self, record: TaskRecord, owner: MemberRecord, number: int) -> None:
        """Invariant 8: a checked copy is ready, with its current store."""
        assert self.step is not None, "there is a step before there is a learner"
        copies = (
            [self.step.all_learners[record.task]] if record.task in self.step.all_learners else []
        )
        copies += self.step.all_standbys.get(record.task, ())
        for copy in copies:
            member = self.members.get(copy.incarnation)
            if (
                member is None
                or member.phase != "ACTIVE"
                or (record.next_member not in (None, member.member))
            ):
                continue
            if any(
                self._caught_up(ready, said_ms)
                for said_ms, ready in self.evidence.ready[record.task, copy.incarnation]
                if ready.learn_epoch == copy.learn_epoch
                and ready.store_uuid == self.evidence.leader.store(record.task, copy)
            ):
                return
        learner = self.step.all_learners.get(record.task)
        if learner is not None and self._is_over(learner.incarnation):
            number = 9  # its death must not affect the owner
        self.fail(
            number,
            f"{record.task} is taken from {owner.incarnation} for {record.next_member}, and no copy of {copies} is known to be ready",
        )

    def _is_over(self, incarnation: str) -> bool:
        record = self.members.get(incarnation)
        return record is None or record.phase in ("FENCING", "FENCED", "GONE")

    def _caught_up(self, ready: Ready, said_ms: int) -> bool:
        for read in reversed(self.evidence.ends_read):
            if read.at_ms < said_ms:
                return False
            lags = [
                read.ends[key] - position
                for key, position in ready.positions.items()
                if key in read.ends
            ]
            if lags and max(lags) <= self.limits.acceptable_recovery_lag:
                return True
        return False

    def _floor_holds(self, record: TaskRecord, before: TaskRecord | None) -> None:
        """H15: an owner's end offset is the floor for all later owners."""
        for key, offset in ({} if before is None else before.input).items():
            if record.input.get(key, -1) < offset:
                self.fail(
                    11,
                    f"{record.task} was left at {offset}, and {record.event} forgets it: {record}",
                )

    def _release(self, record: TaskRecord, before: TaskRecord) -> None:
        owner = before.owner or ""
        if record.source == "ack":
            said = self.evidence.revoked.get((record.task, record.task_epoch, owner))
            if said is None:
                self.fail(3, f"{record.task} is RELEASED, and {owner} never said so")
            elif dict(record.input) != dict(before.input) | dict(said.input):
                self.fail(12, f"{record.task} is RELEASED at {record.input}, not {said.input}")
        else:
            self._require_fenced(owner, 3, f"owned {record.task}, which is RELEASED")

    # Orders, messages, fences, end offsets.

    def ordered(self, incarnation: str, order: AnyOrder) -> None:
        """Check an order against the log (invariants 1, 6, 7)."""
        match order:
            case RunTask():
                if self._granted.get((order.task, order.task_epoch)) != incarnation:
                    self.fail(
                        1, f"{incarnation} is told to run {order.task}, which it was not granted"
                    )
            case ReleaseTask():
                if (order.task, order.task_epoch) not in self._revoked:
                    self.fail(7, f"{incarnation} is told to release {order.task} for no reason")
            case KeepCopy():
                if (order.task, order.learn_epoch, incarnation) not in self._copied:
                    owner = self.tasks.get(order.task)
                    self.fail(6, f"{incarnation} is told to copy {order.task}: {order} {owner}")
            case _:
                pass

    def published(self, message: AnyMessage) -> None:
        if isinstance(message, Revoked):
            key = (message.task, message.task_epoch, message.incarnation)
            self.evidence.revoked[key] = message
        elif isinstance(message, Ready):
            said = self.evidence.ready[message.task, message.incarnation]
            said.append((self.world.now, message))
            del said[:-20]
        elif isinstance(message, MemberDied):
            self.evidence.died.add(message.incarnation)
        elif isinstance(message, JoinGroup):
            self.evidence.newest[message.member] = message.incarnation

    def heard(self, message: AnyMessage) -> None:
        if isinstance(message, TaskFailed):
            self.evidence.failed.add((message.task, message.epoch))
        if isinstance(message, GrantedOk):
            key = (message.task, message.task_epoch)
            self.evidence.began.setdefault(key, self.world.now)

    def ends_read(self, ends: dict[str, int]) -> None:
        self.evidence.ends_read.append(EndsRead(self.world.now, ends))
        del self.evidence.ends_read[:-400]

    def open_once(
        self, process: str, task: str, active: Container[str], copies: Container[str]
    ) -> None:
        """A process opens a task directory once: as owner or as copy (invariant 22)."""
        if task in active and task in copies:
            self.fail(22, f"{process} runs {task} and keeps a copy of it in the same directory")

    def fences_in_flight(self, count: int) -> None:
        if count > self.limits.fences_at_once:
            self.fail(10, f"{count} fences at once, {self.limits.fences_at_once} are allowed")

    def committed(self, task: str, epoch: int, incarnation: str) -> None:
        """Check that the owner made this commit (invariants 1, 2)."""
        state = self.tasks.get(task)
        if (
            state is None
            or state.phase not in OWNED
            or state.owner != incarnation
            or state.task_epoch != epoch
        ):
            self.fail(1, f"{incarnation} commits for {task} at epoch {epoch}; the log says {state}")
        if (task, epoch, incarnation) in self.evidence.revoked:
            self.fail(2, f"{incarnation} commits for {task} after it has let go")

    def reported_running(self, task: str, epoch: int) -> None:
        self.running[task] = max(epoch, self.running.get(task, 0))

    # Now and then, and at the end.

    def check_unowned_tasks(self) -> None:
        """Invariant 21: once nothing is wrong, unowned tasks are granted in time."""
        now, calm_ms = self.world.now, self.evidence.disturbed_until_ms
        if not any(each.phase == "ACTIVE" for each in self.members.values()):
            return
        for task, since in self._not_running_since.items():
            state = self.tasks.get(task)
            if (
                state is not None
                and state.phase == "RUNNING"
                and self.running.get(task, 0) >= state.task_epoch
            ):
                continue
            limit = self.limits.unowned_ms + self._awaited_ms(state)
            if state is not None and state.phase == "RUNNING":
                limit = self.limits.opens_ms
            if now - max(since, calm_ms) > limit:
                self.fail(21, f"nobody runs {task} for {now - since} ms: {state}")

    def _awaited_ms(self, state: TaskRecord | None) -> int:
        """Return the time a task may wait for its restarting owner (S1)."""
        last = [m for m in self.members.values() if state and m.member == state.member]
        return max((each.rejoin_ms for each in last), default=0)

    def live(self) -> set[str]:
        phases = ("ACTIVE", "LEAVING", "PARKED")
        return {each for each, record in self.members.items() if record.phase in phases}

    def unsettled(self) -> str:
        """Return the reason why the group is not at its target, or "" (invariant 19)."""
        if self.target is None or self.about is None:
            return "there is no target"
        for task in expanded(self.about):
            state = self.tasks.get(task)
            wanted = self.target.all_owners.get(task)
            if state is None or state.phase != "RUNNING":
                return f"{task} is not RUNNING but {state}"
            if state.member != wanted:
                return f"{task} is run by {state.member}, and belongs to {wanted}"
            if self.running.get(task, 0) < state.task_epoch:
                return f"{task} has not begun at epoch {state.task_epoch}"
        if self.step is not None and (self.step.all_learners or self.step.all_parked):
            return f"learners {self.step.all_learners}, parked {self.step.all_parked}"
        return ""

    def converged(self, live: Sequence[str]) -> None:
        """Invariants 19, 20 at the end: Kafka Streams' bound on steps, balanced load."""
        stateful = len(self._stateful)
        bound = 2 * (stateful + stateful * self.limits.num_standby_replicas)
        if self.most_steps > max(bound, 2):
            self.fail(19, f"{self.most_steps} steps after one target, {bound} are allowed")
        if self.target is not None:
            strangers = set(self.target.all_owners.values()) - set(live)
            if strangers:
                self.fail(19, f"tasks belong to {sorted(strangers)}, who are not there: {live}")
