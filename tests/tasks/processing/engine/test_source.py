"""Sources: corrupt records are found one by one, timestamps stay with their records."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel import RecordFailedError, Serdes
from tidewheel.streams.serdes import Serde
from tidewheel.tasks.processing.api.record import ConsumedRecord, Headers
from tidewheel.tasks.processing.api.topology_spec import SourceSpec
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords
from tidewheel.tasks.processing.engine.source import SourceNode


def records_of(
    keys: list[bytes | None],
    values: list[bytes | None],
    timestamps: list[int] | None = None,
    headers: list[Headers] | None = None,
) -> SourceRecords:
    return SourceRecords(
        "in",
        1,
        range(40, 40 + len(keys)),
        keys,
        values,
        timestamps or list(range(len(keys))),
        headers,
    )


class Decoder:
    def __init__(self, extractor: Callable[..., Any] | None = None, **serdes: Serde[Any]) -> None:
        self.corrupt: list[tuple[int, str]] = []
        self.dropped: list[tuple[int, str]] = []
        spec = SourceSpec(
            name="the-source",
            topics=("in",),
            key_serde=serdes.get("key_serde", Serdes.string()),
            value_serde=serdes.get("value_serde", Serdes.int64()),
            timestamp_extractor=extractor,
        )
        self.node = SourceNode(
            spec,
            self.on_corrupt,
            lambda _node, count, reason, _first: self.dropped.append((count, reason)),
        )

    def on_corrupt(self, records: SourceRecords, row: int, error: Exception) -> None:
        self.corrupt.append((records.offsets[row], type(error).__name__))

    def decode(self, records: SourceRecords, partition_time_ms: int = -1) -> RecordBatch:
        return self.node.decode(records, partition_time_ms)


CELLS = st.sampled_from(["good", "null", "bad"])


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=12))
def test_valid_records_stay_and_invalid_ones_are_reported_once(
    cells: list[tuple[str, str]],
) -> None:
    keys = {"good": b"key", "null": None, "bad": b"\xff"}
    values = {"good": (7).to_bytes(8, "big"), "null": None, "bad": b"short"}
    count = len(cells)
    records = records_of(
        [keys[key] for key, _ in cells],
        [values[value] for _, value in cells],
        list(range(500, 500 + count)),
        [(("n", b"%d" % row),) for row in range(count)],
    )
    decoder = Decoder()
    batch = decoder.decode(records)
    good = [row for row, cell in enumerate(cells) if "bad" not in cell]
    assert list(batch.rows) == good
    assert batch.keys == [None if cells[row][0] == "null" else "key" for row in good]
    assert batch.values == [None if cells[row][1] == "null" else 7 for row in good]
    assert batch.timestamps == [500 + row for row in good]
    assert batch.headers == [(("n", b"%d" % row),) for row in good]
    assert batch.source is records
    assert batch.key_bytes == [keys[cells[row][0]] for row in good]
    assert sorted(offset for offset, _ in decoder.corrupt) == [
        40 + row for row in range(count) if row not in good
    ]


def test_serialised_keys_are_kept_only_for_canonical_serdes() -> None:
    records = records_of([b'{"a": 1}'], [None])
    batch = Decoder(key_serde=Serdes.json()).decode(records)
    assert (batch.keys, batch.key_bytes, batch.key_serde) == ([{"a": 1}], None, None)
    batch = Decoder().decode(records)
    assert (batch.key_bytes, batch.key_serde) == ([b'{"a": 1}'], Serdes.string())


def test_serdes_are_never_called_with_nulls() -> None:
    def refuse(topic: str, data: bytes) -> Any:
        raise AssertionError

    never = Serde[Any](lambda topic, value: b"", refuse)
    batch = Decoder(key_serde=never, value_serde=never).decode(
        records_of([None, None], [None, None])
    )
    assert (batch.keys, batch.values) == ([None, None], [None, None])


def test_an_error_of_the_handler_ends_decoding() -> None:
    decoder = Decoder()

    def fail(records: SourceRecords, row: int, error: Exception) -> None:
        raise RecordFailedError("as the handler says")

    decoder.node._on_corrupt = fail
    with pytest.raises(RecordFailedError, match="as the handler says"):
        decoder.decode(records_of([b"k", b"\xff"], [None, None]))


# -- timestamps -------------------------------------------------------------------------------------------------------


def test_a_record_without_a_timestamp_stops_the_worker() -> None:
    with pytest.raises(
        RecordFailedError, match=r"in-1 offset 41 has no valid timestamp.*the-source"
    ) as caught:
        Decoder().decode(records_of([None, None], [None, None], [5, -1]))
    assert caught.value.offset == 41


def test_extractors_get_the_record_and_the_partition_time() -> None:
    seen: list[Any] = []

    def extract(record: ConsumedRecord, partition_time_ms: int) -> int:
        seen.append((record, partition_time_ms))
        return record.timestamp * 10

    values = [(1).to_bytes(8, "big"), (2).to_bytes(8, "big"), (3).to_bytes(8, "big")]
    records = records_of([b"a", b"b", b"c"], list(values), [7, 3, 9], [(), (("h", b"1"),), ()])
    batch = Decoder(extract).decode(records, 50)
    assert batch.timestamps == [70, 30, 90]
    assert [time for _, time in seen] == [50, 70, 70]
    assert seen[1][0] == ConsumedRecord("in", 1, 41, "b", 2, 3, (("h", b"1"),))


def test_a_negative_time_drops_the_record() -> None:
    times = iter([5, -1, 3])
    seen: list[int] = []

    def extract(record: ConsumedRecord, partition_time_ms: int) -> int:
        seen.append(partition_time_ms)
        return next(times)

    decoder = Decoder(extract)
    batch = decoder.decode(records_of([b"a", b"b", b"c"], [None] * 3))
    assert (batch.keys, batch.timestamps) == (["a", "c"], [5, 3])
    assert decoder.dropped == [(1, "negative timestamp")]
    assert seen == [-1, 5, 5]


def test_an_extractor_may_set_missing_timestamps() -> None:
    batch = Decoder(lambda record, time: 5).decode(records_of([b"a"], [None], [-1]))
    assert batch.timestamps == [5]


class Whole:
    def __index__(self) -> int:
        return 12


def test_extracted_times_are_plain_integers() -> None:
    (time,) = Decoder(lambda record, time: Whole()).decode(records_of([b"a"], [None])).timestamps
    assert type(time) is int
    assert time == 12


@pytest.mark.parametrize("result", [None, 1.5, "2024", ValueError("no time in it")])
def test_an_extractor_that_fails_stops_the_worker(result: Any) -> None:
    def extract(record: ConsumedRecord, partition_time_ms: int) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    with pytest.raises(
        RecordFailedError, match=r"extractor of the-source failed on in-1 at offset 40"
    ) as caught:
        Decoder(extract).decode(records_of([b"a", b"b"], [None, None]))
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("in", 1, 40)
    returned = not isinstance(result, Exception)
    assert (
        f"returned {type(result).__name__}; return int milliseconds" in str(caught.value)
    ) is returned
