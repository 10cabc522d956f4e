"""A DSL call: its operator and the user's line, with which every error message starts."""

from collections.abc import Callable
from typing import Any

import msgspec

from tidewheel.streams.definitions.names import check_name, where
from tidewheel.streams.serdes import Serde, SerdeLike, as_serde
from tidewheel.streams.user_functions import FunctionKind, UserFunction, adapt, caller_location


class Call(msgspec.Struct, frozen=True):
    """An operator and the user's line that called it."""

    operator: str
    location: str

    @classmethod
    def here(cls, operator: str) -> "Call":
        """Return a call of this operator at the user's current line."""
        return cls(operator, caller_location())

    @property
    def context(self) -> str:
        """Return the prefix of error messages.

        >>> Call("filter", "app.py:12").context
        'filter (app.py:12)'
        """
        return where(self.operator, self.location)

    def function(self, function: object, kind: FunctionKind) -> UserFunction:
        """Adapt a user's function by its signature."""
        return adapt(function, kind=kind, node=self.operator, location=self.location)

    def mapper(self, function: Callable[..., Any]) -> UserFunction:
        """Adapt a user's mapper, which takes (value) or (key, value)."""
        return self.function(function, FunctionKind.MAPPER)

    def predicate(self, function: Callable[..., object]) -> UserFunction:
        """Adapt a user's predicate, which takes (value) or (key, value)."""
        return self.function(function, FunctionKind.PREDICATE)

    def name(self, name: str | None) -> str | None:
        """Check the argument `name=`; return it unchanged."""
        return None if name is None else check_name(name, "name", self.context)

    def serde(self, serde: SerdeLike[Any] | None, what: str) -> Serde[Any] | None:
        """Convert an argument such as `value_serde=`."""
        return None if serde is None else as_serde(serde, f"{self.context}: {what}")
