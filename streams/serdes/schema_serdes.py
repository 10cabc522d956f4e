"""Serdes of Avro, Protobuf and JSON Schema, with or without a schema registry.

Without a registry, bytes are the format's own. With one, the magic byte 0 and the schema id precede
them, as in Confluent's Java serialisers.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, cast

from tidewheel.streams.errors import StreamsError, TopologyError
from tidewheel.streams.serdes.schema_port import (
    CodecError,
    Reference,
    Registry,
    SchemaCodec,
    SchemaSource,
    missing_extra,
    registry_formats,
)
from tidewheel.streams.serdes.serde import Serde

Schema = str | Mapping[str, Any] | Sequence[Any]


class ReferenceObject(Protocol):
    @property
    def name(self) -> str | None: ...

    @property
    def subject(self) -> str | None: ...

    @property
    def version(self) -> int | None: ...


#: A reference in the registry API's form.
SchemaReference = Mapping[str, Any] | ReferenceObject
#: Version of a subject; None: the latest.
SubjectVersion = int | Literal["latest"] | None

# Cached serdes. Their keys have the registry object's id(), unique because serdes keep it alive.
_CACHE: Final[dict[tuple[Any, ...], Serde[Any]]] = {}


#: Data by which another process rebuilds a serde: format, source, message class, registry.
_Recipe = tuple[str, SchemaSource, type[Any] | None, Registry | None]


class _SchemaSerde(Serde[Any]):
    """Serde of a codec; separate for keys and values, as their registry subjects are."""

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
        self.sorts_keys = is_key
        self._for_keys: Serde[Any] | None = self if is_key else None

    def for_keys(self) -> Serde[Any]:
        if self._for_keys is None:
            self._for_keys = _SchemaSerde(
                self.name, self._codec, self._instance_of, self._recipe, is_key=True
            )
        return self._for_keys

    def sorted_key(self, topic: str, data: bytes, /) -> bytes | None:  # noqa: ARG002 - the serde's signature
        return self._codec.sorted_key(data)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a recipe for the serde: its codec's connections and locks can't be pickled."""
        kind, source, message_type, registry = self._recipe
        if registry is not None:
            registry = registry_formats().portable_registry(registry)
        return _unpickle, (kind, source, message_type, registry, self._is_key)

    def from_plain(self, value: Any, /) -> Any:
        form = self._codec.json_form
        if form is None:
            return value
        try:
            return form.read(value)
        except CodecError as error:
            raise self.failed("serialise", "", str(error)) from None

    def to_plain(self, value: Any, /) -> Any:
        """Return a decoded value in the form that `from_plain` reads."""
        form = self._codec.json_form
        return value if form is None else form.write(value)

    def serialize(self, topic: str, value: Any, /) -> bytes | None:
        expected = self._instance_of
        if expected is not None and not isinstance(value, expected):
            reason = f"expected {expected.__name__}, got {type(value).__name__}"
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
        raise self.unreadable(topic, data, reason)


def plain_value(serde: Serde[Any], value: Any) -> Any:
    """Return a value as the JSON that the serde's `from_plain` reads, if its format has one."""
    return serde.to_plain(value) if isinstance(serde, _SchemaSerde) else value


def avro_serde(
    schema: Schema | None,
    registry: Registry | None,
    subject: str | None = None,
    version: SubjectVersion = None,
    references: Iterable[SchemaReference] = (),
) -> Serde[Any]:
    source = _source("Serdes.avro", schema, registry, subject, version, references)
    return _serde("avro", source, None, registry)


def protobuf_serde(
    message_type: type[Any],
    registry: Registry | None,
    subject: str | None = None,
    version: SubjectVersion = None,
) -> Serde[Any]:
    argument = cast("object", message_type)
    descriptor: Any = getattr(argument, "DESCRIPTOR", None)
    if not isinstance(argument, type) or not hasattr(descriptor, "full_name"):
        raise TopologyError(
            "Serdes.protobuf: give a class that protoc generated, as in Serdes.protobuf(orders_pb2.Order)"
        )
    source = SchemaSource()
    if subject is not None or version is not None:
        source = _source("Serdes.protobuf", None, registry, subject, version, ())
    return _serde("protobuf", source, message_type, registry)


def json_schema_serde(
    schema: Schema | None,
    registry: Registry | None,
    subject: str | None = None,
    version: SubjectVersion = None,
    references: Iterable[SchemaReference] = (),
) -> Serde[Any]:
    source = _source("Serdes.json_schema", schema, registry, subject, version, references)
    return _serde("json_schema", source, None, registry)


def _unpickle(
    kind: str,
    source: SchemaSource,
    message_type: type[Any] | None,
    registry: Registry | None,
    is_key: bool,
) -> Serde[Any]:
    serde = _serde(kind, source, message_type, registry)
    return serde.for_keys() if is_key else serde


_EXTRAS: Final = {"avro": "avro", "protobuf": "protobuf", "json_schema": "jsonschema"}
_SCHEMA_TYPES: Final = {"avro": "AVRO", "protobuf": "PROTOBUF", "json_schema": "JSON"}


def _serde(
    kind: str, source: SchemaSource, message_type: type[Any] | None, registry: Registry | None
) -> Serde[Any]:
    """Return a cached serde, because nodes that share a serde object reuse key bytes."""
    identity = _identity(registry)
    key = (kind, source, message_type, identity)
    if key not in _CACHE:
        operator = f"Serdes.{kind}"
        full, name = source, _name(kind, source, message_type)
        try:
            if registry is not None and (source.subject is not None or source.references):
                full = registry_formats().fetched(source, _SCHEMA_TYPES[kind], registry)
                name = _name(kind, full, message_type)
            codec = _codec(kind, full, message_type, registry)
        except ImportError as error:
            raise missing_extra(operator, _EXTRAS[kind], error) from error
        except StreamsError:
            raise
        except Exception as error:
            reason = (
                str(error) if isinstance(error, CodecError) else f"{type(error).__name__}: {error}"
            )
            raise TopologyError(
                f"{operator}: {name} is no schema that can be used ({reason}); correct it"
            ) from error
        # Other processes must use the subject version found here, not a later one.
        exact = full if full.subject is None else full._replace(text=None)
        recipe = kind, exact, message_type, registry
        serde = _SchemaSerde(f"{kind}({name})", codec, message_type, recipe)
        _CACHE[key] = _CACHE.setdefault((kind, exact, message_type, identity), serde)
    return _CACHE[key]


def _codec(
    kind: str, source: SchemaSource, message_type: type[Any] | None, registry: Registry | None
) -> SchemaCodec:
    if registry is None:
        from tidewheel.streams.serdes import plain_codecs  # noqa: PLC0415 - most programs need no schema format

        if message_type is not None:
            return plain_codecs.PlainProtobuf(message_type)
        make: Any = plain_codecs.PlainAvro if kind == "avro" else plain_codecs.PlainJsonSchema
        return cast("SchemaCodec", make(source.text))
    formats = registry_formats()
    if message_type is not None:
        return formats.protobuf(message_type, source, registry)
    return (formats.avro if kind == "avro" else formats.json_schema)(source, registry)


def _name(kind: str, source: SchemaSource, message_type: type[Any] | None) -> str:
    if message_type is not None:
        return str(cast("Any", message_type).DESCRIPTOR.full_name)
    if source.text is None:
        return f"subject {source.subject}"
    parsed = json.loads(source.text)
    if kind == "json_schema":
        return _part(parsed, "title") or "untitled"
    return (
        parsed
        if isinstance(parsed, str)
        else _part(parsed, "name") or _part(parsed, "type") or "union"
    )


def _source(
    operator: str,
    schema: Schema | None,
    registry: Registry | None,
    subject: str | None,
    version: SubjectVersion,
    references: Iterable[SchemaReference],
) -> SchemaSource:
    schema_references = tuple(_reference(operator, reference) for reference in references)
    problem = None
    if subject is None and schema is None:
        problem = "give a schema, or subject= and registry="
    elif subject is not None and (schema is not None or schema_references):
        problem = (
            "a subject has its own schema and references; give subject= alone, or the schema alone"
        )
    elif registry is None and (subject is not None or schema_references):
        problem = f"{'subject' if schema_references == () else 'references'}= needs registry=, which has these schemas"
    elif subject is None and version is not None:
        problem = "version= is a subject's; give subject= as well"
    elif subject is not None and not _is_text(subject):
        problem = f"subject= is of type {type(subject).__name__}; give its name, as in subject='orders-value'"
    if problem is not None:
        raise TopologyError(f"{operator}: {problem}")
    number = _version(operator, "version=", version)
    if subject is not None:
        return SchemaSource(subject=subject, version=number)
    return SchemaSource(_schema_text(operator, schema), schema_references)


def _reference(operator: str, reference: SchemaReference) -> Reference:
    def part(name: str) -> Any:
        return (
            reference.get(name)
            if isinstance(reference, Mapping)
            else getattr(reference, name, None)
        )

    unknown = (
        sorted(reference.keys() - {"name", "subject", "version"})
        if isinstance(reference, Mapping)
        else []
    )
    if unknown:
        raise TopologyError(
            f"{operator}: a reference has name, subject and version, and not {', '.join(map(repr, unknown))}"
        )
    name, subject = part("name"), part("subject")
    if not (_is_text(name) and _is_text(subject)):
        raise TopologyError(
            f"{operator}: each of references= has a name and a subject, as {{'name': 'shop.Customer', 'subject': "
            "'customers-value', 'version': 1}"
        )
    return Reference(
        name, subject, _version(operator, f"version of reference {name!r}:", part("version"))
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _version(operator: str, what: str, version: object) -> int | None:
    if version is None or version == "latest":
        return None
    if isinstance(version, int) and not isinstance(version, bool) and version > 0:
        return version
    raise TopologyError(
        f"{operator}: {what} {version!r} is no version; give a number from 1, or 'latest'"
    )


def _identity(registry: Registry | None) -> object:
    if isinstance(registry, Mapping):
        return frozenset((name, repr(setting)) for name, setting in registry.items())
    return registry if registry is None or isinstance(registry, str) else id(registry)


def _schema_text(operator: str, schema: object) -> str:
    if isinstance(schema, str):
        text = schema
    elif isinstance(schema, Mapping | list | tuple):
        text = json.dumps(schema, default=_plain)
    else:
        raise TopologyError(
            f"{operator}: the schema is of type {type(schema).__name__}; give its JSON as text, or a dict"
        )
    try:
        json.loads(text)
    except ValueError as error:
        raise TopologyError(
            f"{operator}: the schema is no JSON ({error}); give its text, not the name of its file"
        ) from None
    return text


def _part(schema: object, name: str) -> str | None:
    value = cast("Mapping[str, object]", schema).get(name) if isinstance(schema, Mapping) else None
    return value if isinstance(value, str) else None


def _plain(part: object) -> object:
    if isinstance(part, Mapping):
        return dict(cast("Mapping[str, object]", part))
    raise TypeError(f"a schema can't hold a {type(part).__name__}")
