"""Admission of shards: decides which members can share partitions with each other. Pure.

All members of a group have one `partition_shards`, which the first one brings. Shards need protocol
version 2.

| the group's members | a joining member | answer |
|---|---|---|
| none | any number it can speak | admitted, the group gets its number |
| N shards | N shards | admitted |
| N shards | version 1 | refused: upgrade it |
| N shards | another number | refused: start it with N |
| gone, one still owns a task | another number | waits for the fence |
"""

from collections.abc import Iterable
from typing import Final

from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.messages import JoinGroup
from tidewheel.rebalance.protocol.naming import display_name
from tidewheel.rebalance.protocol.records import MemberRecord

#: First protocol version with shards.
SHARDS_VERSION: Final = 2


def required_version(shards: int) -> int:
    """Return the lowest protocol version that a member with this number of shards can use.

    >>> required_version(1), required_version(4)
    (1, 2)
    """
    return 1 if shards == 1 else SHARDS_VERSION


def shards_problem(join: JoinGroup, other_members: Iterable[MemberRecord]) -> str:
    """Return why a join can't share partitions with these members, and the next step; or "".

    >>> join = JoinGroup(app="shop", member="b", incarnation="b1", transactional_ids=(), host="", pid=1, process_id="")
    >>> other = MemberRecord(leader_epoch=1, member="a", incarnation="a1", phase="ACTIVE", protocol=(2, 2), shards=4)
    >>> shards_problem(join, [])
    ''
    >>> print(shards_problem(join, [other]))
    b speaks version 1 of the group protocol, and the group's members share each partition in 4 shards, which needs version 2: upgrade its program, and start it with partition_shards=4
    """
    name = display_name(join)
    for other in other_members:
        if other.shards == join.shards:
            continue
        if join.protocol[1] < required_version(other.shards):
            return (
                f"{name} speaks version {join.protocol[1]} of the group protocol, and the group's members share each partition in "
                f"{other.shards} shards, which needs version {SHARDS_VERSION}: upgrade its program, and start it with "
                f"partition_shards={other.shards}"
            )
        if other.protocol[1] < required_version(join.shards):
            return (
                f"{name} has partition_shards={join.shards}, which needs version {SHARDS_VERSION} of the group protocol, and "
                f"{display_name(other)} speaks version {other.protocol[1]}: stop all members, upgrade their program, and start "
                "them with the same partition_shards"
            )
        return (
            f"{name} has partition_shards={join.shards}, the group's members have {other.shards}: start it with "
            f"partition_shards={other.shards}. The number can change only while no member runs"
        )
    if join.protocol[1] < required_version(join.shards):
        return (
            f"{name} has partition_shards={join.shards} and speaks version {join.protocol[1]} of the group protocol, but shards "
            f"need version {SHARDS_VERSION}: upgrade its program"
        )
    return ""


def waits_for_release(join: JoinGroup, group: Group) -> bool:
    """Return True while an owner in another tiling may still commit: two would own one key."""
    return join.shards != group.about.shards and any(
        state.owner is not None for state in group.states.values()
    )
