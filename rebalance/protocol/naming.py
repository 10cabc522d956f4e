"""Names of members for people: host, slot, and the beginning of the lasting name."""

from typing import Final, Protocol

#: Characters of a stored member id that are shown.
_SHORT: Final = 6


class NamedMember(Protocol):
    """A member as its join message and its record have it."""

    @property
    def member(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def slot(self) -> int: ...
    @property
    def static(self) -> bool: ...


def display_name(member: NamedMember) -> str:
    """Return `host/slot (id)`; a `group_instance_id` is shown whole, a stored id shortened.

    Members of older versions have no slot.
    """
    short = member.member if member.static else member.member[:_SHORT]
    if not member.host:
        return short
    slot = "" if member.slot < 0 else f"/{member.slot}"
    return f"{member.host}{slot} ({short})"
