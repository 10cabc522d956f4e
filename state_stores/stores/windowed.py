"""`Windowed`: a key together with the window its row belongs to."""

from dataclasses import FrozenInstanceError
from typing import Any, Generic, Never, TypeVar

import msgspec

T = TypeVar("T")


K = TypeVar("K")


def settled(cls: type[T]) -> type[T]:
    """Return a frozen class whose attributes all raise `FrozenInstanceError` when they are set or deleted.

    Attributes that are no fields raise TypeError in Python 3.11, and `typing` sets one on all that a class with its
    parameters makes: `Windowed[str]("a", 0, 5)` failed.

    >>> from tidewheel.state_stores.stores.windowed import Windowed
    >>> Windowed[str]("a", 0, 5)
    Windowed(key='a', start=0, end=5)
    """
    type.__setattr__(cls, "__setattr__", _refuse)
    type.__setattr__(cls, "__delattr__", _keep)
    return cls


def _refuse(_: object, name: str, value: Any) -> Never:  # noqa: ARG001 - the method's signature
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _keep(_: object, name: str) -> Never:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


@settled
class Windowed(msgspec.Struct, Generic[K], frozen=True, order=True):
    """The key of a windowed row (Kafka Streams' `Windowed`): ordered by key, start and end.

    Attributes:
        key: The key of the record.
        start: Begin of the window, ms since the epoch, inclusive.
        end: End of the window, ms since the epoch: exclusive for time windows, the last instant itself for sliding and
            session windows.

    Made once for each row of a windowed result, so it is of a kind that is quickly made.

    >>> Windowed("a", 0, 10)
    Windowed(key='a', start=0, end=10)
    >>> sorted([Windowed("a", 5, 10), Windowed("a", 0, 10)])[0].start
    0
    """

    key: K
    start: int
    end: int
