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

from collections.abc import Sequence
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


def shards_problem(join: JoinGroup, others: Sequence[MemberRecord]) -> str:
    """Return why a join can't share partitions with these members, and the next step; or "".

    >>> join = JoinGroup(app="shop", member="b", incarnation="b1", transactional_ids=(), host="", pid=1, process_id="")
    >>> other = MemberRecord(leader_epoch=1, member="a", incarnation="a1", phase="ACTIVE", protocol=(2, 2), shards=4)
    >>> shards_problem(join, [])
    ''
    >>> print(shards_problem(join, [other]))
    b speaks version 1 of the group protocol, and partition_shards=4 of this group needs version 2: upgrade its program, and start it with partition_shards=4
    """
    name = display_name(join)
    for shards in dict.fromkeys((*(other.shards for other in others), join.shards)):
        if join.protocol[1] < required_version(shards):
            return (
                f"{name} speaks version {join.protocol[1]} of the group protocol, and partition_shards={shards} of this group needs "
                f"version {SHARDS_VERSION}: upgrade its program, and start it with partition_shards={shards}"
            )
    other = next((other for other in others if other.shards != join.shards), None)
    if other is None:
        return ""
    text = f"{name} has partition_shards={join.shards}, the group's members have {other.shards}: "
    if other.protocol[1] < required_version(join.shards):
        return (
            f"{text}{display_name(other)} speaks version {other.protocol[1]} of the group protocol, and shards need version "
            f"{SHARDS_VERSION}. Stop all members, upgrade their program, and start them with the same partition_shards"
        )
    return f"{text}start it with partition_shards={other.shards}. The number can change only while no member runs"


def waits_for_release(join: JoinGroup, group: Group) -> bool:
    """Return True while an owner in another tiling may still commit: two would own one key."""
    return join.shards != group.about.shards and any(
        state.owner is not None for state in group.states.values()
    )
