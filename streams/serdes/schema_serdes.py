"""Serdes of schema formats: Avro, Protobuf, JSON Schema, each with a schema registry or without.

Without a registry the bytes are the format's own. With one they begin with the magic byte 0 and the id of the schema
that wrote them, as Confluent's serialisers for Java write them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from streams.errors import StreamsError, TopologyError
from streams.schema_port import CodecError, Registry, SchemaCodec, missing_extra, registry_formats
from streams.serdes.serde import Serde

#: A schema as JSON text, or as what that text says.
Schema = str | Mapping[str, Any] | Sequence[Any]

# A serde keeps its registry's own object, so that its id can't be given to another one.
_MADE: Final[dict[tuple[Any, ...], Serde[Any]]] = {}


#: Makes a serde of a schema (its text, or the class of its messages) and a registry.
_Maker = Callable[[Any, Registry | None], Serde[Any]]
#: What another process makes a serde of.
_Recipe = tuple[_Maker, Any, Registry | None]


class _SchemaSerde(Serde[Any]):
    """A serde of a codec. Registries keep the schemas of keys and of values apart, so it says which its values are."""

    def __init__(
        self,
        name: str,
        codec: SchemaCodec,
        instance_of: type[Any] | None,
        recipe: _Recipe,
        *,
        is_key: bool = False,
    ) -> None:
        super().__init__(name=name)
        self._codec = codec
        self._instance_of = instance_of
        self._recipe = recipe
        self._is_key = is_key
        self._for_keys: Serde[Any] | None = self if is_key else None

    def for_keys(self) -> Serde[Any]:
        if self._for_keys is None:
            self._for_keys = _SchemaSerde(
                self.name, self._codec, self._instance_of, self._recipe, is_key=True
            )
        return self._for_keys

    def __reduce__(self) -> tuple[Any, ...]:
        """Say how another process makes it; a codec has open connections and locks.

        Raises:
            TopologyError: Its registry is a client, or has a secret in its settings.
        """
        make, schema, registry = self._recipe
        if registry is not None:
            registry = registry_formats().travelling(registry)
        return _made_again, (make, schema, registry, self._is_key)

    def serialize(self, topic: str, value: Any, /) -> bytes | None:
        wanted = self._instance_of
        if wanted is not None and not isinstance(value, wanted):
            reason = f"expected {wanted.__name__}, got {type(value).__name__}"
        else:
            try:
                return self._codec.encode(topic, value, is_key=self._is_key)
            except CodecError as error:
                reason = str(error)
        raise self.failed("serialise", topic, reason)

    def deserialize(self, topic: str, data: bytes, /) -> Any:
        try:
            return self._codec.decode(topic, data, is_key=self._is_key)
        except CodecError as error:
            reason = f"{len(data)} bytes, {error}"
        raise self.failed("deserialise", topic, reason)


def avro_serde(schema: Schema, registry: Registry | None) -> Serde[Any]:
    """Return the serde of an Avro schema; raises `TopologyError` for a bad schema or a missing library."""
    text, parsed = _schema("Serdes.avro", schema)

    def codec() -> SchemaCodec:
        from streams.serdes.plain_codecs import PlainAvro  # noqa: PLC0415 - most programs need no schema format

        return PlainAvro(text) if registry is None else registry_formats().avro(text, registry)

    name = parsed if isinstance(parsed, str) else _part(parsed, "name") or _part(parsed, "type")
    return _made("avro", avro_serde, text, registry, codec, name=name or "union")


def protobuf_serde(message_type: type[Any], registry: Registry | None) -> Serde[Any]:
    """Return the serde of a generated Protobuf class; raises `TopologyError` as `avro_serde` does."""
    given = cast("object", message_type)
    descriptor: Any = getattr(given, "DESCRIPTOR", None)
    if not isinstance(given, type) or not hasattr(descriptor, "full_name"):
        raise TopologyError(
            "Serdes.protobuf: give a class that protoc generated, as in Serdes.protobuf(orders_pb2.Order)"
        )

    def codec() -> SchemaCodec:
        from streams.serdes.plain_codecs import PlainProtobuf  # noqa: PLC0415 - as above

        if registry is None:
            return PlainProtobuf(message_type)
        return registry_formats().protobuf(message_type, registry)

    return _made(
        "protobuf",
        protobuf_serde,
        message_type,
        registry,
        codec,
        name=descriptor.full_name,
        instance_of=message_type,
    )


def json_schema_serde(schema: Schema, registry: Registry | None) -> Serde[Any]:
    """Return the serde of JSON that follows a JSON Schema; raises `TopologyError` as `avro_serde` does."""
    text, parsed = _schema("Serdes.json_schema", schema)

    def codec() -> SchemaCodec:
        from streams.serdes.plain_codecs import PlainJsonSchema  # noqa: PLC0415 - as above

        if registry is None:
            return PlainJsonSchema(text)
        return registry_formats().json_schema(text, registry)

    name = _part(parsed, "title")
    return _made("json_schema", json_schema_serde, text, registry, codec, name=name or "untitled")


def _made_again(make: _Maker, schema: Any, registry: Registry | None, is_key: bool) -> Serde[Any]:
    """Return the serde that another process had, where it has arrived."""
    made = make(schema, registry)
    return made.for_keys() if is_key else made


_EXTRAS: Final = {"avro": "avro", "protobuf": "protobuf", "json_schema": "jsonschema"}


def _made(
    kind: str,
    make: _Maker,
    schema: object,
    registry: Registry | None,
    codec: Callable[[], SchemaCodec],
    *,
    name: str,
    instance_of: type[Any] | None = None,
) -> Serde[Any]:
    """Return the serde of these arguments, made at most once: nodes with one serde reuse the bytes of keys."""
    key = (kind, schema, _identity(registry))
    if key not in _MADE:
        operator = f"Serdes.{kind}"
        try:
            made = codec()
        except ImportError as error:
            raise missing_extra(operator, _EXTRAS[kind], error) from error
        except StreamsError:
            raise
        except Exception as error:
            raise TopologyError(
                f"{operator}: {name} is no schema that can be used ({type(error).__name__}: {error}); correct it"
            ) from error
        recipe = make, schema, registry
        _MADE[key] = _SchemaSerde(f"{kind}({name})", made, instance_of, recipe)
    return _MADE[key]


def _identity(registry: Registry | None) -> object:
    if isinstance(registry, Mapping):
        return frozenset((name, repr(setting)) for name, setting in registry.items())
    return registry if registry is None or isinstance(registry, str) else id(registry)


def _schema(operator: str, schema: object) -> tuple[str, Any]:
    """Return a schema as JSON text and as what that says."""
    if isinstance(schema, str):
        text = schema
    elif isinstance(schema, Mapping | list | tuple):
        text = json.dumps(schema, default=_plain)
    else:
        raise TopologyError(
            f"{operator}: the schema is of type {type(schema).__name__}; give its JSON as text, or a dict"
        )
    try:
        return text, json.loads(text)
    except ValueError as error:
        raise TopologyError(
            f"{operator}: the schema is no JSON ({error}); give its text, not the name of its file"
        ) from None


def _part(schema: object, name: str) -> str | None:
    """Return a text that a schema has at its top, or None."""
    found = cast("Mapping[str, object]", schema).get(name) if isinstance(schema, Mapping) else None
    return found if isinstance(found, str) else None


def _plain(part: object) -> object:
    if isinstance(part, Mapping):
        return dict(cast("Mapping[str, object]", part))
    raise TypeError(f"a schema can't hold a {type(part).__name__}")
