"""Placeholders for serdes that nobody gave, and the moment the configured defaults take their place.

A topology may be drawn and described without serdes; it may not run without. So a node without one gets a placeholder,
which names the missing part when it is settled and never turns anything into bytes.
"""

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
from tidewheel.tasks.processing.api.topology_spec import NodeSpec, ProcessorSpec, SinkSpec
from tidewheel.tasks.processing.engine.operator import OperatorSupplier


class DefaultSerdes(Protocol):
    """What a topology needs of a configuration (`StreamsConfig` is one)."""

    @property
    def default_key_serde(self) -> SerdePort | None:
        """Return the serde of keys where none was given."""
        ...

    @property
    def default_value_serde(self) -> SerdePort | None:
        """Return the serde of values where none was given."""
        ...

    @property
    def dsl_store_suppliers(self) -> object:
        """Return what says how stores of the DSL are kept where nobody did."""
        ...

    @property
    def dsl_store_format(self) -> str:
        """Return what rows of the DSL's tables keep where nobody said: "DEFAULT", or "HEADERS"."""
        ...


class DefaultSerde:
    """Stands where no serde was given, until the configured default takes its place. Never runs."""

    __slots__ = ("giver", "part")

    def __init__(self, part: str, giver: str = "") -> None:
        #: "key" or "value".
        self.part = part
        #: What to give, and where, if that is not what the node's kind says.
        self.giver = giver

    #: Says nothing against key ranges while a topology is only described; what takes its place may.
    canonical = True

    def surely_serializes(self, value: Any, /) -> bool:  # noqa: ARG002 - the serde's signature
        """Return False: nothing does."""
        return False

    def serialize(self, topic: str, value: Any, /) -> NoReturn:  # noqa: ARG002 - the serde's signature
        """Raise: a topology with such a serde must not run."""
        raise TopologyError(f"topic {topic}: no {self.part} serde was settled before the start")

    deserialize = serialize
    serialize_batch = serialize
    deserialize_batch = serialize

    def __repr__(self) -> str:
        return f"<default {self.part} serde>"


KEY_DEFAULT = DefaultSerde("key")
VALUE_DEFAULT = DefaultSerde("value")


def filled(serde: SerdePort | None, placeholder: DefaultSerde) -> SerdePort:
    """Return a serde, the one for keys where it is to be one, or the placeholder where there is none."""
    if serde is None:
        return placeholder
    return for_keys(serde) if placeholder.part == "key" else serde


def serdes_or_default(
    key_serde: SerdeLike[Any] | None, value_serde: SerdeLike[Any] | None, context: str
) -> tuple[SerdePort, SerdePort]:
    """Return both serdes, with a placeholder where the configured default is to go."""
    key = KEY_DEFAULT if key_serde is None else as_serde(key_serde, f"{context}: key_serde")
    if value_serde is None:
        return key, VALUE_DEFAULT
    return key, as_serde(value_serde, f"{context}: value_serde")


def settled_node(node: NodeSpec, key: SerdePort | None, value: SerdePort | None) -> NodeSpec:
    """Return a node with the defaults in the place of placeholders; raises `TopologyError` where there is none."""
    if isinstance(node, ProcessorSpec):
        return _settled_processor(node, key, value)
    what, giver = repr(node.name), "where the topic is read"
    if isinstance(node, SinkSpec):
        giver = "to to() or add_sink()"
        if node.internal:
            what += f" (before topic {node.topic!r})"
            giver = "to group_by(), group_by_key(), to_table() or repartition()"
    context = where(what, node.location)
    key_serde = for_keys(_settled(node.key_serde, key, context, giver))
    if isinstance(node, SinkSpec) and isinstance(node.partitioner, WindowedPartitioner):
        assert is_windowed(key_serde), "its serde is windowed"
        node = replace(node, partitioner=WindowedPartitioner(key_serde))
    return replace(
        node,
        key_serde=key_serde,
        value_serde=_settled(node.value_serde, value, context, giver),
    )


def _settled_processor(
    node: ProcessorSpec, key: SerdePort | None, value: SerdePort | None
) -> ProcessorSpec:
    """Return a node of the DSL whose operator gets the defaults in the place of placeholders."""
    supplier = node.supplier
    if not isinstance(supplier, OperatorSupplier) or not any(
        isinstance(argument, DefaultSerde) for argument in supplier.arguments
    ):
        return node
    context, giver = where(repr(node.name), node.location), "where the table is made or grouped"
    own_key = None if key is None else for_keys(key)
    arguments = tuple(
        _settled(argument, own_key if argument.part == "key" else value, context, giver)
        if isinstance(argument, DefaultSerde)
        else argument
        for argument in supplier.arguments
    )
    return replace(node, supplier=replace(supplier, arguments=arguments))


def settled_store(
    builder: StoreBuilder, user: NodeSpec | None, key: SerdePort | None, value: SerdePort | None
) -> StoreSpec:
    """Return a store with the defaults in the place of placeholders; `user` is a node that uses it."""
    location = builder.location or ("" if user is None else user.location)
    context, giver = (
        where(f"store {builder.spec.name!r}", location),
        "to the operator or in Materialized(...)",
    )
    return replace(
        builder.spec,
        key_serde=for_keys(_settled(builder.spec.key_serde, key, context, giver)),
        value_serde=_settled(builder.spec.value_serde, value, context, giver),
    )


def _settled(serde: SerdePort, default: SerdePort | None, context: str, giver: str) -> SerdePort:
    if isinstance(serde, ChangedSerde):
        return ChangedSerde(_settled(serde.inner, default, context, giver))
    if isinstance(serde, BufferedSerde):
        inner = _settled(serde.inner, default, context, giver)
        return BufferedSerde(inner, counts_headers=serde.counts_headers)
    if is_windowed(serde):
        inner = _settled(serde.inner, default, context, giver)
        return serde if inner is serde.inner else serde.with_inner(inner)
    if not isinstance(serde, DefaultSerde):
        return serde
    if default is None:
        raise TopologyError(
            f"{context}: no {serde.part} serde; give {serde.giver or f'{serde.part}_serde= {giver}'}, or set "
            f"default_{serde.part}_serde in the config that build() gets"
        )
    return default
