"""What users give to a node, checked: topics, suppliers, functions, parents.

Each function returns the argument in the form specs hold it, or raises `TopologyError` with operator and line.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from streams.default_serdes import serdes_or_default
from streams.errors import TopologyError
from streams.functions import accepts
from streams.materialized import StoreBuilder
from streams.names import check_name, check_names, where
from streams.serdes import SerdeLike
from tasks.processing.processor import Processor
from tasks.processing.record import RecordContext
from tasks.processing.topology_spec import OffsetReset, SourceSpec, TimestampExtractor

#: Names the topic of each record that a sink writes.
TopicChooser = Callable[[Any, Any, RecordContext], str]


def source_spec(
    *,
    name: str,
    topics: str | Sequence[str] | re.Pattern[str],
    serdes: tuple[SerdeLike[Any] | None, SerdeLike[Any] | None],
    timestamp_extractor: TimestampExtractor | None,
    offset_reset: OffsetReset | None,
    call: str,
    location: str,
) -> SourceSpec:
    """Return a checked source; `call` is the function the user called."""
    context = where(call, location)
    names, pattern = check_topics(topics, context)
    if offset_reset not in {None, "earliest", "latest"}:
        raise TopologyError(
            f"{context}: offset_reset={offset_reset!r} is unknown; give 'earliest' or 'latest'"
        )
    key, value = serdes_or_default(*serdes, context)
    return SourceSpec(
        name=name,
        topics=names,
        pattern=pattern,
        key_serde=key,
        value_serde=value,
        timestamp_extractor=check_callable(timestamp_extractor, "timestamp_extractor", 2, context),
        offset_reset=offset_reset,
        location=location,
    )


def check_topics(topics: object, context: str) -> tuple[tuple[str, ...], re.Pattern[str] | None]:
    """Return topics or the pattern of them; raises `TopologyError` for anything else."""
    if _is_pattern(topics):
        if not isinstance(topics.pattern, str):
            raise TopologyError(f"{context}: the pattern is one of bytes; compile it from a string")
        return (), topics
    if isinstance(topics, str):
        return (check_name(topics, "topic", context),), None
    names = check_names(topics, "topics", context)
    if not names:
        raise TopologyError(f"{context}: no topic is named; give at least one")
    return names, None


def _is_pattern(topics: object) -> TypeGuard[re.Pattern[Any]]:
    return isinstance(topics, re.Pattern)


def check_target(topic: object, context: str) -> Any:
    """Return what a sink writes to: a topic, or a function of (key, value, record context)."""
    if callable(topic):
        return check_callable(topic, "topic", 3, context)
    return check_name(topic, "topic", context)


def check_callable(function: Any, what: str, parameters: int, context: str) -> Any:
    """Return a function that can be called with so many arguments, or None; raises `TopologyError` otherwise."""
    if function is None:
        return None
    if not callable(function):
        raise TopologyError(
            f"{context}: {what} is of type {type(function).__name__}, not a function; give a callable of "
            f"{parameters} parameters"
        )
    if not accepts(function, parameters):
        raise TopologyError(f"{context}: {what} must take {parameters} parameters")
    return function


def check_supplier(supplier: object, context: str) -> None:
    """Raise `TopologyError` unless this is a processor class or a function without parameters."""
    kind = type(supplier).__name__
    if isinstance(supplier, Processor):
        raise TopologyError(
            f"{context}: the supplier is an object of type {kind}, but each task needs its own; give the class, as in {kind}, "
            "or a function that makes one"
        )
    if not callable(supplier):
        raise TopologyError(
            f"{context}: the supplier is of type {kind}; give a Processor class or a function that "
            "makes one"
        )
    if not accepts(supplier, 0):
        raise TopologyError(
            f"{context}: the supplier needs arguments, but tasks call it without; give a function that makes the "
            "processor, as in `lambda: MyProcessor(limit)`"
        )


def check_store_builder(builder: object, context: str) -> StoreBuilder:
    """Return a store builder; raises `TopologyError` for anything else."""
    if not isinstance(builder, StoreBuilder):
        raise TopologyError(
            f"{context}: the store is of type {type(builder).__name__}; give one of Stores, as in "
            "Stores.key_value('counts', key_serde=str, value_serde=int)"
        )
    return builder


def check_parents(parents: object, context: str) -> tuple[str, ...]:
    """Return the names of parents, at least one."""
    names = one_or_more(parents, "parents", context)
    if not names:
        raise TopologyError(f"{context}: it has no parent; name at least one node")
    return names


def one_or_more(names: object, what: str, context: str) -> tuple[str, ...]:
    """Return one name or several as a tuple."""
    return check_names([names] if isinstance(names, str) else names, what, context)
