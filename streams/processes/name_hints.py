"""Suggestions for names that a user's program misspells, as Python's own tracebacks have them."""

import builtins
import inspect
import re
import sys
import traceback
from collections.abc import Iterable
from types import FrameType
from typing import Any, Final

from tidewheel.streams.config.suggestions import did_you_mean
from tidewheel.streams.definitions.misplaced_calls import dsl_classes

_IMPORT: Final = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_KEYWORD: Final = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'")


def name_hint(error: BaseException) -> str:
    """Return "did you mean X?" for an error about an unknown name, or "".

    Names are those of attributes, keyword arguments, imports and variables.

    >>> try:
    ...     "a".uper()
    ... except AttributeError as error:
    ...     name_hint(error)
    'did you mean upper?'
    """
    text = str(error)
    if (
        isinstance(error, AttributeError)
        and error.name
        and text.endswith(f"attribute {error.name!r}")
    ):
        return _suggestion(error.name, dir(error.obj))
    if isinstance(error, NameError) and error.name:
        frame = _last_frame(error)
        known = [] if frame is None else [*frame.f_locals, *frame.f_globals]
        return _suggestion(error.name, [*known, *dir(builtins)])
    if isinstance(error, ImportError) and (match := _IMPORT.match(text)):
        return _suggestion(match[1], dir(sys.modules.get(match[2])))
    if isinstance(error, TypeError) and (match := _KEYWORD.search(text)):
        return _suggestion(match[2], _parameters(match[1], _last_frame(error)))
    return ""


def _suggestion(name: str, candidates: Iterable[str]) -> str:
    return did_you_mean(name, {each for each in candidates if not each.startswith("_")} - {name})


def _parameters(qualified: str, frame: FrameType | None) -> list[str]:
    """Return the parameters of a function by its qualified name, as an error has it."""
    first, _, rest = qualified.partition(".")
    for found in (*_named(first, frame), *_classes(first)):
        function: Any = found
        for part in filter(None, rest.split(".")):
            function = getattr(function, part, None)
        try:
            return list(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            continue
    return []


def _named(name: str, frame: FrameType | None) -> list[Any]:
    if frame is None:
        return []
    return [names[name] for names in (frame.f_locals, frame.f_globals) if name in names]


def _classes(name: str) -> list[type]:
    """Return the DSL's classes of this name, with the bases that have their methods."""
    return [
        base for each in dsl_classes().values() for base in each.__mro__ if base.__name__ == name
    ]


def _last_frame(error: BaseException) -> FrameType | None:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1] if frames else None
