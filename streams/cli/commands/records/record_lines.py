"""Lines of `tidewheel produce` and `tidewheel consume`: one record each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.commands.records.line_serdes import (
    LineSerde,
    as_line_serde,
    line_serde,
    registry_of,
)
from tidewheel.streams.cli.commands.records.plain_values import (
    bytes_of,
    json_line,
    parsed_json,
    plain_bytes,
)
from tidewheel.streams.cli.commands.records.topology_serdes import topology_serdes
from tidewheel.streams.cli.output import text_console
from tidewheel.streams.errors import SerializationError, StreamsError
from tidewheel.streams.serdes.catalogue import Serdes
from tidewheel.streams.serdes.serde import for_keys, windows_at_end
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

_USED: Final = frozenset({"key", "value", "timestamp", "headers"})
#: Fields that `consume` prints and `produce` ignores: they belong to the record's old place.
_IGNORED: Final = frozenset({"topic", "partition", "offset"})
_EXAMPLE: Final = 'write one record a line, such as {"key": "a", "value": 1}'
_TIMESTAMP_MAX: Final = (1 << 63) - 1


class LineError(StreamsError):
    """A line that is no record of the topic.

    >>> raise LineError("line 3: it has no value")
    Traceback (most recent call last):
    ...
    tidewheel.streams.cli.commands.records.record_lines.LineError: line 3: it has no value
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record to write; without a timestamp it gets the current time."""

    key: bytes | None
    value: bytes | None
    timestamp: int | None
    headers: Headers


class RecordLines:
    """Conversion between lines and the records of one topic."""

    def __init__(self, topic: str, key: LineSerde, value: LineSerde) -> None:
        self._topic = topic
        self._key = key
        self._value = value

    def record(self, number: int, line: str) -> NewRecord:
        """Return the record of a JSON line; raise `LineError` naming the line."""
        try:
            fields = _fields(line)
            return NewRecord(
                key=self._encoded("key", self._key, fields.get("key")),
                value=self._encoded("value", self._value, fields["value"]),
                timestamp=_timestamp(fields.get("timestamp")),
                headers=_headers(fields.get("headers")),
            )
        except ValueError as error:
            raise LineError(f"line {number}: {error}") from None

    def text_record(self, number: int, line: str) -> NewRecord:
        """Return the record of a line that is its value; raise `LineError` naming the line."""
        try:
            value = self._value.value_of_text(line)
            data = self._encoded("value", self._value, value)
        except ValueError as error:
            raise LineError(f"line {number}: it is no value of this serde ({error})") from None
        return NewRecord(key=None, value=data, timestamp=None, headers=())

    def lines(self, records: SourceRecords) -> Iterator[str]:
        """Yield a line per record; raise `StreamsError` for one that the serdes can't read."""
        for row, offset in enumerate(records.offsets):
            place = f"{records.topic}-{records.partition} offset {offset}"
            line = {
                "partition": records.partition,
                "offset": offset,
                "timestamp": records.timestamps[row],
                "key": self._decoded("key", self._key, records.raw_keys[row], place),
                "value": self._decoded("value", self._value, records.raw_values[row], place),
            }
            if records.headers is not None and records.headers[row]:
                line["headers"] = [
                    [name, None if data is None else plain_bytes(data)]
                    for name, data in records.headers[row]
                ]
            yield json_line(line)

    def _encoded(self, part: str, serde: LineSerde, value: Any) -> bytes | None:
        try:
            return serde.encode(self._topic, value)
        except StreamsError as error:
            raise ValueError(
                f"its {part} does not fit --{part}: {_fact(error)}{_fitting(part, serde, value)}"
            ) from None
        except ValueError as error:
            raise ValueError(f"its {part} {error}") from None

    def _decoded(self, part: str, serde: LineSerde, data: bytes | None, place: str) -> Any:
        try:
            return serde.decode(self._topic, data)
        except StreamsError as error:
            raise StreamsError(
                f"{place}: its {part} does not fit --{part}: {_fact(error)}; {_windowed(part, serde, data)}give the serde "
                f"that wrote it, or --{part} bytes to see it as it is"
            ) from error


def record_lines(
    topic: str,
    key: str | None,
    value: str | None,
    registry: Sequence[str],
    settings: SettingsOptions | None,
) -> RecordLines:
    """Return the conversion by the options `--key`, `--value` and `--registry` of a command.

    Without an option the topology of the settings decides, and standard error has its serde. The
    last resort is text.
    """
    properties = registry_of(registry)
    given = {
        option: line_serde(option, text, topic, properties)
        for option, text in (("--key", key), ("--value", value))
        if text is not None
    }
    found = topology_serdes(topic, settings or SettingsOptions()) if len(given) < 2 else None  # noqa: PLR2004 - key and value
    if found is not None:
        target, (key_serde, value_serde) = found
        serdes = {
            "--key": as_line_serde(for_keys(key_serde)),
            "--value": as_line_serde(value_serde),
        }
        missing = {option: serde for option, serde in serdes.items() if option not in given}
        text_console(stderr=True).print(
            f"serdes of {target}: {', '.join(f'{option} {each.serde.name}' for option, each in missing.items())}",
            style="dim", markup=False, highlight=False,
        )  # fmt: skip
        given = missing | given
    text = as_line_serde(Serdes.string())
    return RecordLines(topic, given.get("--key", text), given.get("--value", text))


def _fields(line: str) -> dict[str, Any]:
    try:
        fields = parsed_json(line)
    except ValueError as error:
        raise ValueError(f"it is no JSON ({error}); {_EXAMPLE}, or give --text") from None
    if not isinstance(fields, dict) or "value" not in fields:
        raise ValueError(f'it has no "value" (null deletes the key); {_EXAMPLE}')
    record = cast("dict[str, Any]", fields)
    unknown = sorted(record.keys() - _USED - _IGNORED)
    if unknown:
        raise ValueError(f"it has {', '.join(map(repr, unknown))}, which no record has; {_EXAMPLE}")
    return record


def _timestamp(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(  # noqa: TRY004 - reported with the line's number
            "its timestamp is no number of milliseconds since the epoch"
        )
    if not 0 <= value <= _TIMESTAMP_MAX:
        raise ValueError(
            f"its timestamp {value} must be from 0 (1970) to {_TIMESTAMP_MAX}, in milliseconds since the epoch"
        )
    return value


def _headers(value: Any) -> Headers:
    """Return the headers of `{"name": …}`, or of `[["name", …], …]`, which may repeat names."""
    kind: object = value
    pairs: Any = list(value.items()) if isinstance(kind, dict) else value
    given: object = pairs
    if given is None:
        return ()
    if not isinstance(given, list) or not all(map(_is_header, pairs)):
        raise ValueError('its headers are neither {"name": "content"} nor [["name", "content"]]')
    return tuple((name, None if data is None else bytes_of(data)) for name, data in pairs)


def _is_header(pair: Any) -> bool:
    kind: object = pair
    return isinstance(kind, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)  # noqa: PLR2004 - name and content


def _fitting(part: str, serde: LineSerde, value: Any) -> str:
    """Return the option for a JSON value that a serde of text can't have; "" for other serdes."""
    if not serde.is_textual:
        return ""
    kind: object = value
    match kind:
        case dict() | list() | bool():
            return f"; for this value give --{part} json"
        case int() | float():
            number = "int64" if isinstance(kind, int) else "float64"
            return f"; for a number give --{part} {number} or --{part} json"
        case _:
            return ""


def _windowed(part: str, serde: LineSerde, data: bytes | None) -> str:
    windows = windows_at_end(data or b"")
    if part != "key" or windows is None:
        return ""
    size = ":SIZE (such as 1m)" if windows == "windowed" else ""
    return f"perhaps its key is windowed: --key {windows}:{serde.serde.name}{size}; else "


def _fact(error: StreamsError) -> str:
    return error.fact if isinstance(error, SerializationError) else str(error)
