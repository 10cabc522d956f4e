"""Avro, Protobuf and JSON Schema without a registry: the format's own bytes, and nothing before them.

Avro bytes are those of the specification's binary encoding, without the schema: reader and writer must use the same
one. The libraries come with the extras and are imported when a codec is made.
"""

import io
import json
from importlib import import_module
from typing import Any

from streams.schema_port import CodecError
from streams.serdes.strict_json import dumps, loads


class AvroCheck:
    """Refuses what fastavro would write although it is not what the schema says.

    fastavro writes 1.5 as the int 1, 5 as the boolean true, 2**40 as an `int` that no other library reads, and leaves
    out fields that the schema does not have.
    """

    def __init__(self, schema: str) -> None:
        self._validation = import_module("fastavro.validation")
        self.schema = import_module("fastavro").parse_schema(json.loads(schema))

    def __call__(self, value: Any) -> None:
        """Raise `CodecError` with the field if the value is none of the schema."""
        try:
            self._validation.validate(value, self.schema, raise_errors=True)
        except self._validation.ValidationError as error:
            first = error.errors[0]
            # Of a union there is one error for each branch.
            wanted = [_avro_type(each.schema) for each in error.errors if each.field == first.field]
            raise CodecError(
                f"at {first.field or '$'}: expected {' or '.join(wanted)}, got {_avro_kind(first)}"
            ) from None


class PlainAvro:
    """Plain Avro binary of one schema."""

    def __init__(self, schema: str) -> None:
        self._fastavro = import_module("fastavro")
        self._check = AvroCheck(schema)

    def encode(self, topic: str, value: Any, *, is_key: bool) -> bytes:  # noqa: ARG002 - the port's signature
        """Return the value's bytes."""
        self._check(value)
        out = io.BytesIO()
        try:
            self._fastavro.schemaless_writer(
                out, self._check.schema, value, strict_allow_default=True
            )
        except Exception as error:  # noqa: BLE001 - fastavro raises what Python does
            raise CodecError(avro_reason(error)) from None
        return out.getvalue()

    def decode(self, topic: str, data: bytes, *, is_key: bool) -> Any:  # noqa: ARG002 - the port's signature
        """Return the value; bytes that are left over are an error."""
        source = io.BytesIO(data)
        try:
            value = self._fastavro.schemaless_reader(source, self._check.schema, None)
        except Exception as error:  # noqa: BLE001 - the libraries raise what Python does
            raise CodecError(f"raised {type(error).__name__}") from None
        left = len(data) - source.tell()
        if left:
            raise CodecError(f"{left} bytes are left over behind the value")
        return value


def avro_reason(error: Exception) -> str:
    """Return why fastavro refuses a value; of its messages only those without the value."""
    text = str(error)
    safe = (
        "record contains more fields than the schema specifies",
        "no value and no default for",
        "Field ",
    )
    return text if text.startswith(safe) else f"raised {type(error).__name__}"


class PlainProtobuf:
    """Protobuf's own bytes; maps are written in the order of their keys, so that equal messages have equal bytes."""

    def __init__(self, message_type: type[Any]) -> None:
        import_module("google.protobuf.message")
        self._message_type = message_type

    def encode(self, topic: str, value: Any, *, is_key: bool) -> bytes:  # noqa: ARG002 - the port's signature
        """Return the message's bytes."""
        try:
            return bytes(value.SerializeToString(deterministic=True))
        except Exception as error:  # noqa: BLE001 - the libraries raise what Python does
            raise CodecError(f"raised {type(error).__name__}") from None

    def decode(self, topic: str, data: bytes, *, is_key: bool) -> Any:  # noqa: ARG002 - the port's signature
        """Return the message."""
        try:
            return self._message_type.FromString(data)
        except Exception as error:  # noqa: BLE001 - the libraries raise what Python does
            raise CodecError(f"raised {type(error).__name__}") from None


class PlainJsonSchema:
    """JSON that is validated when it is written and when it is read; `$ref` never fetches anything."""

    def __init__(self, schema: str) -> None:
        jsonschema = import_module("jsonschema")
        parsed = json.loads(schema)
        made = jsonschema.validators.validator_for(parsed)
        made.check_schema(parsed)
        self._validator = made(parsed, registry=import_module("referencing").Registry())
        self._unresolvable = import_module("referencing.exceptions").Unresolvable
        self._best_match = import_module("jsonschema.exceptions").best_match

    def encode(self, topic: str, value: Any, *, is_key: bool) -> bytes:  # noqa: ARG002 - the port's signature
        """Return the value as JSON."""
        self._validate(value)
        return dumps(value)

    def decode(self, topic: str, data: bytes, *, is_key: bool) -> Any:  # noqa: ARG002 - the port's signature
        """Return the value."""
        value = loads(data)
        self._validate(value)
        return value

    def _validate(self, value: Any) -> None:
        try:
            error = self._best_match(self._validator.iter_errors(value))
        except self._unresolvable as unresolvable:
            raise CodecError(
                f"the schema's $ref {unresolvable.ref!r} is not in the schema"
            ) from None
        if error is not None:
            raise CodecError(json_schema_reason(error))


def json_schema_reason(error: Any) -> str:
    """Return where a value breaks which rule of its schema, without the value."""
    return f"at {error.json_path}: not as the schema's {error.validator!r} asks"


def _avro_type(schema: Any) -> str:
    return schema if isinstance(schema, str) else str(schema.get("name", schema.get("type")))


def _avro_kind(found: Any) -> str:
    kind = type(found.datum).__name__
    whole = isinstance(found.schema, str) and found.schema in {"int", "long"}
    return "int out of range" if kind == "int" and whole else kind
