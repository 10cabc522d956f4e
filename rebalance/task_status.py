"""How far one task is, as a worker tells its member and a member tells the group."""

import msgspec


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

    function: str
    ms: int
    first_hash: int
    node: str = ""
    topic: str = ""
    partition: int = -1
    offset: int = -1
    key_hash: int = -1


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
        blocking: The coroutine of an active task that blocks its worker's event loop, if one has done so for long.
    """

    task: str
    role: str
    epoch: int
    state: str
    input: dict[str, int] = {}
    committed: dict[str, int] = {}
    changelog: dict[str, int] = {}
    ends: dict[str, int] = {}
    lag: int = -1
    rate: float = 0.0
    ranges: tuple[tuple[int, int, int], ...] = ()
    range_count: int = 1
    busiest: tuple[tuple[int, int], ...] = ()
    blocking: BlockingCoroutine | None = None
    waits: str = ""
