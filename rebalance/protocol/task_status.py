"""Task status, from worker to member to group."""

import msgspec

from tidewheel.rebalance.protocol.field_types import (
    AnyTaskText,
    Count,
    Counter,
    DurationMs,
    Epoch,
    KeyHash,
    Label,
    Offset,
    OptionalKeyHash,
    OptionalOffset,
    Positions,
    Rate,
    TaskRoleText,
    Text,
)


class BlockingCoroutine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A coroutine that blocks the event loop which key ranges share."""

    function: Label  # Such as "Shop.process (shop.py:12)".
    ms: DurationMs
    first_hash: KeyHash
    node: Label = ""  # Innermost active processor, or "".
    #: Record in progress in the key range; "" and -1 if none: the coroutine is from an earlier one.
    topic: Label = ""
    partition: OptionalOffset = -1
    offset: OptionalOffset = -1
    key_hash: OptionalKeyHash = -1


class RunningCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The call of user code that has run longest, if at least 1 s."""

    text: Label  # Function, file and line, node, task, topic, partition and offset.
    ms: DurationMs
    #: True if longer than half of `max_call_ms`; without that limit, than
    #: `worker_hang_timeout_ms`.
    is_long: bool = False


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    task: AnyTaskText
    role: TaskRoleText
    epoch: Counter  # Task epoch (active) or learn epoch (copies).
    state: Label
    input: Positions = {}
    committed: Positions = {}  # Committed input offsets; a next owner never starts below.
    changelog: Positions = {}
    ends: Positions = {}
    #: Unprocessed input records (active) or unrestored changelog records; -1 unknown.
    lag: OptionalOffset = -1
    rate: Rate = 0.0
    #: Slowest records in progress: (key hash, offset, ms so far).
    ranges: tuple[tuple[KeyHash, Offset, DurationMs], ...] = ()
    range_count: Count = 1
    #: Busiest key ranges: (first hash, percent busy).
    busiest: tuple[tuple[KeyHash, Count], ...] = ()
    blocking: BlockingCoroutine | None = None
    waits: Text = ""  # Reason why its restore is stopped, or "".
    sink: Text = ""  # Reason why its sink outside Kafka does not flush, or "".
    dropped: Count = 0  # Records dropped by rule (null keys, late records) since the owner began.
    drop: Text = ""
    skipped: Count = 0
    misplaced: Text = ""  # Warning that its inputs' keys are in wrong partitions, or "".
    #: Epoch of the rest that it has reached: all that it has taken is committed. 0: none.
    rest: Epoch = 0
