"""Built-in assignors by their `task_assignor` name; the leader imports only the one it asks."""

from typing import Final

from tidewheel.rebalance.assignors.task_assignor import TaskAssignor

BUILT_IN: Final = ("sticky", "high_availability", "round_robin")


def resolve(name: str) -> TaskAssignor:
    """Return the built-in assignor of a name, or raise ValueError.

    >>> resolve("sticky").name
    'sticky'
    >>> resolve("random")
    Traceback (most recent call last):
    ValueError: there is no assignor 'random'; built in are high_availability, round_robin, sticky ("module:name" names your own)
    """
    match name:
        case "sticky":
            from tidewheel.rebalance.assignors.sticky import StickyAssignor  # noqa: PLC0415 - see the module

            return StickyAssignor()
        case "high_availability":
            from tidewheel.rebalance.assignors.high_availability import (  # noqa: PLC0415 - see the module
                HighAvailabilityAssignor,
            )

            return HighAvailabilityAssignor()
        case "round_robin":
            from tidewheel.rebalance.assignors.round_robin import (  # noqa: PLC0415 - see the module
                RoundRobinAssignor,
            )

            return RoundRobinAssignor()
        case _:
            names = ", ".join(sorted(BUILT_IN))
            raise ValueError(
                f'there is no assignor {name!r}; built in are {names} ("module:name" names your own)'
            )
