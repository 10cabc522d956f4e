"""The assignors that come with the package, by the names that `task_assignor` takes."""

from types import MappingProxyType

from rebalance.assignors.high_availability import HighAvailabilityAssignor
from rebalance.assignors.round_robin import RoundRobinAssignor
from rebalance.assignors.sticky import StickyAssignor
from rebalance.assignors.task_assignor import TaskAssignor

#: By name; the default is "sticky".
BUILT_IN = MappingProxyType[str, TaskAssignor](
    {
        assignor.name: assignor
        for assignor in (StickyAssignor(), HighAvailabilityAssignor(), RoundRobinAssignor())
    }
)


def resolve(name: str) -> TaskAssignor:
    """Return the built-in assignor of a name; raises ValueError for any other.

    A user's own (`"module:name"`) is loaded elsewhere: this package imports nothing by name.

    >>> resolve("sticky").name
    'sticky'
    >>> resolve("random")
    Traceback (most recent call last):
    ValueError: there is no assignor 'random'; built in are high_availability, round_robin, sticky ("module:name" names your own)
    """
    assignor = BUILT_IN.get(name)
    if assignor is None:
        known = ", ".join(sorted(BUILT_IN))
        raise ValueError(
            f'there is no assignor {name!r}; built in are {known} ("module:name" names your own)'
        )
    return assignor
