"""Serdes by name, between the JSON of a line and the bytes of a record."""

import inspect
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.cli.commands.records.plain_values import bytes_of, float_of, parsed_json
from tidewheel.streams.config.names import import_object
from tidewheel.streams.config.suggestions import did_you_mean
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.streams.serdes.catalogue import SERDE_NAMES, Serdes, as_serde, serde_named
from tidewheel.streams.serdes.schema_serdes import plain_value
from tidewheel.streams.serdes.serde import Serde
from tidewheel.streams.serdes.windowed import is_windowed
from tidewheel.streams.user_functions import accepts
from tidewheel.tasks.durations import parse_ms

#: Serdes with arguments of their own, after a colon.
_WITH_ARGUMENTS: Final = ("avro", "json_schema", "protobuf", "windowed", "session_windowed")
#: Text lines of these serdes are not JSON.
_TEXTUAL: Final = frozenset({"string", "bytes", "uuid"})
_EXAMPLES: Final = (
    "give one of "
    + ", ".join((*SERDE_NAMES, *_WITH_ARGUMENTS))
    + ", or MODULE:NAME of a serde of your own"
)


def _unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSerde:
    """A serde with the conversion of its JSON values.

    Attributes:
        from_plain: Converts a JSON value to one that the serde accepts; raises ValueError or
            SerializationError.
        to_plain: Converts a decoded value to the JSON that `from_plain` reads.
        is_textual: A plain line is a value of this serde, without quotes.
    """

    serde: Serde[Any]
    from_plain: Callable[[Any], Any]
    is_textual: bool = False
    to_plain: Callable[[Any], Any] = _unchanged

    def encode(self, topic: str, value: Any) -> bytes | None:
        """Return the bytes of a JSON value; None stays None."""
        return None if value is None else self.serde.serialize(topic, self.from_plain(value))

    def decode(self, topic: str, data: bytes | None) -> Any:
        """Return the value of bytes in the form that `encode` accepts; None stays None."""
        return None if data is None else self.to_plain(self.serde.deserialize(topic, data))

    def value_of_text(self, text: str) -> Any:
        """Return the JSON value of a plain line; raise ValueError if it is none."""
        return text if self.is_textual else parsed_json(text)


def line_serde(option: str, text: str, topic: str, registry: Mapping[str, Any] | None) -> LineSerde:
    r"""Return the serde of `--key` or `--value`; raise `ConfigError` if there is none.

    >>> line_serde("--value", "int64", "counts", None).encode("counts", 1)
    b'\x00\x00\x00\x00\x00\x00\x00\x01'
    """
    try:
        found = _found(option, text, topic, registry)
    except ConfigError:
        raise
    except StreamsError as error:
        raise ConfigError(f"{option} {text}: {error}") from error
    return LineSerde(
        serde=found.serde.for_keys() if option == "--key" else found.serde,
        from_plain=found.from_plain,
        is_textual=found.is_textual,
        to_plain=found.to_plain,
    )


def as_line_serde(serde: SerdePort) -> LineSerde:
    """Return the conversion of a program's serde.

    >>> as_line_serde(Serdes.windowed(str, "1m")).from_plain({"key": "a", "start": 0, "end": 60_000})
    Windowed(key='a', start=0, end=60000)
    """
    if is_windowed(serde):
        return _of_windowed(serde, as_line_serde(serde.inner))
    checked: Serde[Any] = as_serde(serde, "serde", error=ConfigError)
    if serde_named(checked.name) == checked:
        return _of_name(checked.name, checked)
    return _by_schema(checked)


def _of_name(name: str, serde: Serde[Any]) -> LineSerde:
    return LineSerde(
        serde=serde, from_plain=_FROM_PLAIN.get(name, _unchanged), is_textual=name in _TEXTUAL
    )


def registry_of(settings: Sequence[str]) -> dict[str, Any] | None:
    """Parse `--registry`: a URL, and properties of its client as name=value.

    >>> registry_of(["http://localhost:8081", "basic.auth.user.info=env:LOGIN"])
    {'url': 'http://localhost:8081', 'basic.auth.user.info': 'env:LOGIN'}
    """
    properties: dict[str, Any] = {}
    for text in settings:
        name, separator, value = text.partition("=")
        if "://" in name:
            properties["url"] = text
        elif separator and name:
            properties[name] = value
        else:
            raise ConfigError(
                f"--registry {name!r}: give its URL, or a property of its client as name=value"
            )
    if properties and "url" not in properties:
        raise ConfigError("--registry has no URL; give --registry http://HOST:PORT as well")
    return properties or None


def _found(option: str, text: str, topic: str, registry: Mapping[str, Any] | None) -> LineSerde:
    name, _, argument = text.partition(":")
    plain = serde_named(name)
    if plain is not None and not argument:
        return _of_name(name, plain)
    match name:
        case "avro" | "json_schema":
            return _of_schema(option, name, argument, topic, registry)
        case "protobuf":
            return _of_protobuf(option, argument, registry)
        case "windowed" | "session_windowed":
            return _of_windows(option, name, argument, topic, registry)
        case _ if argument and plain is None:
            return _of_object(option, text)
        case _:
            near = did_you_mean(name, (*SERDE_NAMES, *_WITH_ARGUMENTS))
            raise ConfigError(f"{option} {text}: there is no such serde; {near or _EXAMPLES}")


def _of_schema(
    option: str, name: str, argument: str, topic: str, registry: Mapping[str, Any] | None
) -> LineSerde:
    """Return the serde of a schema file, of a subject, or of the topic's own subject."""
    make = Serdes.avro if name == "avro" else Serdes.json_schema
    if argument and Path(argument).is_file():
        schema = Path(argument).read_text(encoding="utf-8")
        return _by_schema(make(schema, registry))
    if registry is None:
        raise ConfigError(
            f"{option} {name}{argument and f':{argument}'}: there is no such schema file; write {name}:FILE, or give "
            f"--registry URL, which has the schema of subject {argument or _subject(option, topic)}"
        )
    subject = argument or _subject(option, topic)
    return _by_schema(make(subject=subject, registry=registry))


def _by_schema(serde: Serde[Any]) -> LineSerde:
    return LineSerde(serde=serde, from_plain=serde.from_plain, to_plain=partial(plain_value, serde))


def _subject(option: str, topic: str) -> str:
    return f"{topic}-{option.removeprefix('--')}"


def _of_protobuf(option: str, argument: str, registry: Mapping[str, Any] | None) -> LineSerde:
    if ":" not in argument:
        raise ConfigError(
            f"{option} protobuf: name the generated class, as in protobuf:orders_pb2:Order"
        )
    message_type = import_object(argument)
    name = argument.rpartition(":")[2]

    def parse(value: Any) -> Any:
        json_format: Any = import_module("google.protobuf.json_format")  # an extra, without stubs

        try:
            return json_format.ParseDict(value, message_type())
        except json_format.ParseError as error:
            raise ValueError(f"is no {name}: {error}") from error
        except Exception:  # noqa: BLE001 - for JSON of another kind it raises what Python does
            raise ValueError(f"is no {name}, whose JSON has another form") from None

    return LineSerde(serde=Serdes.protobuf(message_type, registry), from_plain=parse)


def _of_windows(
    option: str, name: str, argument: str, topic: str, registry: Mapping[str, Any] | None
) -> LineSerde:
    """Return the serde of windowed keys: `windowed:string:1m`, `session_windowed:string`."""
    inner_text, size = argument, ""
    if name == "windowed":
        inner_text, _, size = argument.rpartition(":")
    if not inner_text:
        example = "windowed:string:1m" if name == "windowed" else "session_windowed:string"
        raise ConfigError(
            f"{option} {name}: name the serde of the key inside"
            f"{' and the size of the window' if name == 'windowed' else ''}, as in {example}"
        )
    inner = _found(option, inner_text, topic, registry)
    serde: Serde[Any]
    if name == "windowed":
        try:
            serde = Serdes.windowed(inner.serde, parse_ms(size))
        except ValueError as error:
            raise ConfigError(f"{option} {name}:{argument}: size {size!r} {error}") from None
    else:
        serde = Serdes.session_windowed(inner.serde)

    return _of_windowed(serde, inner)


def _of_windowed(serde: Serde[Any], inner: LineSerde) -> LineSerde:
    def parse(value: Any) -> Windowed[Any]:
        kind: object = value
        if not isinstance(kind, dict) or set(value) != {"key", "start", "end"}:
            raise ValueError('is no {"key": …, "start": …, "end": …}')
        return Windowed(inner.from_plain(value["key"]), value["start"], value["end"])

    def written(windowed: Windowed[Any]) -> Any:
        return {
            "key": inner.to_plain(windowed.key),
            "start": windowed.start,
            "end": windowed.end,
        }

    return LineSerde(serde=serde, from_plain=parse, to_plain=written)


def _of_object(option: str, text: str) -> LineSerde:
    imported = import_object(text)
    kind: object = imported
    # A function without parameters that returns the serde is one too.
    if inspect.isfunction(kind) and accepts(kind, 0):
        imported = imported()
    serde: Serde[Any] = as_serde(imported, f"{option} {text}", error=ConfigError)
    return _by_schema(serde)


def _uuid_of(value: Any) -> uuid.UUID:
    return uuid.UUID(value if isinstance(value, str) else "")


_FROM_PLAIN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "bytes": bytes_of,
    "float64": float_of,
    "uuid": _uuid_of,
}
