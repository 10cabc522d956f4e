"""A group under random events, checked after each (invariants 1-4, 6, 8-10, 16-19, 21, 22).

Coordinator and members are real; the table carries messages and sometimes loses one. The full
simulation with broker and data is tests/simulation.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.rebalance.leader.round_table import RoundTable, Worker, keys_of, stateful, with_settings
from tidewheel.rebalance.inspect.describe import GroupPhase, LogEntry, fold_log
from tidewheel.rebalance.inspect.history import account
from tidewheel.rebalance.model import MEMBER_MOVES, TASK_MOVES, MemberPhase, TaskId, TaskPhase
from tidewheel.rebalance.protocol.group import LIVE, Group, replay
from tidewheel.rebalance.protocol.messages import Ready
from tidewheel.rebalance.protocol.orders import WorkerLeaves
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    MemberRecord,
    StepRecord,
    TargetRecord,
    TaskRecord,
)

NAMES = "abcde"
TASKS = stateful(6)


class GroupMachine(RuleBasedStateMachine):
    """Members join and leave, copies catch up or not, leaders change, fences are delayed."""

    @initialize(
        standbys=st.integers(min_value=0, max_value=1),
        interval_ms=st.sampled_from([0, 700]),
        static=st.booleans(),
    )
    def begin(self, standbys: int, interval_ms: int, static: bool) -> None:
        self.table = RoundTable(
            with_settings(
                num_standby_replicas=standbys,
                task_move_interval_ms=interval_ms,
                settling_ms=1_000,
                acceptable_recovery_lag=10,
            )
        )
        self.static = static
        self.lives: dict[str, int] = dict.fromkeys(NAMES, 0)
        self.before = Group()
        self.released_by: dict[str, str] = {}
        self.announced: set[tuple[str, str, int]] = set()
        self.table.watchers.append(self.check_record)
        self.come("a")

    # -- events -------------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES))
    def come(self, name: str) -> None:
        self.lives[name] += 1
        self.table.start(
            name, self.lives[name], static=self.static, tasks=TASKS, rejoin_timeout_ms=3_000
        )
        self.table.run()

    @rule(name=st.sampled_from(NAMES), seen=st.booleans())
    def die(self, name: str, seen: bool) -> None:
        for worker in self.workers(name):
            if worker.alive:
                self.table.kill(f"{name}-{self.lives[name]}", seen=seen)
        self.table.run()

    @rule(name=st.sampled_from(NAMES), rejoin=st.booleans(), drain_ms=st.sampled_from([0, 2_000]))
    def go(self, name: str, rejoin: bool, drain_ms: int) -> None:
        for worker in self.workers(name):
            worker.member.report(WorkerLeaves(rejoin=rejoin, drain_ms=drain_ms), self.table.now_ms)
        self.table.run()

    @rule(name=st.sampled_from(NAMES), catches_up=st.booleans())
    def change_pace(self, name: str, catches_up: bool) -> None:
        """Set if a member's copies catch up; existing copies announce themselves."""
        for worker in self.workers(name):
            worker.catches_up = catches_up
            for task in sorted(worker.copies) if catches_up else ():
                worker.member.report(worker.ready(task), self.table.now_ms)
        self.table.run()

    @rule(number=st.integers(min_value=0, max_value=5), by=st.sampled_from([5, 100]))
    def write(self, number: int, by: int) -> None:
        """Extend a changelog within or beyond the acceptable lag."""
        self.table.ends[keys_of(f"0_{number}")[0]] += by
        self.table.run()

    @rule(name=st.sampled_from(NAMES))
    def slow_fence(self, name: str) -> None:
        self.table.slow_fences.add(f"{name}-{self.lives[name]}")

    @precondition(lambda self: self.table.pending_fences)
    @rule()
    def end_fence(self) -> None:
        incarnation = self.table.pending_fences.pop(0)
        self.table.coordinator.fenced(incarnation, self.table.now_ms)
        self.table.run()

    @rule()
    def lead(self) -> None:
        self.table.lead(f"p{self.table.group.leader_epoch}")
        self.table.run()

    @rule(ms=st.sampled_from([50, 300, 1_200, 3_500]))
    def wait(self, ms: int) -> None:
        self.table.run(ms, step_ms=100)

    def workers(self, name: str) -> list[Worker]:
        found = self.table.workers.get(f"{name}-{self.lives[name]}")
        return [] if found is None else [found]

    # -- invariants of each record ---------------------------------------------------------------------------------

    def check_record(self, record: AnyRecord) -> None:
        before, self.before = self.before, self.table.group
        if record.leader_epoch < before.leader_epoch or before.pending is not None:
            return
        match record:
            case TaskRecord():
                self.check_task(before, record)
            case MemberRecord():
                self.check_member(before, record)
            case TargetRecord():
                assert record.group_epoch >= before.target.group_epoch
            case StepRecord():
                assert record.step_epoch >= before.step.step_epoch
                assert len(record.learners) <= 2
            case _:
                pass

    def check_task(self, before: Group, record: TaskRecord) -> None:
        """Transitions follow `TASK_MOVES`; a grant follows acknowledgement or fence (1, 3, 4)."""
        task = TaskId.parse(record.task)
        was = before.states.get(task)
        phase = TaskPhase.UNOWNED if was is None else TaskPhase(was.phase)
        assert record.event == TASK_MOVES[phase][TaskPhase(record.phase)]
        if record.event == "GRANT":
            assert record.task_epoch == (0 if was is None else was.task_epoch) + 1
            assert before.members[record.owner or ""].phase == MemberPhase.ACTIVE
        else:
            assert was is not None
            assert record.task_epoch == was.task_epoch
        if record.event == "RELEASED" and record.source == "fence":
            assert was is not None
            assert before.members[was.owner or ""].phase == MemberPhase.FENCED
            assert (was.owner or "") in self.table.fenced
        if record.event == "REVOKE" and record.next_member is not None:
            self.check_gate(before, task, record)

    def check_gate(self, before: Group, task: TaskId, record: TaskRecord) -> None:
        """A healthy owner loses a task only to an announced copy (8)."""
        owner = before.members[record.owner or ""]
        if owner.phase != MemberPhase.ACTIVE:
            return
        taker = before.incarnation_of(record.next_member or "")
        assert any(
            message.incarnation == taker and message.task == str(task)
            for message in self.table.said
            if isinstance(message, Ready)
        )

    def check_member(self, before: Group, record: MemberRecord) -> None:
        """Moves follow `MEMBER_MOVES`; a member that is gone owns no task (16)."""
        was = before.members.get(record.incarnation)
        phase = MemberPhase.JOINING if was is None else MemberPhase(was.phase)
        assert record.phase == phase or MemberPhase(record.phase) in MEMBER_MOVES[phase]
        if record.phase == MemberPhase.GONE:
            assert not before.owned(record.incarnation)

    # -- invariants of the group at rest ---------------------------------------------------------------------------

    @invariant()
    def workers_run_logged_tasks(self) -> None:
        """At most one worker runs a task: its owner, possibly being revoked (1)."""
        if not hasattr(self, "table"):
            return
        running: dict[str, str] = {}
        for incarnation, worker in self.table.workers.items():
            for task in worker.running:
                state = self.table.group.states[TaskId.parse(task)]
                if state.owner == incarnation and state.phase != TaskPhase.FENCE_WAIT:
                    assert task not in running
                    running[task] = incarnation

    @invariant()
    def owners_are_in_the_group(self) -> None:
        """A task's owner is live, or its fence is pending."""
        if not hasattr(self, "table"):
            return
        group = self.table.group
        for state in group.states.values():
            if state.owner is not None:
                phase = group.members[state.owner].phase
                waits = state.phase == TaskPhase.FENCE_WAIT
                assert (phase == MemberPhase.FENCING) if waits else (phase in LIVE)

    @invariant()
    def no_task_has_two_owners(self) -> None:
        """Owner, learner and standbys differ (22), unless the owner is being revoked."""
        if not hasattr(self, "table"):
            return
        group = self.table.group
        for task in group.tasks:
            state = group.states.get(task)
            holders = [copy.incarnation for copy in group.step.copies(task)]
            if state is not None and state.owner is not None and state.phase == TaskPhase.RUNNING:
                holders.append(state.owner)
            assert len(holders) == len(set(holders))

    @invariant()
    def the_log_folds_to_the_group(self) -> None:
        """All readers of the log have the same group (6)."""
        if hasattr(self, "table"):
            assert replay(self.table.log) == self.table.group

    @invariant()
    def repeated_decision_is_empty(self) -> None:
        """Fixpoint (19)."""
        if hasattr(self, "table"):
            decision = self.table.coordinator.decide(self.table.now_ms)
            assert not decision.records
            assert not decision.fences

    def teardown(self) -> None:
        """Without faults all members reach the target, and nothing waits (19, 21)."""
        if not hasattr(self, "table"):
            return
        table = self.table
        self.come("a")
        table.slow_fences.clear()
        for incarnation in table.pending_fences:
            table.coordinator.fenced(incarnation, table.now_ms)
        table.pending_fences.clear()
        for worker in table.workers.values():
            worker.catches_up = True
            for name in sorted(worker.copies):
                worker.member.report(worker.ready(name), table.now_ms)
        table.run(20_000, step_ms=250)
        group = table.group
        names = {record.member for record in group.members.values()}
        assert set(group.target.owners.values()) <= names
        for task in group.tasks:
            assert group.phase_of(task) == TaskPhase.RUNNING
            assert group.states[task].member == group.target.owners[task]
        assert not group.step.learners
        assert not group.step.parked
        assert {record.phase for record in group.members.values()} == {MemberPhase.ACTIVE}
        entries = [LogEntry(offset, offset, record) for offset, record in enumerate(table.log)]
        assert fold_log(entries).phase is GroupPhase.RUNNING
        assert account(entries)[-1].ended_ms is not None


TestGroup = GroupMachine.TestCase
TestGroup.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
