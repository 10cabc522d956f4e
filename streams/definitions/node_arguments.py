"""Checks of node arguments: topics, suppliers, functions, parents."""

import inspect
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeGuard

from tidewheel.state_stores.user_code import located
from tidewheel.streams.definitions.checks import check_callable
from tidewheel.streams.definitions.default_serdes import serdes_or_default
from tidewheel.streams.definitions.materialized import StoreBuilder
from tidewheel.streams.definitions.names import check_name, check_names, where
from tidewheel.streams.durations import to_ms
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.serdes import SerdeLike
from tidewheel.streams.user_functions import accepts
from tidewheel.tasks.processing.api.processor import FixedKeyProcessor, Processor
from tidewheel.tasks.processing.api.record import RecordContext
from tidewheel.tasks.processing.api.supplied import fault_of
from tidewheel.tasks.processing.api.topology_spec import (
    NodeSpec,
    OffsetReset,
    ProcessorSpec,
    SourceSpec,
    TimestampExtractor,
)
from tidewheel.tasks.processing.engine.processor_wrapper import ProcessorWrapper, wrapped
from tidewheel.tasks.processing.engine.transformer import ValueTransformerWithKey

#: Parameters of a partitioner.
PARTITIONER: Final = "(topic, key, value, partitions)"

#: Function that returns the topic for each record of a sink.
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
    """Return a checked source; `call` is the DSL method's name for error messages."""
    context = where(call, location)
    names, pattern = check_topics(topics, context)
    if isinstance(offset_reset, timedelta):
        to_ms(offset_reset, f"{context}: offset_reset", minimum_ms=1)
    elif offset_reset not in (None, "earliest", "latest", "none"):
        raise TopologyError(
            f"{context}: offset_reset={offset_reset!r} is unknown; give 'earliest', 'latest', 'none' or a timedelta"
        )
    key, value = serdes_or_default(*serdes, context)
    return SourceSpec(
        name=name,
        topics=names,
        pattern=pattern,
        key_serde=key,
        value_serde=value,
        timestamp_extractor=check_extractor(timestamp_extractor, context),
        offset_reset=offset_reset,
        location=location,
    )


def check_topics(topics: object, context: str) -> tuple[tuple[str, ...], re.Pattern[str] | None]:
    """Return topics or a topic pattern; raise `TopologyError` for other types."""
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
    """Return a sink's target: a topic, or a function of (key, value, record context)."""
    if callable(topic):
        return check_callable(topic, "topic", "(key, value, context)", context)
    return check_name(topic, "topic", context)


def check_extractor(extractor: object, context: str) -> TimestampExtractor | None:
    """Return a timestamp extractor; instantiate an extractor class."""
    if inspect.isclass(extractor) and callable(getattr(extractor, "__call__", None)):  # noqa: B004 - asks for its objects' method
        extractor_class: type[Any] = extractor
        extractor = extractor_class() if accepts(extractor_class, 0) else extractor_class
    checked: TimestampExtractor | None = check_callable(
        extractor, "timestamp_extractor", "(record, partition_time)", context
    )
    return checked


def check_supplier(supplier: object, context: str, kind: type[Any] | None = None) -> None:
    """Raise `TopologyError` unless this is a processor class or a factory of new objects.

    A factory is called twice to check that (as Kafka Streams' ApiUtils.checkSupplier does): tasks
    that share one object would mix up their contexts. `kind` (Processor or FixedKeyProcessor) is
    the required type.
    """
    name = type(supplier).__name__
    if isinstance(supplier, tuple(_METHOD_BY_CLASS)):
        raise TopologyError(
            f"{context}: the supplier is an object of type {name}, but each task needs its own; give the class, as in {name}, "
            "or a function that makes one"
        )
    if not callable(supplier):
        raise TopologyError(
            f"{context}: the supplier is of type {name}; give a {(kind or Processor).__name__} class or a function "
            "that makes one"
        )
    if not accepts(supplier, 0):
        raise TopologyError(
            f"{context}: the supplier needs arguments, but tasks call it without; give a function that makes the "
            "processor, as in `lambda: MyProcessor(limit)`"
        )
    if inspect.isclass(supplier):
        _check_product(supplier, kind, context)
        _check_methods(supplier, context)
        return
    first, second = _call_supplier(supplier, context), _call_supplier(supplier, context)
    _check_product(first if inspect.isclass(first) else type(first), kind, context)
    if first is second and first is not None:
        raise TopologyError(
            f"{context}: the supplier returned one object twice, but each task needs its own; make a new one at each "
            f"call, as in `lambda: {type(first).__name__}(...)`"
        )
    _check_methods(first, context)


def _call_supplier(supplier: Callable[[], object], context: str) -> object:
    try:
        return supplier()
    except Exception as error:
        raise TopologyError(
            f"{context}: the supplier failed with {located(error)}; it is called without arguments, once "
            "for each task and twice here (to see that it makes a new object each time)"
        ) from error


#: DSL method that accepts each kind of object, for error messages.
_METHOD_BY_CLASS: Final[dict[type[Any], str]] = {
    Processor: "process() of a stream",
    FixedKeyProcessor: "process_values() of a stream",
    ValueTransformerWithKey: "transform_values() of a table",
}


def _check_product(product: type[Any], kind: type[Any] | None, context: str) -> None:
    if kind is None or issubclass(product, kind):
        return
    step = f"give a {kind.__name__} class, or a function that makes one"
    for other, method_name in _METHOD_BY_CLASS.items():
        if issubclass(product, other):
            step = f"derive it from {kind.__name__}, or give it to {method_name}"
    raise TopologyError(
        f"{context}: the supplier makes an object of type {product.__name__}, not a {kind.__name__}; {step}"
    )


#: Method that a user's class of each kind implements, with its parameters.
_WORK: Final[dict[type[Any], tuple[str, tuple[str, ...]]]] = {
    Processor: ("process", ("record",)),
    FixedKeyProcessor: ("process", ("record",)),
    ValueTransformerWithKey: ("transform", ("key", "value")),
}


def _check_methods(product: object, context: str) -> None:
    kind: type[Any] = product if inspect.isclass(product) else type(product)
    for base, (method, arguments) in _WORK.items():
        if issubclass(kind, base):
            fault = fault_of(product, base, method, arguments)
            if fault is not None:
                raise TopologyError(f"{context}: {fault}")


def connected_stores(supplier: object, context: str) -> tuple[StoreBuilder, ...]:
    """Return the store builders of a supplier's `stores`, which is an attribute or a method.

    Kafka Streams' ConnectedStoreProvider.
    """
    stores: Any = getattr(supplier, "stores", None)
    if callable(stores):
        if not accepts(stores, 0):
            raise TopologyError(
                f"{context}: `stores` of the supplier needs arguments; make it an attribute, or a class method or static "
                "method that returns store builders"
            )
        stores = stores()
    if stores is None:
        return ()
    if isinstance(stores, StoreBuilder):
        stores = (stores,)
    try:
        builders: tuple[object, ...] = tuple(stores)
    except TypeError:
        raise TopologyError(
            f"{context}: `stores` of the supplier is of type {type(stores).__name__}; make it a list of store builders, as "
            "in [Stores.key_value('seen', key_serde=str, value_serde=int)]"
        ) from None
    return tuple(check_store_builder(builder, context) for builder in builders)


def check_store_builder(builder: object, context: str) -> StoreBuilder:
    """Return a store builder; raise `TopologyError` for other types."""
    if not isinstance(builder, StoreBuilder):
        raise TopologyError(
            f"{context}: the store is of type {type(builder).__name__}; give one of Stores, as in "
            "Stores.key_value('counts', key_serde=str, value_serde=int)"
        )
    return builder


def check_parents(parents: object, context: str) -> tuple[str, ...]:
    """Return parent names as a tuple; raise `TopologyError` if there is none."""
    names = one_or_more(parents, "parents", context)
    if not names:
        raise TopologyError(f"{context}: it has no parent; name at least one node")
    return names


def one_or_more(names: object, what: str, context: str) -> tuple[str, ...]:
    """Return one or several names as a tuple."""
    return check_names([names] if isinstance(names, str) else names, what, context)


def configured_wrapper(config: object) -> ProcessorWrapper | None:
    """Return the configured `processor_wrapper_class` instance, or None."""
    # `Topology.spec` also accepts None, and objects that only provide default serdes.
    if not hasattr(config, "processor_wrapper_class"):
        return None
    settings: Any = config
    configured: type[ProcessorWrapper] | ProcessorWrapper | None = settings.processor_wrapper_class
    if configured is None:
        return None
    wrapper = configured() if inspect.isclass(configured) else configured
    wrapper.configure(config)
    return wrapper


def wrapped_node(node: NodeSpec, wrapper: ProcessorWrapper) -> NodeSpec:
    """Return a wrapped node; raise `TopologyError` if the wrapper returns an invalid supplier."""
    if not isinstance(node, ProcessorSpec):
        return node
    wrapped_spec = wrapped(node, wrapper)
    if wrapped_spec.supplier is not node.supplier:
        name = type(wrapper).__qualname__
        check_supplier(
            wrapped_spec.supplier, f"{where(repr(node.name), node.location)}, wrapped by {name}"
        )
    return wrapped_spec
