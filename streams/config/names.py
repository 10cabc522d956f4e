"""Importable names of objects: other processes get names, never pickled code."""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from types import MethodType
from typing import Any, Final

from tidewheel.streams.errors import ConfigError
from tidewheel.streams.user_functions import function_name

_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_NEXT_STEP: Final = 'define it with `def` or `class` at the top of a module that other processes can import, and give it or its "module:name"'


def is_importable_name(text: str) -> bool:
    """Return True for text of the form "module:name".

    >>> is_importable_name("shop.placement:spread"), is_importable_name("sticky")
    (True, False)
    """
    return _NAME.fullmatch(text) is not None


def importable_name(obj: Callable[..., Any] | str) -> str:
    """Return the "module:name" of an object; raise `ConfigError` if it has none.

    Lambdas, nested functions, partials, bound methods and objects of the main file have none.

    >>> import json
    >>> importable_name(json.dumps)
    'json:dumps'
    """
    if isinstance(obj, str):
        if is_importable_name(obj):
            return obj
        raise ConfigError(f'{obj!r} is not the name of an object; write it as "module:name"')
    module = getattr(obj, "__module__", None)
    name = getattr(obj, "__qualname__", None)
    called = function_name(obj)
    if not isinstance(module, str) or not isinstance(name, str):
        raise ConfigError(
            f"{called} object has no name that another process could import; {_NEXT_STEP}"
        )
    if "<" in name:
        kind = "a lambda" if name.endswith("<lambda>") else "defined inside a function"
        raise ConfigError(f"{called} is {kind}, and other processes can't import it; {_NEXT_STEP}")
    if module == "__main__":
        raise ConfigError(
            f"{called} is defined in the program's main file (__main__), which other processes can't import; move it "
            "to a module of its own and import it from there"
        )
    imported: Any = sys.modules.get(module)
    for part in name.split("."):
        imported = getattr(imported, part, None)
    if imported is not obj and not (isinstance(obj, MethodType) and imported == obj):
        raise ConfigError(
            f"{called} is not the object that other processes import as {module}:{name}; {_NEXT_STEP}"
        )
    return f"{module}:{name}"


def import_object(name: str) -> Any:
    """Return the object of a "module:name"; raise `ConfigError` naming the missing part.

    >>> import_object("json:dumps").__name__
    'dumps'
    """
    module, _, path = importable_name(name).partition(":")
    try:
        imported: Any = import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{name!r}: can't import module {module!r} ({error}); install it or put it on PYTHONPATH"
        ) from error
    for part in path.split("."):
        try:
            imported = getattr(imported, part)
        except AttributeError:
            raise ConfigError(
                f"{name!r}: module {module!r} has no {path!r}; correct the name"
            ) from None
    return imported
