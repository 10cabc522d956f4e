"""Any store restored from the records equals the rows."""

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel import ConfigError, Serdes, StreamsError
from tidewheel.state_stores.bulk_restore.content import stored_rows
from tidewheel.state_stores.layout.restore import StoreTime, fold
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.bulk.bootstrap.rows import (
    ChangelogRow,
    RowEncoder,
    Written,
    columns_of,
    existing_row,
    one_per_key,
    shown,
)
from tidewheel.streams.bulk.bootstrap.writer import newest_keys
from tidewheel.streams.serdes.partitioning import partition_of
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

NOW_MS = 1_700_000_000_000
PARTITIONS = 3


def spec(kind: StoreKind = StoreKind.TIMESTAMPED_KEY_VALUE, **given: Any) -> StoreSpec:
    return StoreSpec(
        name="counts",
        kind=kind,
        **cast("Any", {"key_serde": Serdes.string(), "value_serde": Serdes.int64()} | given),
    )


SPECS = {
    "key-value": spec(),
    "ttl": spec(ttl_ms=1_000_000_000),
    "versioned": spec(StoreKind.VERSIONED, history_retention_ms=10_000_000),
    "window": spec(StoreKind.TIMESTAMPED_WINDOW, retention_ms=10_000_000, window_size_ms=1_000),
    "session": spec(StoreKind.SESSION, retention_ms=10_000_000),
}


def encoder(store: StoreSpec, *names: str, order_by: str | None = None) -> RowEncoder:
    return RowEncoder(
        spec=store,
        topic="shop-counts-changelog",
        partitions=PARTITIONS,
        columns=columns_of(names, store, order_by),
        default_timestamp_ms=NOW_MS,
    )


def written(
    store: StoreSpec, rows: list[ChangelogRow], *, keep_last: bool = False
) -> dict[int, list[Written]]:
    return {
        number: list(
            one_per_key(
                sorted((row for row in rows if row.partition == number), key=lambda row: row.order),
                store,
                keep_last=keep_last,
                deleted_at_ms=NOW_MS,
            )
        )
        for number in range(PARTITIONS)
    }


def alive(rows: Iterable[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes]]:
    return [(key, value) for key, value in rows if value is not None]


@st.composite
def frames(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw rows with every column, and unique keys, windows and versions."""
    rows = draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "key": st.text(max_size=3),
                    "value": st.integers(min_value=0, max_value=99),
                    "timestamp": st.integers(min_value=5_000_000, max_value=6_000_000),
                    "start": st.integers(min_value=5_000, max_value=6_000).map(
                        lambda number: number * 1_000
                    ),
                }
            ),
            max_size=30,
        )
    )
    for row in cast("list[dict[str, Any]]", rows):
        row["window_start"] = row["session_start"] = row.pop("start")
        row["session_end"] = row["session_start"] + 500
    return rows


@pytest.mark.parametrize("name", SPECS)
@given(rows=frames())
def test_the_restored_store_equals_the_rows(name: str, rows: list[dict[str, Any]]) -> None:
    store = SPECS[name]
    identity = {
        "key-value": ("key",),
        "ttl": ("key",),
        "versioned": ("key", "timestamp"),
        "window": ("key", "window_start"),
        "session": ("key", "session_start", "session_end"),
    }[name]
    unique = {tuple(row[each] for each in identity): row for row in rows}
    encode = encoder(
        store, "key", "value", "timestamp", "window_start", "session_start", "session_end"
    )
    encoded = [encode.encode(row) for row in unique.values()]
    found: dict[tuple[Any, ...], tuple[int, int]] = {}
    for number, records in written(store, [row for row in encoded if row is not None]).items():
        if not records:
            continue
        keys, values, timestamps = zip(*records, strict=True)
        disk = sorted(fold(store, keys, values, timestamps))
        observed_ms = StoreTime.of(store, keys, timestamps).observed_ms
        for row in stored_rows(store, alive(disk), observed_ms):
            assert partition_of(row.key, PARTITIONS) == number
            named = {
                "key": row.key.decode(),
                "timestamp": row.timestamp,
                "window_start": row.start,
                "session_start": row.start,
                "session_end": row.end,
            }
            assert row.value is not None
            found[tuple(named[each] for each in identity)] = (
                int.from_bytes(row.value, "big"),
                row.timestamp,
            )
    assert found == {each: (row["value"], row["timestamp"]) for each, row in unique.items()}


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(0, 9),
            st.none() | st.just(math.nan) | st.floats(-2, 2).map(round),
        ),
        max_size=12,
    ),
    st.sets(st.sampled_from("abcd")),
    st.randoms(use_true_random=False),
)
def test_the_last_row_of_a_key_wins_and_keys_without_a_row_are_deleted(
    rows: list[tuple[str, int, float | None]], existing: set[str], chance: Any
) -> None:
    """Of equal ranks the larger value wins, for equal results in each run.

    Null sorts before all values and NaN behind them, as in Spark.
    """
    store = spec()
    encode = encoder(store, "key", "value", "at", order_by="at")
    encoded = [
        row
        for key, value, at in rows
        if (row := encode.encode({"key": key, "value": value, "at": at})) is not None
    ]
    encoded += [
        existing_row(partition_of(key.encode(), PARTITIONS), key.encode(), 0) for key in existing
    ]
    chance.shuffle(encoded)
    records = [each for part in written(store, encoded, keep_last=True).values() for each in part]
    found = {key.decode(): value and int.from_bytes(value, "big") for key, value, _ in records}
    assert len(found) == len(records)
    wanted: dict[str, int | None] = dict.fromkeys(existing)
    for key in {key for key, _, _ in rows}:
        wanted[key] = max(
            (-math.inf if at is None else 9 if math.isnan(at) else at, value)
            for each, value, at in rows
            if each == key
        )[1]
    assert found == wanted


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=8),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_a_key_is_deleted_once(log: list[tuple[str, bool]], at_once: int, chance: Any) -> None:
    store = spec()
    runs = [
        SourceRecords(
            topic="t",
            partition=0,
            offsets=[offset],
            raw_keys=[key.encode()],
            raw_values=[b"v" if is_set else None],
            timestamps=[0],
            headers=None,
        )
        for offset, (key, is_set) in enumerate(log)
    ]
    words = newest_keys(runs, versioned=False, at_once=at_once)
    rows = [
        existing_row(0, key, version, later=later, live=live)
        for later, (key, version, live) in enumerate(words)
    ]
    chance.shuffle(rows)
    alive_keys = {key.encode() for key, is_set in dict(log).items() if is_set}
    assert written(store, rows)[0] == [(key, None, NOW_MS) for key in sorted(alive_keys)]


def test_a_duplicate_key_is_an_error_that_names_it() -> None:
    for name, same in (("key-value", "same key,"), ("session", "same key and window")):
        store = SPECS[name]
        encode = encoder(store, "key", "value", "session_start", "session_end")
        row = {"key": "a", "value": 1, "session_start": 5_000_000, "session_end": 5_000_001}
        rows = [encode.encode(row), encode.encode({**row, "value": 2})]
        with pytest.raises(StreamsError, match=f"{same}.*'a'"):
            written(store, [each for each in rows if each is not None])


def test_columns_outside_the_key_are_the_fields_of_the_value() -> None:
    store = spec(value_serde=Serdes.json(Product))
    encode = encoder(store, "key", "name", "price", "timestamp")
    row = encode.encode({"key": "p1", "name": "tea", "price": 3.5, "timestamp": 7})
    assert row is not None
    assert (row.value, row.timestamp) == (b'{"name":"tea","price":3.5}', 7)


@dataclass
class Product:
    name: str
    price: float


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (1_700_000_000_123, 1_700_000_000_123),
        (datetime(2026, 11, 21, tzinfo=UTC), 1_795_219_200_000),
        (datetime(2004, 6, 16, 11, 0, 0, 1_000, tzinfo=UTC), 1_087_383_600_001),
        (None, NOW_MS),
    ],
)
def test_a_timestamp_is_a_datetime_or_milliseconds(value: object, wanted: int) -> None:
    row = encoder(spec(), "key", "value", "timestamp").encode(
        {"key": "a", "value": 1, "timestamp": value}
    )
    assert row is not None
    assert row.timestamp == wanted


def test_rows_of_windows_have_the_time_of_their_window_by_default() -> None:
    row = {"key": "a", "value": 1, "window_start": 5_000_000, "session_start": 5_000_000}
    row["session_end"] = 5_000_700
    times: list[int] = []
    for name in ("window", "session"):
        encoded = encoder(SPECS[name], *row).encode(row)
        assert encoded is not None
        times.append(encoded.timestamp)
    assert times == [5_000_000, 5_000_700]


@pytest.mark.parametrize(
    ("kind", "names", "order_by", "missing"),
    [
        ("key-value", ("id", "value"), None, "no column key;"),
        ("key-value", ("key", "timestamp"), None, "no column value"),
        ("key-value", ("key", "value"), "at", "no column at"),
        ("key-value", ("key", "value", "at", "value"), None, "several columns value"),
        ("versioned", ("key", "value"), None, "no column timestamp"),
        ("window", ("key", "value"), None, "no column window_start"),
        ("session", ("key", "value", "session_start"), None, "no column session_end"),
    ],
)
def test_a_frame_without_a_column_is_refused(
    kind: str, names: tuple[str, ...], order_by: str | None, missing: str
) -> None:
    with pytest.raises(ConfigError, match=missing) as raised:
        columns_of(names, SPECS[kind], order_by)
    assert ", ".join(names) in str(raised.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"session_end": 4_000_000}, "ends \\(4000000\\) before it starts"),
        ({"session_start": -1}, "session_start of the row of key 'a' is -1"),
        ({"session_start": None}, "session_start of the row of key 'a' is None"),
        ({"key": 7}, "key 7 does not fit"),
    ],
)
def test_an_invalid_row_is_an_error_that_names_its_key(
    change: Mapping[str, object], told: str
) -> None:
    row = {"key": "a", "value": 1, "session_start": 5_000_000, "session_end": 5_000_700}
    with pytest.raises(StreamsError, match=told):
        encoder(SPECS["session"], *row).encode({**row, **change})


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"key": 7, "value": 1}, "got int); read the column .* --schema 'id STRING'"),
        (
            {"key": "a", "value": "1"},
            "got str); give column value .* 'CAST(value AS BIGINT) AS value'",
        ),
        ({"key": "a", "name": "tea"}, "give each field .* 'CAST(price AS DOUBLE) AS price'"),
    ],
)
def test_the_error_of_a_column_of_another_type_names_the_cast(
    row: dict[str, object], told: str
) -> None:
    with pytest.raises(StreamsError, match=told.replace("(", r"\(").replace(")", r"\)")) as raised:
        encoder(SPECS["key-value"], *row).encode(row)
    assert "exception handler" not in str(raised.value)


def test_a_windowed_key_has_the_partition_of_its_inner_key() -> None:
    """All windows of a key are in one partition, as in Kafka Streams."""
    serde = Serdes.windowed(Serdes.bytes(), 1_000)
    store = spec(StoreKind.KEY_VALUE, key_serde=serde)

    for key in (b"a", b"b", b"c", b"d"):
        for start in (0, 1_000, 2_000):
            row = encoder(store, "key", "value").encode(
                {"key": Windowed(key, start, start + 1_000), "value": 1}
            )
            assert row is not None
            assert row.partition == partition_of(key, PARTITIONS)


def test_a_versions_tombstone_is_a_row() -> None:
    row = {"key": "a", "value": None, "timestamp": 7}
    encoded = encoder(SPECS["versioned"], *row).encode(row)
    assert encoded is not None
    assert encoded.value is None
    assert encoder(SPECS["key-value"], *row).encode(row) is None


def test_a_version_from_an_earlier_attempt_can_not_be_reverted() -> None:
    with pytest.raises(StreamsError, match="a version can't be taken back"):
        written(SPECS["versioned"], [existing_row(0, b"a", 7)])


def test_keys_in_messages_are_short() -> None:
    assert len(shown("x" * 10_000)) < 210
    assert shown("x") == "'x'"


def test_an_encoder_can_be_pickled() -> None:
    store = replace(spec(), value_serde=Serdes.json(Product))
    made = encoder(store, "key", "name", "price")
    again = copy.deepcopy(made)  # as pickled for an executor
    row = {"key": "p1", "name": "tea", "price": 3.5}
    assert again.encode(row) == made.encode(row)
