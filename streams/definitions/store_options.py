"""Checks of store options, shared by `Materialized` and `Stores`."""

from collections.abc import Mapping
from inspect import isabstract, isclass
from typing import Any, TypeGuard

from tidewheel.state_stores.stores.custom_store import StateStore
from tidewheel.state_stores.user_code import located
from tidewheel.streams.definitions.checks import check_flag
from tidewheel.streams.durations import to_ms
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.serdes import Serde, SerdeLike, as_serde
from tidewheel.streams.user_functions import accepts
from tidewheel.tasks.durations import Duration


def optional_ms(
    duration: Duration | None, what: str, context: str, *, minimum_ms: int = 1
) -> int | None:
    """Return a duration in milliseconds, or None; raise if it is below the minimum."""
    if duration is None:
        return None
    return to_ms(duration, f"{context}: {what}", minimum_ms=minimum_ms)


def check_belongs(context: str, store_type: str, its_type: str, option: str, value: object) -> None:
    """Raise if an option is given for another store type than its own, or missing for its own."""
    if (store_type == its_type) is not (value is not None):
        raise TopologyError(
            f"{context}: store_type={its_type!r} and {option}= go together, but store_type is {store_type!r} and "
            f"{option} is {value!r}"
        )


def check_max_entries(value: object, context: str) -> None:
    """Raise unless this is an int of at least 1."""
    if type(value) is not int or value < 1:
        raise TopologyError(f"{context}: max_entries={value!r} must be an int of at least 1")


def check_makes_stores(factory: object, context: str) -> None:
    """Raise unless this is a `StateStore` class or a factory; two calls must return two objects."""
    example = f"{context}: give a StateStore class, or a function without parameters that makes one"
    if not callable(factory) or not accepts(factory, 0):
        kind = "needs arguments" if callable(factory) else f"is of type {type(factory).__name__}"
        raise TopologyError(f"{example}; factory={factory!r} {kind}")
    if isclass(factory) and isabstract(factory):
        missing: frozenset[str] = getattr(factory, "__abstractmethods__", frozenset[str]())
        raise TopologyError(f"{example}; {factory.__name__} has no {', '.join(sorted(missing))}")
    try:
        first, second = factory(), factory()
    except Exception as error:
        raise TopologyError(
            f"{example}; factory={factory!r} failed with {located(error)}"
        ) from error
    if not isinstance(first, StateStore):
        raise TopologyError(f"{example}; it made an object of type {type(first).__name__}")
    if first is second:
        raise TopologyError(
            f"{example}; it returned one {type(first).__name__} twice, but each task needs its own"
        )


def checked_serde(serde: SerdeLike[Any], what: str, context: str) -> Serde[Any]:
    """Return a serde; raise for other arguments."""
    return as_serde(serde, f"{context}: {what}")


def check_serde(serde: SerdeLike[Any] | None, what: str, context: str) -> None:
    """Raise unless this is a serde or None."""
    if serde is not None:
        checked_serde(serde, what, context)


def _is_mapping(config: object) -> TypeGuard[Mapping[object, object]]:
    return isinstance(config, Mapping)


def check_flags(context: str, **flags: object) -> None:
    """Raise unless each option is True or False."""
    for option, value in flags.items():
        check_flag(value, option, context)


def check_changelog_config(config: object, context: str, *, logging: bool) -> None:
    """Raise unless these are valid Kafka topic settings, for a store with a changelog."""
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
    if config and not logging:
        raise TopologyError(
            f"{context}: logging=False means that there is no changelog topic, but changelog_config= gives settings for it; "
            "leave one of them out"
        )
