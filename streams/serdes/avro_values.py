"""Avro values that read back equal: checks a value against its schema and names the wrong field.

fastavro silently changes values: it writes 1.5 as the int 1, 2**53 + 1 as the nearest double,
1e300 as an infinite float, and drops unknown fields. Error texts contain paths and types, never
data.
"""

import copy
import io
import json
import math
import struct
from collections.abc import Iterator, Mapping
from decimal import Decimal
from importlib import import_module
from typing import Any, Final

from tidewheel.streams.serdes.read_back import difference, step_to
from tidewheel.streams.serdes.schema_port import CodecError

#: Types that fastavro writes unchanged if its validation accepts the value.
_EXACT: Final = frozenset({"null", "boolean", "int", "long", "string", "bytes"})
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_MISSING: Final = object()
#: Maximum array items without bytes, such as nulls, in one value: a few bytes can claim any number.
EMPTY_ITEMS_MAX: Final = 10_000
_VARINT_BYTES_MAX: Final = 10
#: Key of the main schema among the schemas it references; not a legal type name.
_ROOT: Final = "$root"


class AvroValues:
    def __init__(self, schema: str, named: Mapping[str, str] | None = None) -> None:
        fastavro = import_module("fastavro")
        self._validation = import_module("fastavro.validation")
        self._write = fastavro.schemaless_writer
        self._read = fastavro.schemaless_reader
        self.schema = _parsed(schema, named or {})
        self._named = {named_type["name"]: named_type for named_type in _named_types(self.schema)}
        self._has_maps = any(kind_of(part) == "map" for part in _parts(self.schema))
        self.is_bytes = kind_of(self.schema) == "bytes"
        self._may_change = any(self._changes(part) for part in _parts(self.schema))
        self.has_empty_items = any(
            kind_of(part) == "array" and self.is_empty(part["items"])
            for part in _parts(self.schema)
        )

    def checked(self, value: Any) -> Any:
        """Return a value that fastavro reads back equal, with union branches named if needed.

        Raises `CodecError` if there is none.
        """
        checked = self._checked(value)
        if self.has_empty_items:
            self.check_size(self._encoded(checked, self.schema))
        return checked

    def _checked(self, value: Any) -> Any:
        try:
            is_valid = self._is_valid(value)
            if is_valid and not self._may_change:
                return value
            # fastavro's validation does not know the branches "map" and "array", which it writes.
            if is_valid or self._refusal(value, self.schema, "$") is None:
                if self._reads_back(value, self.schema):
                    return value
                branched = self._branched(value, self.schema)
                if self._reads_back(branched, self.schema, value):
                    return branched
        except Exception:  # noqa: BLE001, S110 - fastavro raises what Python does; the walk below finds the place
            pass
        raise CodecError(self.refusal(value))

    def _is_valid(self, value: Any) -> bool:
        try:
            return bool(self._validation.validate(value, self.schema, raise_errors=True))
        except Exception:  # noqa: BLE001 - fastavro raises what Python does
            return False

    def checked_payload(self, value: Any) -> bytes:
        """Return a value of schema "bytes" as raw bytes: registry records have no length prefix."""
        data = self.encode(self.checked(value))
        return bytes(self._read(io.BytesIO(data), "bytes", None))

    def of_payload(self, value: Any) -> Any:
        """Decode raw bytes of a schema "bytes", such as a decimal; keep other values unchanged."""
        if not _is_a(value, bytes):
            return value
        out = io.BytesIO()
        self._write(out, "bytes", value)
        return self.decode(out.getvalue())

    def in_order(self, value: Any) -> Any:
        """Return a value with maps sorted by key, so equal keys have equal bytes."""
        return sorted_maps(value) if self._has_maps else value

    def encode(self, value: Any) -> bytes:
        return self._encoded(value, self.schema)

    def decode(self, data: bytes) -> Any:
        self.check_size(data)
        source = io.BytesIO(data)
        try:
            value = self._read(source, self.schema, None)
        except Exception as error:  # noqa: BLE001 - the libraries raise what Python does
            raise CodecError(f"raised {type(error).__name__}") from None
        left = len(data) - source.tell()
        if left:
            raise CodecError(f"{left} bytes are left over behind the value")
        return value

    def check_size(self, data: bytes) -> None:
        """Raise `CodecError` if arrays have too many items without bytes.

        fastavro would make a list of any length from them, or count for years to skip it.
        """
        if not self.has_empty_items:
            return
        try:
            self._skip(self.schema, _Cursor(data))
        except RecursionError:
            raise CodecError("their values are nested too deep") from None

    def _skip(self, schema: Any, cursor: "_Cursor") -> None:
        schema = self.resolved(schema)
        match kind_of(schema):
            case "union":
                self._skip(schema[cursor.index(len(schema))], cursor)
            case "record" | "error":
                for field in schema["fields"]:
                    self._skip(field["type"], cursor)
            case "array":
                self._skip_items(schema["items"], cursor)
            case "map":
                for count in cursor.blocks():
                    for _ in range(count):
                        cursor.skip(cursor.long())
                        self._skip(schema["values"], cursor)
            case "fixed":
                cursor.skip(schema["size"])
            case kind:
                cursor.skip_plain(kind)

    def _skip_items(self, schema: Any, cursor: "_Cursor") -> None:
        is_empty = self.is_empty(schema)
        for count in cursor.blocks():
            if is_empty:
                cursor.count_empty(count)
                continue
            for _ in range(count):
                self._skip(schema, cursor)

    def is_empty(self, schema: Any, outer: tuple[str, ...] = ()) -> bool:
        """Return True if values of a schema have no bytes; `outer` are records around it."""
        schema = self.resolved(schema)
        match kind_of(schema):
            case "null":
                return True
            case "fixed":
                return bool(schema["size"] == 0)
            case "record" | "error":
                name = schema["name"]
                return name not in outer and all(
                    self.is_empty(field["type"], (*outer, name)) for field in schema["fields"]
                )
            case _:
                return False

    def refusal(self, value: Any) -> str:
        is_record = _is_a(self.schema, dict) and _is_a(value, Mapping)
        root = self.schema.get("name", "$") if is_record else "$"
        return self._refusal(value, self.schema, str(root).rpartition(".")[2]) or (
            f"at {root}: it would not be read back equal"
        )

    def accepts(self, value: Any, branch: Any) -> bool:
        """Return True if a union's branch keeps this value unchanged."""
        return (
            self._fits(value, self.resolved(branch)) and self._refusal(value, branch, "$") is None
        )

    def refused(self, value: Any, schema: Any, path: str) -> str:
        """Return the place and cause for which a part of the schema refuses a value."""
        return self._refusal(value, schema, path) or f"at {path}: it would not be read back equal"

    @property
    def root(self) -> str:
        """Return the first step of paths in errors: a record's name, or "$"."""
        name = self.schema.get("name", "$") if _is_a(self.schema, dict) else "$"
        return str(name).rpartition(".")[2]

    def _changes(self, schema: Any) -> bool:
        """Return True if the schema may change a value that passes fastavro's validation."""
        if _is_a(schema, list):
            # Two branches may accept one value; fastavro writes the first, which may change it.
            kinds = [kind_of(self.resolved(branch)) for branch in schema]
            return len([kind for kind in kinds if kind != "null"]) > 1
        if _is_a(schema, dict):
            return "logicalType" in schema or schema["type"] == "array"
        return schema not in _EXACT and schema not in self._named

    def _encoded(self, value: Any, schema: Any) -> bytes:
        out = io.BytesIO()
        self._write(out, schema, value, strict_allow_default=True)
        return out.getvalue()

    def _reads_back(self, value: Any, schema: Any, written: Any = _MISSING) -> bool:
        back = self._read(io.BytesIO(self._encoded(value, schema)), schema, None)
        written = value if written is _MISSING else written
        return bool(back == written) or self._difference(written, back, schema, "$") is None

    def resolved(self, schema: Any) -> Any:
        return self._named.get(schema, schema) if _is_a(schema, str) else schema

    def _difference(self, value: Any, back: Any, schema: Any, path: str) -> str | None:
        """Return the place where a value and its read-back copy differ.

        Filled-in defaults and 32-bit rounding are accepted.
        """
        schema = self.resolved(schema)
        text: str | None = None
        if _is_a(schema, list):
            text = self._union_difference(value, back, schema, path)
        elif _is_a(value, dict) and _is_a(back, dict):
            fields = {field["name"]: field["type"] for field in schema.get("fields", ())}
            for key, part in value.items():
                if key == "-type":
                    continue
                inner = fields.get(key, schema.get("values"))
                step = f".{key}" if key in fields else "[str key]"
                text = self._difference(part, back.get(key), inner, path + step)
                if text is not None:
                    break
        elif _is_a(value, list) and _is_a(back, list):
            parts = zip(value, back, strict=False)
            differences = (
                self._difference(part, other, schema["items"], f"{path}[{index}]")
                for index, (part, other) in enumerate(parts)
            )
            text = next((text for text in differences if text is not None), None)
        elif kind_of(schema) != "float" or not _is_rounded(value, back):
            text = difference(value, back, path)
        return text

    def _union_difference(self, value: Any, back: Any, schema: Any, path: str) -> str | None:
        name, branch_value = _branch_of(value)
        kinds = {kind_of(self.resolved(branch)) for branch in schema}
        text: str | None = difference(branch_value, back, path)
        for branch in schema:
            resolved = self.resolved(branch)
            if text is None:
                break
            # A union with a double must not round to float.
            if (name is not None and branch_name(branch) != name) or (
                kind_of(resolved) == "float" and "double" in kinds
            ):
                continue
            is_container = _is_a(branch_value, dict | list)
            if is_container == (kind_of(resolved) in {"record", "error", "map", "array"}):
                text = self._difference(branch_value, back, branch, path)
        return text

    def _branched(self, value: Any, schema: Any) -> Any:
        """Return a value with each union's branch named: the first that keeps it unchanged."""
        schema = self.resolved(schema)
        if _is_a(schema, list):
            if _is_a(value, tuple) or value is None:
                return value
            for branch in schema:
                if self.accepts(value, branch):
                    return branch_name(branch), self._branched(value, branch)
            return value
        if _is_a(value, dict):
            mapping = value
            fields = {field["name"]: field["type"] for field in schema.get("fields", ())}
            return {
                key: self._branched(part, inner)
                if (inner := fields.get(key, schema.get("values"))) is not None
                else part
                for key, part in mapping.items()
            }
        if _is_a(value, list) and kind_of(schema) == "array":
            return [self._branched(part, schema["items"]) for part in value]
        return value

    def _fits(self, value: Any, schema: Any) -> bool:
        """Return False for a dict with a key that is no field, or a float that would be rounded."""
        kind = kind_of(schema)
        if kind in {"record", "error"} and _is_a(value, dict):
            mapping = value
            return set(mapping) <= {"-type", *(field["name"] for field in schema["fields"])}
        if kind == "float" and _is_a(value, float):
            return bool(struct.unpack("<f", _float_bytes(value))[0] == value)
        return True

    def _refusal(self, value: Any, schema: Any, path: str) -> str | None:  # noqa: PLR0911 - one for each kind of schema
        """Return the place and cause if a value does not fit or would change, else None."""
        schema = self.resolved(schema)
        if _is_a(schema, list):
            return self._union_refusal(value, schema, path)
        match kind_of(schema):
            case "record" | "error":
                return self._record_refusal(value, schema, path)
            case "map":
                if not _is_a(value, Mapping):
                    return _expected(path, "map", value)
                entries = value.items()
                return next(
                    (
                        refusal
                        for key, part in entries
                        if (
                            refusal
                            := f"at {path}: a map's key is of type {type(key).__name__}, not str"
                            if not _is_a(key, str)
                            else self._refusal(part, schema["values"], f"{path}[str key]")
                        )
                    ),
                    None,
                )
            case "array":
                if not _is_a(value, list):
                    return _expected(path, "array (a list)", value)
                items = value
                refusals = (
                    self._refusal(part, schema["items"], f"{path}[{index}]")
                    for index, part in enumerate(items)
                )
                return next((refusal for refusal in refusals if refusal), None)
            case _:
                return self._leaf_refusal(value, schema, path)

    def _record_refusal(self, value: Any, schema: Any, path: str) -> str | None:
        if not _is_a(value, Mapping):
            return _expected(path, schema["name"], value)
        mapping = value
        for field in schema["fields"]:
            name = field["name"]
            if name not in mapping and "default" in field:
                continue
            refusal = self._refusal(mapping.get(name), field["type"], f"{path}.{name}")
            if refusal is not None:
                return refusal
        more = [
            step_to(key).removeprefix(".")
            for key in mapping
            if key not in {"-type", *(f["name"] for f in schema["fields"])}
        ]
        if more:
            return f"at {path}: record contains more fields than the schema specifies: {', '.join(more)}"
        return None

    def _union_refusal(self, value: Any, schema: list[Any], path: str) -> str | None:
        name, branch_value = _branch_of(value)
        if name is not None:
            schema = [branch for branch in schema if branch_name(branch) == name] or schema
        reasons: list[tuple[bool, str]] = []
        for branch in schema:
            resolved = self.resolved(branch)
            refusal = self._refusal(branch_value, branch, path)
            if refusal is None:
                return None
            if _is_of_shape(branch_value, kind_of(resolved)):
                reasons.append((refusal.startswith(f"at {path}:"), refusal))
        # A branch of the value's shape, such as a record, gives the better message. `min` prefers
        # an error inside the value to one about the whole value.
        if reasons:
            return min(reasons)[1]
        return _expected(
            path, " or ".join(_shown(self.resolved(branch)) for branch in schema), value
        )

    def _leaf_refusal(self, value: Any, schema: Any, path: str) -> str | None:  # noqa: PLR0911 - one for each reason
        try:
            is_valid = bool(self._validation.validate(value, schema, raise_errors=False))
        except Exception:  # noqa: BLE001 - what prepares dates and decimals raises what Python does
            if _is_a(value, Decimal):
                return f"at {path}: expected {_shown(schema)}, got Decimal that does not fit"
            is_valid = False
        if not is_valid:
            return _expected(path, _shown(schema), value, kind=kind_of(schema))
        if (
            kind_of(schema) == "float"
            and _is_a(value, float | int)
            and not _is_rounded(value, value)
        ):
            try:
                struct.pack("<f", value)
            except (OverflowError, struct.error):
                return f"at {path}: expected float, got {type(value).__name__} out of the range of 32 bits"
        try:
            back = self._read(io.BytesIO(self._encoded(value, schema)), schema, None)
        except Exception as error:  # noqa: BLE001 - fastavro raises what Python does, and its text may quote the value
            if _is_a(error, UnicodeEncodeError):
                return f"at {path}: a lone surrogate, which UTF-8 can't hold"
            return f"at {path}: expected {_shown(schema)}, got {type(value).__name__} that does not fit"
        if kind_of(schema) == "float" and _is_rounded(value, back):
            return None
        text = difference(value, back, path)
        return None if text is None else f"{text}; the field is {_shown(schema)}"


def sorted_maps(value: Any) -> Any:
    """Return a value with the entries of all dicts sorted by key.

    >>> sorted_maps({"b": [{"d": 1, "c": 2}], "a": ("branch", {"f": 3, "e": 4})})
    {'a': ('branch', {'e': 4, 'f': 3}), 'b': [{'c': 2, 'd': 1}]}
    """
    if _is_a(value, dict):
        return {key: sorted_maps(value[key]) for key in sorted(value, key=str)}
    if _is_a(value, list | tuple):
        return type(value)(map(sorted_maps, value))
    return value


def _parsed(schema: str, named: Mapping[str, str]) -> Any:
    fastavro = import_module("fastavro")
    library = import_module("fastavro.schema")
    repository: Any = import_module("fastavro.repository")
    try:
        if not named:
            return fastavro.parse_schema(json.loads(schema))
        schemas = {_ROOT: json.loads(schema)}
        for name, text in named.items():
            schemas[name] = json.loads(text)
            schemas[_full_name(schemas[name], name)] = schemas[name]

        def load(_self: Any, name: str) -> Any:
            if name not in schemas:
                raise repository.SchemaRepositoryError(name)
            return copy.deepcopy(schemas[name])

        named_types = type("Named", (repository.AbstractSchemaRepository,), {"load": load})
        return library.load_schema(_ROOT, repo=named_types())
    except library.UnknownType as error:
        raise CodecError(
            f"type {error.name} is neither in it nor in its references; a schema of the registry is used with "
            f"references=[{{'name': '{error.name}', 'subject': …, 'version': …}}]"
        ) from None


def _full_name(schema: Any, name: str) -> str:
    own_name = schema.get("name") if _is_a(schema, dict) else None
    if not isinstance(own_name, str):
        return name
    space = schema.get("namespace")
    return own_name if "." in own_name or not space else f"{space}.{own_name}"


def _is_a(value: Any, kinds: Any) -> bool:
    """Call `isinstance` without type narrowing: users may pass any value."""
    return isinstance(value, kinds)


#: Bytes of values by type, where all have as many.
_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class _Cursor:
    """Position in the bytes of a value, and the number of its items without bytes so far."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._empty = 0

    def skip(self, size: int) -> None:
        if not 0 <= size <= len(self._data) - self._at:
            raise CodecError("they end in the middle of a value")
        self._at += size

    def long(self) -> int:
        number = 0
        for index in range(_VARINT_BYTES_MAX):
            self.skip(1)
            byte = self._data[self._at - 1]
            number |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:  # noqa: PLR2004 - the bit of a further byte
                break
        else:
            raise CodecError("they have a number of more than 64 bits")
        number &= (1 << 64) - 1
        return (number >> 1) ^ -(number & 1)

    def skip_plain(self, kind: str) -> None:
        match kind:
            case "int" | "long" | "enum":
                self.long()
            case "bytes" | "string":
                self.skip(self.long())
            case _:
                self.skip(_SIZES[kind])

    def index(self, end: int) -> int:
        index = self.long()
        if not 0 <= index < end:
            raise CodecError("they have a branch that the union lacks")
        return index

    def blocks(self) -> Iterator[int]:
        """Yield the number of items of each block of an array or map."""
        while count := self.long():
            if count < 0:
                self.long()  # the block's bytes
            yield abs(count)

    def count_empty(self, count: int) -> None:
        self._empty += count
        if self._empty > EMPTY_ITEMS_MAX:
            raise CodecError(
                f"arrays have more than {EMPTY_ITEMS_MAX} items without bytes, such as nulls, the "
                "maximum in one value; write a number instead"
            )


def _is_of_shape(value: Any, kind: str) -> bool:
    if _is_a(value, Mapping):
        return kind in {"record", "error", "map"}
    if _is_a(value, list | tuple):
        return kind == "array"
    return False


def _expected(path: str, type_name: str, value: Any, kind: str = "") -> str:
    got = type(value).__name__
    if got == "int" and kind in {"int", "long"} and type_name == kind:
        got = "int out of range"
    return f"at {path}: expected {type_name}, got {got}"


def _branch_of(value: Any) -> tuple[str | None, Any]:
    if _is_a(value, tuple):
        parts = value
        if len(parts) == 2 and _is_a(parts[0], str):  # noqa: PLR2004 - name and value
            return parts[0], parts[1]
    return None, value


def _is_rounded(value: Any, back: Any) -> bool:
    if not _is_a(value, float) or not _is_a(back, float):
        return False
    if math.isnan(value):
        return math.isnan(back)
    data = _float_bytes(value)
    return data is not None and bool(struct.unpack("<f", data)[0] == back)


def _float_bytes(value: Any) -> Any:
    try:
        return struct.pack("<f", value)
    except (OverflowError, struct.error):
        return None


def kind_of(schema: Any) -> str:
    if _is_a(schema, list):
        return "union"
    return str(schema["type"]) if _is_a(schema, dict) else str(schema)


def branch_name(schema: Any) -> Any:
    if _is_a(schema, dict):
        return schema["name"] if schema["type"] in _NAMED else schema["type"]
    return schema


def _shown(schema: Any) -> str:
    if not _is_a(schema, dict):
        return str(schema)
    part = schema
    logical = part.get("logicalType")
    if logical == "decimal":
        return f"decimal({part.get('precision')}, {part.get('scale', 0)})"
    return str(logical or part.get("name") or part["type"])


def _parts(schema: Any) -> Iterator[Any]:
    yield schema
    if _is_a(schema, list):
        for branch in schema:
            yield from _parts(branch)
    elif _is_a(schema, dict):
        part = schema
        for field in part.get("fields", ()):
            yield from _parts(field["type"])
        for name in ("items", "values"):
            if name in part:
                yield from _parts(part[name])


def _named_types(schema: Any) -> Iterator[dict[str, Any]]:
    for part in _parts(schema):
        if _is_a(part, dict) and part["type"] in _NAMED:
            yield part
