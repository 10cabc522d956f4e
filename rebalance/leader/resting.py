"""Group log transactions of `tidewheel group rest` and `resume`.

`GroupRecord.rest` orders the members to take no external input. Once everything between is
processed, the group is held: no member owns a task, whoever leads. Older leaders lose `rest`, so
the application never comes to rest under them; they keep the hold.
"""

from typing import Final

from msgspec.structs import replace

from tidewheel.rebalance.leader.log_steps import Claimant, log_step, without_members
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.records import AnyRecord
from tidewheel.rebalance.protocol.rest import Rest

#: Prefix of `GroupRecord.held` texts of this module; older leaders keep holds of this form only.
REST_HOLD: Final = "SAFE_HOLD: at rest: "


def is_held_at_rest(group: Group) -> bool:
    return group.about.held.startswith(REST_HOLD)


def rest_hold_text(application_id: str) -> str:
    """Return the reason why the group is held, with the next step.

    >>> rest_hold_text("shop")
    'SAFE_HOLD: at rest: all input up to the committed offsets is processed; members wait until `tidewheel group resume shop`'
    """
    return (
        f"{REST_HOLD}all input up to the committed offsets is processed; members wait until `tidewheel group resume "
        f"{application_id}`"
    )


def order_rest(group: Group, until: dict[str, int], claimant: Claimant) -> list[AnyRecord]:
    """Return the transaction that orders the members to rest; `until` as in `Rest`.

    Raises:
        ValueError: The group is held.
    """
    if group.about.held:
        raise ValueError(f"the group decides nothing: {group.about.held}")
    rest = Rest(epoch=group.leader_epoch + 1, until=until)
    return log_step(replace(group, about=replace(group.about, rest=rest)), claimant)


def hold_at_rest(group: Group, application_id: str, claimant: Claimant) -> list[AnyRecord]:
    """Return the transaction that holds a group whose members are fenced, and removes these."""
    about = replace(group.about, held=rest_hold_text(application_id), rest=None)
    released = without_members(group, "the application is at rest")
    return log_step(replace(released, about=about), claimant)


def end_rest(group: Group, claimant: Claimant) -> list[AnyRecord]:
    """Return the transaction that lets the members continue.

    Raises:
        ValueError: The group is held for another reason, or neither rests nor comes to rest.
    """
    if group.about.held and not is_held_at_rest(group):
        raise ValueError(f"the group is held for another reason: {group.about.held}")
    if group.about.rest is None and not group.about.held:
        raise ValueError("the group is not at rest")
    return log_step(replace(group, about=replace(group.about, held="", rest=None)), claimant)
