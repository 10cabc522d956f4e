"""Values of type parameters that do not change: frozen classes with slots, as Python 3.11 should make them."""

from dataclasses import FrozenInstanceError
from typing import Any, Never, TypeVar

T = TypeVar("T")


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
