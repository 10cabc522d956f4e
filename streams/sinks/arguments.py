"""Checks of sinks' arguments, and imports of their extras."""

from importlib import import_module
from typing import Any

from tidewheel.streams.errors import ConfigError


def imported(module: str, sink: str, extra: str) -> Any:
    """Return a module of an extra; raise `ConfigError` with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{sink} needs the package {module.partition('.')[0]}; install it: pip install 'tidewheel[{extra}]'"
        ) from error


class Limits:
    """Options that every sink has; None keeps the default of its class."""

    def __init__(
        self,
        sink: str,
        batch_rows: int | None,
        batch_bytes: int | None,
        flush_every_ms: int | None,
        retries: int | None,
    ) -> None:
        self._set = {
            name: at_least(value, 1 if name.startswith("batch") else 0, f"{sink}: {name}")
            for name, value in {
                "batch_rows": batch_rows,
                "batch_bytes": batch_bytes,
                "flush_every_ms": flush_every_ms,
                "retries": retries,
            }.items()
            if value is not None
        }

    def apply(self, sink: object) -> None:
        """Set the options as attributes of a sink."""
        for name, value in self._set.items():
            setattr(sink, name, value)


def at_least(value: object, least: int, what: str) -> int:
    """Return a whole number; raise `ConfigError` for another value or a smaller one."""
    if type(value) is not int or value < least:
        raise ConfigError(f"{what}={value!r} must be a whole number from {least}")
    return value
