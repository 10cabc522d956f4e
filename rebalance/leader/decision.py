"""What a coordinator is told once (its settings) and what it answers (a decision): values only."""

import msgspec

from tidewheel.rebalance.assignors.task_assignor import AssignmentRequest
from tidewheel.rebalance.protocol.messages import AnyMessage
from tidewheel.rebalance.protocol.records import AnyRecord


class CoordinatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Group-wide settings: those of the process that leads count.

    Attributes:
        acceptable_recovery_lag: Changelog records a copy may be behind and still take over.
        max_warmup_replicas: Learners at once, in the whole group; while somebody leaves at least two.
        num_standby_replicas: Copies kept of each stateful task.
        task_move_interval_ms: Least time between two planned moves; 0: no pacing (N3).
        heartbeat_interval_ms: Between two beats of the leader.
        settling_ms: How long a member must have been here before a running task is moved to it (N11).
        first_join_quiet_ms, join_quiet_ms, join_wait_max_ms: How long the first and later targets wait for another join (S4).
        fences_at_once: Fences in flight at most (H30).
        revoke_timeout_ms: How long an owner that beats has to let go of a task; then it is fenced.
        assignor: The `task_assignor` that this process was started with: the only one that it ever asks.
        refine: False hands every task over cold: the baseline that learners are measured against.
    """

    acceptable_recovery_lag: int = 10_000
    max_warmup_replicas: int = 2
    num_standby_replicas: int = 0
    task_move_interval_ms: int = 0
    heartbeat_interval_ms: int = 500
    settling_ms: int = 6_000
    first_join_quiet_ms: int = 300
    join_quiet_ms: int = 200
    join_wait_max_ms: int = 3_000
    fences_at_once: int = 16
    revoke_timeout_ms: int = 60_000
    assignor: str = ""
    refine: bool = True


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """Make every transactional id of an incarnation useless; `Coordinator.fenced` says that it is done."""

    incarnation: str
    transactional_ids: tuple[str, ...]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader wants done, in the order of the fields.

    Attributes:
        records: Written to the group log in ONE transaction; then call `Coordinator.committed` with them. If the write
            failed or its outcome is unknown, drop the coordinator.
        messages: Sent to the inbox, after the records (leader beats, refusals).
        fences: To be carried out in any order, at the same time; repeated by a decision only after a time-out.
        read_ends: Position keys whose read-committed end offsets are wanted: answer with `Coordinator.ends_read`.
        assign: A question for the task assignor: answer with `Coordinator.assigned`. None while one is being asked.
        wake_ms: Decide again by then at the latest, or as soon as anything is observed.
    """

    records: tuple[AnyRecord, ...] = ()
    messages: tuple[AnyMessage, ...] = ()
    fences: tuple[Fence, ...] = ()
    read_ends: tuple[str, ...] = ()
    assign: AssignmentRequest | None = None
    wake_ms: int = 0
