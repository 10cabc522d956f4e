"""Rows of frames become records, or an error that names topic and key."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tidewheel import ConfigError, Serdes, StreamsError
from tidewheel.streams.bulk.batch.rows import RecordEncoder, columns_of, records_of
from tidewheel.streams.serdes.partitioning import partition_of

_TYPES = {
    "key": "string", "value": "string", "timestamp": "bigint", "headers": "array", "partition": "int",
    "offset": "bigint", "raw": "binary",
}  # fmt: skip


def _encoder(*names: str, binary: bool = False) -> RecordEncoder:
    types = [(name, "binary" if binary and name == "value" else _TYPES[name]) for name in names]
    return RecordEncoder(
        topic="clicks",
        partitions=3,
        columns=columns_of("clicks", types),
        key_serde=Serdes.string(),
        value_serde=Serdes.string(),
    )


_ROW: dict[str, Any] = {"key": "k", "value": "v", "timestamp": 5}


def test_a_row_is_encoded_and_placed_by_its_key() -> None:
    ((place, order), record), *_ = _encoder(*_ROW).placed([_ROW])
    assert place == partition_of(b"k", 3)
    assert order[0] == 5
    assert record == (5, b"k", b"v", ())


def test_binary_columns_are_not_encoded_again() -> None:
    (placed,) = _encoder(*_ROW, binary=True).placed([_ROW | {"value": bytearray(b"\xff")}])
    assert placed[1] == (5, b"k", b"\xff", ())


def test_times_headers_and_nulls() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    headers = [{"key": "a", "value": bytearray(b"1")}, {"key": "b", "value": None}]
    row = {"key": None, "value": None, "timestamp": at, "headers": headers}
    (placed,) = _encoder(*row).placed([row])
    assert placed[1] == (1_767_225_600_000, None, None, (("a", b"1"), ("b", None)))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"timestamp": None}, "timestamp of the row with key 'k' is None"),
        ({"timestamp": datetime(2026, 1, 1)}, "timestamp"),  # noqa: DTZ001 - on purpose
        ({"timestamp": 1.5}, "timestamp"),
        ({"value": 5}, "the value of the row with key 'k'"),
        ({"key": 5}, "the key of the row with key 5"),
        ({"partition": 3}, "partitions=4"),
        ({"partition": None}, "partition"),
        ({"offset": -1}, "offset"),
        ({"headers": ["a"]}, "headers"),
    ],
)
def test_a_bad_row_is_an_error_that_names_topic_and_key(
    change: dict[str, Any], problem: str
) -> None:
    row = _ROW | {"partition": 1, "offset": 7, "headers": None}
    encoder = _encoder(*row)
    good, bad, *later = [*encoder.placed([row, row | change, row])]
    assert later == []
    with pytest.raises(StreamsError, match=problem) as raised:
        list(records_of("clicks", sorted([good, bad]), has_offsets=True))
    assert "topic clicks" in str(raised.value)


def test_doubled_offsets_are_an_error() -> None:
    row = _ROW | {"offset": 7}
    placed = list(_encoder(*row).placed([row, row]))
    with pytest.raises(StreamsError, match="offset 7"):
        list(records_of("clicks", placed, has_offsets=True))


def test_equal_times_have_one_order() -> None:
    rows = [
        {"key": key, "value": value, "timestamp": 5, "headers": headers}
        for key in (None, "a")
        for value in (None, "b")
        for headers in (None, [{"key": "h", "value": None}], [{"key": "h", "value": b""}])
    ]
    encoder = _encoder("key", "value", "timestamp", "headers")
    assert sorted(encoder.placed(rows)) == sorted(encoder.placed(reversed(rows)))


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (("key", "value"), "no column timestamp"),
        (("value", "timestamp"), "no column key"),
        (("key", "timestamp", "offset"), "no column value"),
        (("key", "key", "value", "timestamp"), "several columns key"),
    ],
)
def test_missing_columns_are_named(names: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        columns_of("clicks", [(name, _TYPES[name]) for name in names])
