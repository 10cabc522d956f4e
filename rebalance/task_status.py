"""How far one task is, as a worker tells its member and a member tells the group."""

import msgspec


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a member is with one task it has in any role; for `status`, and for judging copies.

    Attributes:
        epoch: Task epoch of an active task, learn epoch of a copy.
        state: Its state, such as RUNNING or RESTORING.
        input: Next offset per input partition (active tasks).
        changelog: Restored position per changelog partition (copies).
        ends: End last seen per changelog partition (copies).
        lag: Records of input not processed (active), or of changelog not restored (copies); -1 if not known.
        rate: Records per second.
        ranges: Of the slowest key ranges (first hash, offset, age in ms of the oldest record in hand).
    """

    task: str
    role: str
    epoch: int
    state: str
    input: dict[str, int] = {}
    changelog: dict[str, int] = {}
    ends: dict[str, int] = {}
    lag: int = -1
    rate: float = 0.0
    ranges: tuple[tuple[int, int, int], ...] = ()
