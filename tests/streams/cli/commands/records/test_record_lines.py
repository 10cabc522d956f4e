"""Lines of records: fields, and errors that name the line or the record."""

import json
from pathlib import Path
from typing import Any

import pytest

from tidewheel import Serdes, Windowed
from tidewheel.streams.cli.commands.records.line_serdes import line_serde
from tidewheel.streams.cli.commands.records.record_lines import LineError, RecordLines
from tidewheel.streams.errors import StreamsError
from tidewheel.tasks.processing.engine.record_batch import SourceRecords


def lines_of(key: str = "string", value: str = "int64") -> RecordLines:
    return RecordLines(
        "t", line_serde("--key", key, "t", None), line_serde("--value", value, "t", None)
    )


def records(value: bytes | None, **fields: Any) -> SourceRecords:
    return SourceRecords(
        "t", 2, [5], [fields.get("key", b"a")], [value], [1_000], fields.get("headers")
    )


def test_a_consumed_line_can_be_produced_again() -> None:
    lines = lines_of()
    headers = [(("trace", b"x"), ("trace", b"\xff"), ("empty", None))]
    (line,) = lines.lines(records(bytes(7) + b"\x02", headers=headers))
    assert json.loads(line) == {
        "partition": 2,
        "offset": 5,
        "timestamp": 1_000,
        "key": "a",
        "value": 2,
        "headers": [["trace", "x"], ["trace", {"base64": "/w=="}], ["empty", None]],
    }
    again = lines.record(1, line)
    assert (again.key, again.value) == (b"a", bytes(7) + b"\x02")
    assert (again.timestamp, again.headers) == (1_000, headers[0])


def test_a_line_needs_a_value_alone() -> None:
    record = lines_of().record(1, '{"value": null, "headers": {"a": "b"}}')
    assert (record.key, record.value, record.timestamp) == (None, None, None)
    assert record.headers == (("a", b"b"),)


def test_a_plain_line_is_a_value() -> None:
    assert lines_of(value="string").text_record(1, '{"a" 1').value == b'{"a" 1'
    assert lines_of(value="int64").text_record(1, "2").value == bytes(7) + b"\x02"
    assert lines_of(value="json").text_record(1, '{"a": 1}').value == b'{"a":1}'
    with pytest.raises(LineError, match="line 4"):
        lines_of(value="int64").text_record(4, "two")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("to be", "no JSON"),
        ("7", 'no "value"'),
        ('{"key": "a"}', 'no "value"'),
        ('{"value": 1, "vaule": 2}', "'vaule'"),
        ('{"value": "two"}', "value does not fit --value"),
        ('{"key": 1, "value": 1}', "key does not fit --key"),
        ('{"value": 1, "timestamp": -5}', "timestamp -5 must be from 0"),
        ('{"value": 1, "timestamp": "now"}', "timestamp"),
        ('{"value": 1, "headers": "a"}', "headers"),
        ('{"value": 1, "headers": {"a": 1}}', "no bytes"),
        ('{"value": 1, "headers": [["a"]]}', "headers"),
        ('{"value": 1, "headers": {"a": {"base64": "/"}}}', "no base64"),
    ],
)
def test_a_bad_line_is_named_with_its_reason(line: str, message: str) -> None:
    with pytest.raises(LineError) as caught:
        lines_of().record(3, line)
    assert str(caught.value).startswith("line 3: ")
    assert message in str(caught.value)


def test_a_record_that_the_serde_cannot_read_is_named_with_its_place() -> None:
    with pytest.raises(StreamsError) as caught:
        list(lines_of().lines(records(b"two")))
    assert "t-2 offset 5: its value does not fit --value" in str(caught.value)
    assert "two" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "place"),
    [({"total": 1.5}, "Order.total"), ({"total": "1", "day": "soon"}, "Order.day")],
)
def test_an_avro_value_that_does_not_fit_names_its_line_and_field(
    tmp_path: Path, value: Any, place: str
) -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9}
    fields = [
        {"name": "total", "type": decimal},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    ]
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}), "utf-8")
    lines = lines_of(value=f"avro:{file}")
    with pytest.raises(LineError) as caught:
        lines.record(7, json.dumps({"value": value}))
    assert "line 7" in str(caught.value)
    assert f"at {place}" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "option"),
    [
        ('{"a": 1}', "--value json"),
        ("[1]", "--value json"),
        ("true", "--value json"),
        ("7", "--value int64"),
        ("1.5", "--value float64"),
    ],
)
def test_a_value_that_is_no_text_names_the_serde_that_takes_it(value: str, option: str) -> None:
    with pytest.raises(LineError, match=f"give {option}"):
        lines_of(value="string").record(1, f'{{"value": {value}}}')


def test_a_windowed_key_is_recognised() -> None:
    start = 1_795_262_400_000
    for serde, option in (
        (Serdes.windowed(str, "1m"), "--key windowed:string:SIZE"),
        (Serdes.session_windowed(str), "--key session_windowed:string;"),
    ):
        key = serde.serialize("t", Windowed("ann", start, start + 60_000))
        with pytest.raises(StreamsError, match=option):
            list(lines_of().lines(records(bytes(8), key=key)))
