"""Placeholders for missing serdes, and their replacement by the configured defaults."""

from dataclasses import replace
from typing import Any, NoReturn, Protocol

from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.streams.definitions.materialized import StoreBuilder
from tidewheel.streams.definitions.names import where
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.serdes import SerdeLike, as_serde, for_keys
from tidewheel.streams.serdes.buffered import BufferedSerde
from tidewheel.streams.serdes.changed import ChangedSerde
from tidewheel.streams.serdes.partitioning import WindowedPartitioner
from tidewheel.streams.serdes.windowed import is_windowed
from tidewheel.tasks.processing.api.topology_spec import (
    ExternalSinkSpec,
    NodeSpec,
    ProcessorSpec,
    SinkSpec,
)
from tidewheel.tasks.processing.engine.operator import OperatorSupplier


class DefaultSerdes(Protocol):
    """Defaults that a topology reads from a configuration such as `StreamsConfig`."""

    @property
    def default_key_serde(self) -> SerdePort | None:
        """Return the default key serde."""
        ...

    @property
    def default_value_serde(self) -> SerdePort | None:
        """Return the default value serde."""
        ...

    @property
    def dsl_store_suppliers(self) -> object:
        """Return the default store type of the DSL."""
        ...

    @property
    def dsl_store_format(self) -> str:
        """Return the default row format of DSL tables: "DEFAULT" or "HEADERS"."""
        ...


class DefaultSerde:
    """Placeholder for a missing serde, replaced by the configured default. Never serialises."""

    __slots__ = ("hint", "part")

    def __init__(self, part: str, hint: str = "") -> None:
        self.part = part
        #: Argument that the error for a missing serde asks for, such as "key_serde= to join()"; if
        #: empty, the node's type determines it.
        self.hint = hint

    #: Equal keys have equal bytes, as a task's split into key ranges requires. Descriptions of a
    #: topology assume it while the configured serde is unknown.
    canonical = True

    def surely_serializes(self, value: Any, /) -> bool:  # noqa: ARG002 - the serde's signature
        """Return False: a placeholder can serialise no value."""
        return False

    def serialize(self, topic: str, value: Any, /) -> NoReturn:  # noqa: ARG002 - the serde's signature
        """Raise: a topology with a placeholder must not run."""
        raise TopologyError(f"topic {topic}: no {self.part} serde was settled before the start")

    deserialize = serialize
    serialize_batch = serialize
    deserialize_batch = serialize

    def __repr__(self) -> str:
        return f"<default {self.part} serde>"


KEY_DEFAULT = DefaultSerde("key")
VALUE_DEFAULT = DefaultSerde("value")


def filled(serde: SerdePort | None, placeholder: DefaultSerde) -> SerdePort:
    """Return the placeholder for None, else the serde; keys may need another registry subject."""
    if serde is None:
        return placeholder
    return for_keys(serde) if placeholder.part == "key" else serde


def serdes_or_default(
    key_serde: SerdeLike[Any] | None, value_serde: SerdeLike[Any] | None, context: str
) -> tuple[SerdePort, SerdePort]:
    """Return both serdes, with placeholders for missing ones."""
    key = KEY_DEFAULT if key_serde is None else as_serde(key_serde, f"{context}: key_serde")
    if value_serde is None:
        return key, VALUE_DEFAULT
    return key, as_serde(value_serde, f"{context}: value_serde")


def resolved_node(node: NodeSpec, key: SerdePort | None, value: SerdePort | None) -> NodeSpec:
    """Return a node with placeholders replaced; raise `TopologyError` for a missing default."""
    if isinstance(node, ExternalSinkSpec):
        return node
    if isinstance(node, ProcessorSpec):
        return _resolved_processor(node, key, value)
    what, hint = repr(node.name), "where the topic is read"
    if isinstance(node, SinkSpec):
        hint = "to to() or add_sink()"
        if node.internal:
            what += f" (before topic {node.topic!r})"
            hint = "to group_by(), group_by_key(), to_table(), repartition() or to_sink()"
    context = where(what, node.location)
    key_serde = for_keys(_resolved(node.key_serde, key, context, hint))
    if isinstance(node, SinkSpec) and isinstance(node.partitioner, WindowedPartitioner):
        assert is_windowed(key_serde), "its serde is windowed"
        node = replace(node, partitioner=WindowedPartitioner(key_serde))
    return replace(
        node,
        key_serde=key_serde,
        value_serde=_resolved(node.value_serde, value, context, hint),
    )


def _resolved_processor(
    node: ProcessorSpec, key: SerdePort | None, value: SerdePort | None
) -> ProcessorSpec:
    supplier = node.supplier
    if not isinstance(supplier, OperatorSupplier) or not any(
        isinstance(argument, DefaultSerde) for argument in supplier.arguments
    ):
        return node
    context, hint = where(repr(node.name), node.location), "where the table is made or grouped"
    own_key = None if key is None else for_keys(key)
    arguments = tuple(
        _resolved(argument, own_key if argument.part == "key" else value, context, hint)
        if isinstance(argument, DefaultSerde)
        else argument
        for argument in supplier.arguments
    )
    return replace(node, supplier=replace(supplier, arguments=arguments))


def resolved_store(
    builder: StoreBuilder, user: NodeSpec | None, key: SerdePort | None, value: SerdePort | None
) -> StoreSpec:
    """Return a store with placeholders replaced; `user` is a node that uses it, named in errors."""
    location = builder.location or ("" if user is None else user.location)
    context, hint = (
        where(f"store {builder.spec.name!r}", location),
        "to the operator or in Materialized(...)",
    )
    return replace(
        builder.spec,
        key_serde=for_keys(_resolved(builder.spec.key_serde, key, context, hint)),
        value_serde=_resolved(builder.spec.value_serde, value, context, hint),
    )


def _resolved(serde: SerdePort, default: SerdePort | None, context: str, hint: str) -> SerdePort:
    if isinstance(serde, ChangedSerde):
        return ChangedSerde(_resolved(serde.inner, default, context, hint))
    if isinstance(serde, BufferedSerde):
        inner = _resolved(serde.inner, default, context, hint)
        return BufferedSerde(inner, counts_headers=serde.counts_headers)
    if is_windowed(serde):
        inner = _resolved(serde.inner, default, context, hint)
        return serde if inner is serde.inner else serde.with_inner(inner)
    if not isinstance(serde, DefaultSerde):
        return serde
    if default is None:
        raise TopologyError(
            f"{context}: no {serde.part} serde; give {serde.hint or f'{serde.part}_serde= {hint}'}, or set "
            f"default_{serde.part}_serde in the config that build() gets"
        )
    return default
