import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.state_stores.errors import StoreCorruptedError
from tidewheel.state_stores.layout.envelope import (
    unwrap_batch,
    unwrap_batch_with_headers,
    unwrap_value,
    unwrap_with_headers,
    wrap_batch,
    wrap_value,
    wrap_with_headers,
)
from tidewheel.state_stores.layout.headers import NO_HEADERS, encode_headers

VALUES = st.binary(max_size=40)
TIMES = st.integers(-1, 2**63 - 1)


@given(VALUES, TIMES)
def test_values_survive_wrapping(value: bytes, timestamp: int) -> None:
    assert unwrap_value(wrap_value(value, timestamp)) == (value, timestamp)


@given(st.lists(st.tuples(st.none() | VALUES, st.integers(0, 1) | TIMES)))
def test_batches_are_sealed_like_single_values(rows: list[tuple[bytes | None, int]]) -> None:
    wrapped = wrap_batch([value for value, _ in rows], [timestamp for _, timestamp in rows])
    assert wrapped == [
        None if value is None else wrap_value(value, timestamp) for value, timestamp in rows
    ]


@given(VALUES, TIMES, st.integers(0, 2**63 - 1))
def test_an_expiry_of_a_later_version_is_skipped(value: bytes, timestamp: int, expiry: int) -> None:
    stored = struct.pack(">Bqq", 0x11, timestamp, expiry) + value
    assert unwrap_value(stored) == (value, timestamp)


@given(VALUES, TIMES)
def test_stored_values_sort_into_no_other_format(value: bytes, timestamp: int) -> None:
    assert wrap_value(value, timestamp)[0] == 0x01


def with_headers(headers: bytes, value: bytes, timestamp: int) -> bytes:
    (stored,) = wrap_with_headers([headers + value], [timestamp])
    assert stored is not None
    return stored


HEADERS = st.sampled_from([NO_HEADERS, encode_headers((("trace", b"1"),))])
STORED = (
    st.builds(with_headers, HEADERS, VALUES, TIMES)
    | st.builds(wrap_value, VALUES | st.binary(min_size=8, max_size=8), TIMES)
    | st.builds(lambda value, time: struct.pack(">Bqq", 0x11, time, 0) + value, VALUES, TIMES)
)


@given(st.lists(STORED, min_size=1) | st.lists(st.binary(min_size=9, max_size=18), min_size=1))
def test_batches_are_unsealed_like_single_values(stored: list[bytes]) -> None:
    for one, many in (
        (unwrap_value, unwrap_batch),
        (unwrap_with_headers, unwrap_batch_with_headers),
    ):
        try:
            expected = [one(each) for each in stored]
        except StoreCorruptedError:
            with pytest.raises(StoreCorruptedError):
                many(stored)
        else:
            values, timestamps = many(stored)
            assert list(zip(values, timestamps, strict=True)) == expected


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\x01",
        b"\x01" + bytes(7),
        b"\x02" + bytes(20),
        b"\x00" + bytes(8),
        b"\x21" + bytes(20),
        b"\x11",
    ],
)
def test_bytes_of_an_unknown_format_are_a_corrupted_store(stored: bytes) -> None:
    with pytest.raises(StoreCorruptedError, match="restore it from the changelog"):
        unwrap_value(stored)


def test_a_value_too_short_for_its_expiry_is_a_corrupted_store() -> None:
    with pytest.raises(StoreCorruptedError):
        unwrap_value(b"\x11" + bytes(8) + b"abc")
