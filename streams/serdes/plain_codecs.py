"""Avro, Protobuf and JSON Schema without a registry: the format's bytes only.

Avro bytes omit the schema: reader and writer need the same one.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final, cast
from urllib.parse import urljoin

from tidewheel.streams.serdes.avro_json import AvroJson
from tidewheel.streams.serdes.avro_values import AvroValues
from tidewheel.streams.serdes.schema_port import CodecError
from tidewheel.streams.serdes.strict_json import dumps, loads


class PlainAvro:
    def __init__(self, schema: str) -> None:
        self._values = AvroValues(schema)
        self.json_form = AvroJson(self._values)

    def encode(self, topic: str, value: Any, *, is_key: bool) -> bytes:  # noqa: ARG002 - the port's signature
        checked = self._values.checked(value)
        if is_key:
            checked = self._values.in_order(checked)
        try:
            return self._values.encode(checked)
        except Exception:  # noqa: BLE001 - fastavro raises what Python does
            raise CodecError(self._values.refusal(value)) from None

    def decode(self, topic: str, data: bytes, *, is_key: bool) -> Any:  # noqa: ARG002 - the port's signature
        return self._values.decode(data)

    def sorted_key(self, data: bytes) -> bytes:
        return self._values.encode(self._values.in_order(self._values.decode(data)))


class PlainProtobuf:
    """Protobuf bytes with maps sorted by key, so equal messages have equal bytes."""

    json_form = None

    def __init__(self, message_type: type[Any]) -> None:
        import_module("google.protobuf.message")
        self._message_type = message_type

    def encode(self, topic: str, value: Any, *, is_key: bool) -> bytes:  # noqa: ARG002 - the port's signature
        try:
            return bytes(value.SerializeToString(deterministic=True))
        except Exception as error:  # noqa: BLE001 - the libraries raise what Python does
            raise CodecError(f"raised {type(error).__name__}") from None

    def decode(self, topic: str, data: bytes, *, is_key: bool) -> Any:  # noqa: ARG002 - the port's signature
        try:
            return self._message_type.FromString(data)
        except Exception as error:  # noqa: BLE001 - the libraries raise what Python does
            raise CodecError(f"raised {type(error).__name__}") from None

    def sorted_key(self, data: bytes) -> bytes:
        return data


#: Most characters of the reason why a schema is none; it quotes the schema.
_REASON_MAX: Final = 200


class PlainJsonSchema:
    """JSON validated on writing and reading; `$ref` never fetches a schema from a network.

    `named` maps `$ref` names to texts of other schemas.
    """

    json_form = None

    def __init__(self, schema: str, named: Mapping[str, str] | None = None) -> None:
        jsonschema = import_module("jsonschema")
        parsed = json.loads(schema)
        validator_class = jsonschema.validators.validator_for(parsed)
        try:
            validator_class.check_schema(parsed)
        except jsonschema.SchemaError as error:  # its text has the metaschema, over many lines
            raise CodecError(f"{error.json_path}: {error.message[:_REASON_MAX]}") from None
        self._names = frozenset(
            name
            for text in (parsed, *map(json.loads, (named or {}).values()))
            for name in _declared(text)
        )
        self._validator = validator_class(parsed, registry=_schema_resources(parsed, named or {}))
        self._unresolvable = import_module("referencing.exceptions").Unresolvable
        self._best_match = import_module("jsonschema.exceptions").best_match

    def encode(self, topic: str, value: Any, *, is_key: bool) -> bytes:  # noqa: ARG002 - the port's signature
        return dumps(self.checked(value), sort=is_key)

    def decode(self, topic: str, data: bytes, *, is_key: bool) -> Any:  # noqa: ARG002 - the port's signature
        return self.checked(loads(data))

    def sorted_key(self, data: bytes) -> bytes:
        return dumps(loads(data), sort=True)

    def checked(self, value: Any) -> Any:
        try:
            error = self._best_match(self._validator.iter_errors(value))
        except self._unresolvable as unresolvable:
            raise CodecError(
                f"the schema's $ref {unresolvable.ref!r} is not in the schema"
            ) from None
        if error is not None:
            raise CodecError(json_schema_reason(error, self._names))
        return value


def _schema_resources(schema: Any, named: Mapping[str, str]) -> Any:
    referencing = import_module("referencing")
    draft7 = import_module("referencing.jsonschema").DRAFT7
    contents = {name: json.loads(text) for name, text in named.items()}
    bases = {"", *map(_id, (schema, *contents.values()))}
    return referencing.Registry().with_resources(
        (urljoin(base, name), referencing.Resource.from_contents(content, draft7))
        for name, content in contents.items()
        for base in bases
    )


def _id(schema: Any) -> str:
    if not isinstance(schema, dict):
        return ""
    identifier = cast("dict[str, Any]", schema).get("$id")
    return identifier if isinstance(identifier, str) else ""


def _declared(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        mapping = cast("dict[str, Any]", schema)
        yield from mapping.get("properties") or ()
        schema = list(mapping.values())
    if isinstance(schema, list):
        inner: Iterable[Any] = iter(cast("Iterable[Any]", schema))
        for part in inner:
            yield from _declared(part)


def json_schema_reason(error: Any, names: Collection[str] = ()) -> str:
    """Return a validation error's place and violated rule, without data."""
    path = "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" if step in names else "[str key]"
        for step in error.absolute_path
    )
    return f"at ${path}: not as the schema's {error.validator!r} asks"
