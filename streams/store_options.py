"""Checks of what users say about stores, shared by `Materialized` and `Stores`. Each error names the option and the line."""

from collections.abc import Mapping
from typing import Any, TypeGuard

from streams.durations import Duration, to_ms
from streams.errors import TopologyError
from streams.serdes import Serde, SerdeLike, as_serde


def optional_ms(
    duration: Duration | None, what: str, context: str, *, minimum_ms: int = 1
) -> int | None:
    """Return a duration in milliseconds, or None if there is none; raises for one below the minimum."""
    if duration is None:
        return None
    return to_ms(duration, f"{context}: {what}", minimum_ms=minimum_ms)


def check_belongs(context: str, store_type: str, its_type: str, option: str, value: object) -> None:
    """Raise unless an option is given exactly if the store is of the type it belongs to."""
    if (store_type == its_type) is not (value is not None):
        raise TopologyError(
            f"{context}: store_type={its_type!r} and {option}= go together, but store_type is {store_type!r} and "
            f"{option} is {value!r}"
        )


def check_max_entries(value: object, context: str) -> None:
    """Raise unless this is how many keys a store may keep."""
    if type(value) is not int or value < 1:
        raise TopologyError(f"{context}: max_entries={value!r} must be an int of at least 1")


def checked_serde(serde: SerdeLike[Any], what: str, context: str) -> Serde[Any]:
    """Return the serde that an argument means; raises if it means none."""
    return as_serde(serde, f"{context}: {what}")


def check_serde(serde: SerdeLike[Any] | None, what: str, context: str) -> None:
    """Raise unless an argument means a serde, or is not given."""
    if serde is not None:
        checked_serde(serde, what, context)


def _is_mapping(config: object) -> TypeGuard[Mapping[object, object]]:
    return isinstance(config, Mapping)


def check_changelog_config(config: object, context: str) -> None:
    """Raise unless these are topic settings as Kafka takes them."""
    if not _is_mapping(config):
        raise TopologyError(
            f"{context}: changelog_config is of type {type(config).__name__}; give a mapping of topic settings"
        )
    for option, value in config.items():
        if not isinstance(option, str) or not isinstance(value, str):
            raise TopologyError(
                f"{context}: changelog_config[{option!r}] is of type {type(value).__name__}; Kafka takes topic settings as "
                'text, as in {"min.insync.replicas": "2"}'
            )
