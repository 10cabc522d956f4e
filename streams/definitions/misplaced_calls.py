"""Calls on the wrong kind of stream or table: the error names the calls in between."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

#: Calls that lead from one class of the DSL to another.
_ROUTES: Final[Mapping[str, Mapping[str, str]]] = {
    "KStream": {".group_by_key()": "KGroupedStream", ".to_table()": "KTable"},
    "KTable": {
        ".to_stream()": "KStream",
        ".group_by(…)": "KGroupedTable",
        ".to_stream().group_by_key()": "KGroupedStream",
    },
    "KGroupedStream": {
        ".count()": "KTable",
        ".count().to_stream()": "KStream",
        ".windowed_by(…)": "TimeWindowedKStream",
    },
    "KGroupedTable": {".count()": "KTable", ".count().to_stream()": "KStream"},
    "WindowedKStream": {".count()": "KTable", ".count().to_stream()": "KStream"},
    "CogroupedKStream": {".aggregate(…)": "KTable", ".aggregate(…).to_stream()": "KStream"},
    "_WindowedCogroup": {".aggregate(…)": "KTable", ".aggregate(…).to_stream()": "KStream"},
}


class MisplacedCalls:
    """Base of the DSL's classes whose methods users look for on each other.

    >>> from tidewheel import StreamsBuilder
    >>> StreamsBuilder().table("users", key_serde=str, value_serde=str).to("out")
    Traceback (most recent call last):
    ...
    AttributeError: 'KTable' object has no attribute 'to'; write .to_stream().to(…)
    """

    _classes: ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        MisplacedCalls._classes.setdefault(cls.__name__, cls)

    if not TYPE_CHECKING:  # a type checker would allow every attribute

        def __getattr__(self, name: str) -> Any:
            fact = f"{type(self).__name__!r} object has no attribute {name!r}"
            way = "" if name.startswith("_") else _way_to(type(self), name)
            raise AttributeError(f"{fact}; write {way}" if way else fact, name=name, obj=self)


def dsl_classes() -> Mapping[str, type]:
    """Return the DSL's classes by name."""
    return MisplacedCalls._classes  # noqa: SLF001 - of this module


def _way_to(kind: type, method: str) -> str:
    """Return the calls that reach a method of another class, such as ".to_stream().to(…)", or ""."""
    if kind.__name__ == "KStream" and method == "to_stream":
        return "the next call without it: this is a stream already"
    for base in kind.__mro__:
        for calls, reached in _ROUTES.get(base.__name__, {}).items():
            if method in dir(MisplacedCalls._classes.get(reached)):  # noqa: SLF001 - of this module
                return f"{calls}.{method}(…)"
    return ""
