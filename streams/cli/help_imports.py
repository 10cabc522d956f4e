"""Imports for a command's help: its signature, without the modules that do its work."""

import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

#: Modules that a signature needs: its types, its defaults, and the parts of a command line.
_READ: Final = (
    "tidewheel.streams.broker",
    "tidewheel.streams.cli",
    "tidewheel.streams.console_log",
    "tidewheel.streams.errors",
    "tidewheel.streams.exit_codes",
)


def leave_out_work() -> None:
    """Import commands without Kafka's client, pydantic, and all else that only their calls need.

    For a process that prints a command's help and ends. Each name in a module that is left out is
    an empty class, which a signature can't use; a test compares each help with the whole program's.
    """
    import tidewheel.streams.cli.arguments  # noqa: F401, PLC0415 - signatures use its types

    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder, Loader):
    """Finds an empty module in place of one that does a command's work."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        is_left_out = fullname.startswith("tidewheel.") and not fullname.startswith(_READ)
        return ModuleSpec(fullname, self, is_package=True) if is_left_out else None

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = _left_out


class _LeftOut(type):
    def __getattr__(cls, name: str) -> Any:
        return _left_out(name)

    def __iter__(cls) -> Iterator[Any]:
        return iter(())  # else Python would call `__getitem__` without end

    def __getitem__(cls, _parameters: Any) -> Any:
        return cls


def _left_out(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _LeftOut(name, (), {"__init__": lambda *_arguments, **_options: None})
