"""How far one task is, as a worker tells its member and a member tells the group."""

import msgspec

from tidewheel.rebalance.protocol.field_types import (
    Count,
    Counter,
    DurationMs,
    KeyHash,
    Label,
    Offset,
    OptionalKeyHash,
    OptionalOffset,
    Positions,
    Rate,
    TaskRoleText,
    TaskText,
)


class BlockingCoroutine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A coroutine that blocks the event loop which key ranges share: they all wait for it.

    Attributes:
        function: Where it is, as "Shop.process (shop.py:12)".
        ms: For how long so far, at least.
        first_hash: First hash of the range whose it is.
        node: The processor at work in that range, furthest down; empty if none is.
        topic: That of the range's record at hand; empty, if it has none: what runs was begun before and left behind.
        partition: The record's partition, -1 for none.
        offset: The record's offset, -1 for none.
        key_hash: The hash of its key, -1 for none.
    """

    function: Label
    ms: DurationMs
    first_hash: KeyHash
    node: Label = ""
    topic: Label = ""
    partition: OptionalOffset = -1
    offset: OptionalOffset = -1
    key_hash: OptionalKeyHash = -1


class RunningCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The call of user code that a worker has been in for longest, where that is a second or more.

    Attributes:
        text: Function, file and line, node, task, topic, partition and offset.
        ms: For how long so far.
        is_long: Whether it has run for half of what it may (`max_call_ms`), or for `worker_hang_timeout_ms` without a bound.
    """

    text: Label
    ms: DurationMs
    is_long: bool = False


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a member is with one task it has in any role; for `status`, and for judging copies.

    Attributes:
        epoch: Task epoch of an active task, learn epoch of a copy.
        state: Its state, such as RUNNING or RESTORING.
        input: Next offset per input partition (active tasks).
        committed: What its owner has committed, per input partition: a floor for whoever is next, should the owner die.
        changelog: Restored position per changelog partition (copies).
        ends: End last seen per changelog partition (copies).
        lag: Records of input not processed (active), or of changelog not restored (copies); -1 if not known.
        rate: Records per second.
        ranges: Records that key ranges have had in hand for long, the longest first: (key hash, offset, ms so far).
        range_count: Key ranges of an active task; their map is in the metadata of its commits.
        busiest: Key ranges of an active task that were at work, the busiest first: (first hash, percent of some seconds).
        waits: Why its restore does not go on; empty while it does.
        dropped: Records that an active task has dropped by a rule (null keys, late records) since its owner began it.
        drop: The most frequent of them in words: how many, where, why, and the first one's position.
        skipped: Records that an active task's exception handlers have skipped.
        misplaced: What is wrong with where the keys of an active task's inputs are; empty if nothing was found.
        blocking: The coroutine of an active task that blocks its worker's event loop, if one has done so for long.
    """

    task: TaskText
    role: TaskRoleText
    epoch: Counter
    state: Label
    input: Positions = {}
    committed: Positions = {}
    changelog: Positions = {}
    ends: Positions = {}
    lag: OptionalOffset = -1
    rate: Rate = 0.0
    ranges: tuple[tuple[KeyHash, Offset, DurationMs], ...] = ()
    range_count: Count = 1
    busiest: tuple[tuple[KeyHash, Count], ...] = ()
    blocking: BlockingCoroutine | None = None
    waits: str = ""
    dropped: int = 0
    drop: str = ""
    skipped: int = 0
    misplaced: str = ""
