"""`Windowed`: a key with its window."""

from dataclasses import FrozenInstanceError
from typing import Any, Generic, Never, TypeVar

import msgspec

T = TypeVar("T")


K = TypeVar("K")


def fully_frozen(cls: type[T]) -> type[T]:
    """Make a frozen class raise `FrozenInstanceError` for every attribute set or deleted.

    In Python 3.11, `ValueAndTimestamp[int](…)` fails otherwise. `typing` sets `__orig_class__` and
    ignores AttributeError (`FrozenInstanceError` is one), but slotted dataclasses raise TypeError.

    >>> from tidewheel.state_stores.stores.windowed import Windowed
    >>> Windowed[str]("a", 0, 5)
    Windowed(key='a', start=0, end=5)
    """
    type.__setattr__(cls, "__setattr__", _refuse)
    type.__setattr__(cls, "__delattr__", _reject_deletion)
    return cls


def _refuse(_: object, name: str, value: Any) -> Never:  # noqa: ARG001 - the method's signature
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _reject_deletion(_: object, name: str) -> Never:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


@fully_frozen
class Windowed(msgspec.Struct, Generic[K], frozen=True, order=True):
    """The key of a windowed row (Kafka Streams' `Windowed`), ordered by key, start and end.

    Attributes:
        start: Start of the window (ms since the epoch), inclusive.
        end: End of the window (ms); exclusive for time windows, inclusive for sliding and session
            windows.

    >>> Windowed("a", 0, 10)
    Windowed(key='a', start=0, end=10)
    >>> sorted([Windowed("a", 5, 10), Windowed("a", 0, 10)])[0].start
    0
    """

    key: K
    start: int
    end: int
