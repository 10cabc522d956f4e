"""Settings and decisions of the coordinator."""

import msgspec

from tidewheel.rebalance.assignors.task_assignor import AssignmentRequest
from tidewheel.rebalance.protocol.messages import AnyMessage
from tidewheel.rebalance.protocol.records import AnyRecord


class CoordinatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Group-wide settings; the leader's own values apply."""

    acceptable_recovery_lag: int = 10_000
    max_warmup_replicas: int = 2  # Learners in the whole group.
    num_standby_replicas: int = 0
    task_move_interval_ms: int = 0  # Minimum time between planned moves; 0: no pacing.
    heartbeat_interval_ms: int = 500
    settling_ms: int = 6_000  # Time in the group before a member receives running tasks.
    #: Wait after the last join: before the group's first target, before later ones; longest wait.
    first_join_quiet_ms: int = 300
    join_quiet_ms: int = 200
    join_wait_max_ms: int = 3_000
    fences_at_once: int = 16
    #: Time for a live owner to release a task; then the leader fences the owner.
    revoke_timeout_ms: int = 60_000
    #: `task_assignor` of this process. The leader imports no other name: the group log may be
    #: forged. "": use the group's, a built-in one.
    assignor: str = ""
    refine: bool = True  # False: moves without learners, as a baseline for measurements.


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """Request to fence all transactional ids of an incarnation; answer: `Coordinator.fenced`."""

    incarnation: str
    transactional_ids: tuple[str, ...]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Actions for the caller, in the order of the fields."""

    #: Write them in ONE transaction, then call `Coordinator.committed`.
    records: tuple[AnyRecord, ...] = ()
    messages: tuple[AnyMessage, ...] = ()
    fences: tuple[Fence, ...] = ()  # In any order, concurrently; requested again after a timeout.
    #: Position keys of end offsets to read; answer: `Coordinator.ends_read`.
    read_ends: tuple[str, ...] = ()
    #: Request for the assignor; answer: `Coordinator.assigned`. None while one is open.
    assign: AssignmentRequest | None = None
    wake_ms: int = 0  # Decide again by then, or after any observation.
