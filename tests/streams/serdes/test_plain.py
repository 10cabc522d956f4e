"""Plain serdes: round trips, Kafka's bytes, strictness, and equal batch forms."""

import copy
import math
import struct
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewheel.streams.errors import SerializationError
from tidewheel.streams.serdes import Serde, Serdes

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
VALUES: list[tuple[Serde[Any], st.SearchStrategy[Any]]] = [
    (Serdes.bytes(), st.binary()),
    (Serdes.string(), st.text()),
    (Serdes.int32(), st.integers(-(2**31), 2**31 - 1)),
    (Serdes.int64(), st.integers(-(2**63), 2**63 - 1)),
    (Serdes.float64(), st.floats(allow_nan=False)),
    (Serdes.boolean(), st.booleans()),
    (Serdes.uuid(), st.uuids()),
    (Serdes.json(), JSON),
    (Serdes.msgpack(), JSON),
]
#: Serdes of which each process has one object.
SINGLE: list[Serde[Any]] = [
    *(serde for serde, _ in VALUES if serde.name != "msgpack"),
    Serdes.json().for_keys(),
    Serdes.json(sort_keys=False),
]
NAMES = [serde.name for serde, _ in VALUES]
SERDES = [serde for serde, _ in VALUES]
laws = settings(max_examples=60)


@pytest.mark.parametrize(("serde", "values"), VALUES, ids=NAMES)
def test_values_read_back_equal(serde: Serde[Any], values: st.SearchStrategy[Any]) -> None:
    @laws
    @given(st.lists(values, max_size=6))
    def law(batch: list[Any]) -> None:
        data = serde.serialize_batch("topic", batch)
        assert data == [serde.serialize("topic", value) for value in batch]
        present = [item for item in data if item is not None]
        assert serde.deserialize_batch("topic", present) == batch
        assert [serde.deserialize("topic", item) for item in present] == batch

    law()


@pytest.mark.parametrize("serde", SERDES, ids=NAMES)
def test_any_bytes_give_a_value_or_a_serialization_error(serde: Serde[Any]) -> None:
    @laws
    @given(st.binary(max_size=40) | st.sampled_from([b"\x00", b"\x01", bytes(8), b"1", b"null"]))
    def law(data: bytes) -> None:
        try:
            value = serde.deserialize("topic", data)
        except SerializationError:
            with pytest.raises(SerializationError):
                serde.deserialize_batch("topic", [data])
            return
        if not (isinstance(value, float) and math.isnan(value)):
            assert serde.deserialize_batch("topic", [data]) == [value]
        if serde.canonical:
            assert serde.serialize("topic", value) == data

    law()


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 600])
@pytest.mark.parametrize(
    ("serde", "code"),
    [(Serdes.int32(), ">i"), (Serdes.int64(), ">q"), (Serdes.float64(), ">d")],
    ids=str,
)
def test_numbers_are_big_endian_in_batches_of_all_sizes(
    serde: Serde[Any], code: str, size: int
) -> None:
    numbers = list(range(-(size // 2), size - size // 2))
    data = [struct.pack(code, number) for number in numbers]

    assert serde.serialize_batch("topic", numbers) == data
    assert serde.deserialize_batch("topic", data) == numbers


@pytest.mark.parametrize(
    ("serde", "value", "data"),
    [
        (Serdes.bytes(), b"\x00\xff", b"\x00\xff"),
        (Serdes.string(), "grün", b"gr\xc3\xbcn"),
        (Serdes.int32(), 1, b"\x00\x00\x00\x01"),
        (Serdes.int64(), -1, b"\xff" * 8),
        (Serdes.float64(), 1.0, b"\x3f\xf0" + bytes(6)),
        (Serdes.boolean(), True, b"\x01"),
        (Serdes.boolean(), False, b"\x00"),
        (Serdes.uuid(), uuid.UUID(int=1), b"00000000-0000-0000-0000-000000000001"),
        (Serdes.json(), {"a": [1, None]}, b'{"a":[1,null]}'),
        (Serdes.msgpack(), {"a": 1}, b"\x81\xa1a\x01"),
    ],
)
def test_bytes_equal_those_of_kafkas_serializers(
    serde: Serde[Any], value: Any, data: bytes
) -> None:
    assert serde.serialize("topic", value) == data
    assert serde.deserialize("topic", data) == value


@pytest.mark.parametrize(
    ("serde", "value", "reason"),
    [
        (Serdes.bytes(), "text", "expected bytes, got str"),
        (Serdes.string(), 5, "expected str, got int"),
        (Serdes.string(), b"raw", "expected str, got bytes"),
        (Serdes.string(), "\ud800", "lone surrogate"),
        (Serdes.int32(), 2**31, "number out of range"),
        (Serdes.int64(), 2**63, "number out of range"),
        (Serdes.int64(), "5", "expected int, got str"),
        (Serdes.int64(), 1.0, "expected int, got float"),
        (Serdes.float64(), "x", "expected float, got str"),
        (Serdes.float64(), 10**400, "expected float, got int"),
        (Serdes.boolean(), 1, "expected bool, got int"),
        (Serdes.uuid(), "x", "expected UUID, got str"),
        (Serdes.json(), object(), "not JSON serializable"),
        (Serdes.msgpack(), object(), "unsupported"),
    ],
)
def test_values_of_another_type_are_refused(serde: Serde[Any], value: Any, reason: str) -> None:
    wanted = rf"^{serde.name} serde, topic 'orders': can't serialise \(.*{reason}.*\); give the serde that fits"
    with pytest.raises(SerializationError, match=wanted):
        serde.serialize("orders", value)
    with pytest.raises(SerializationError, match=wanted):
        serde.serialize_batch("orders", [value])


@pytest.mark.parametrize(
    ("serde", "data", "reason"),
    [
        (Serdes.string(), b"ab\xff", "3 bytes, no UTF-8 at byte 2"),
        (Serdes.int32(), bytes(8), "8 bytes, expected 4"),
        (Serdes.int64(), b"", "0 bytes, expected 8"),
        (Serdes.float64(), bytes(7), "7 bytes, expected 8"),
        (Serdes.boolean(), b"\x02", "1 bytes, expected one that is 0 or 1"),
        (Serdes.uuid(), b"{00000000-0000-0000-0000-000000000001}", "expected the 36 characters"),
        (Serdes.uuid(), b"\xff" * 36, "expected the 36 characters"),
        (Serdes.json(), b"{", "1 bytes, Input data was truncated"),
        (Serdes.json(), b"", "0 bytes"),
        (Serdes.msgpack(), b"\x81", "truncated"),
        (Serdes.msgpack(), b"\x01\x01", "trailing"),
    ],
)
def test_bytes_of_another_format_are_refused(serde: Serde[Any], data: bytes, reason: str) -> None:
    wanted = rf"^{serde.name} serde, topic 'orders': can't deserialise \(.*{reason}"
    with pytest.raises(SerializationError, match=wanted):
        serde.deserialize("orders", data)
    with pytest.raises(SerializationError, match=wanted):
        serde.deserialize_batch("orders", [data])


def test_lengths_that_add_up_are_not_enough() -> None:
    with pytest.raises(SerializationError, match="7 bytes, expected 8"):
        Serdes.int64().deserialize_batch("topic", [bytes(7), bytes(9)])


def test_json_values_are_separate() -> None:
    with pytest.raises(SerializationError):
        Serdes.json().deserialize_batch("topic", [b"1,2", b"[3", b"4]"])


def test_upper_case_uuids_are_read_and_written_back_in_lower_case() -> None:
    text = b"ABCDEF00-0000-0000-0000-000000000001"
    value = Serdes.uuid().deserialize("topic", text)

    assert Serdes.uuid().serialize("topic", value) == text.lower()
    assert not Serdes.uuid().canonical


@pytest.mark.parametrize("value", [bytearray(b"ab"), memoryview(b"ab")])
def test_bytes_like_values_become_bytes(value: Any) -> None:
    assert Serdes.bytes().serialize("topic", value) == b"ab"
    assert Serdes.bytes().serialize_batch("topic", [b"x", value]) == [b"x", b"ab"]


def test_a_batch_is_a_new_list() -> None:
    data = [b"a"]

    assert Serdes.bytes().deserialize_batch("topic", data) is not data
    assert Serdes.bytes().serialize_batch("topic", data) is not data


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("serde", SERDES, ids=NAMES)
def test_values_that_surely_serialise_do_serialise(serde: Serde[Any]) -> None:
    @settings(max_examples=200)
    @given(
        st.integers()
        | st.integers(-(2**31) - 1, 2**31)
        | st.sampled_from(
            [
                -(2**63) - 1,
                -(2**63),
                2**63 - 1,
                2**63,
                True,
                None,
                "\ud800",
                Text("a"),
                b"",
                object(),
            ]
        )
        | st.floats()
        | st.text()
        | st.binary()
        | st.uuids()
    )
    def law(value: Any) -> None:
        if serde.surely_serializes(value):
            assert isinstance(serde.serialize("topic", value), bytes)

    law()


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (Serdes.bytes(), b"x"), (Serdes.string(), "x"), (Serdes.int32(), -(2**31)), (Serdes.int64(), 2**63 - 1),
        (Serdes.float64(), -math.inf), (Serdes.boolean(), False), (Serdes.uuid(), uuid.UUID(int=1)),
    ],
)  # fmt: skip
def test_ordinary_values_of_plain_serdes_surely_serialise(serde: Serde[Any], value: Any) -> None:
    assert serde.surely_serializes(value)


@pytest.mark.parametrize(
    ("serde", "direction"),
    [
        (serde, direction)
        for serde in SERDES
        for direction in ("serialize", "deserialize")
        # All bytes are valid, so this serde never fails.
        if (serde, direction) != (Serdes.bytes(), "deserialize")
    ],
    ids=str,
)
def test_errors_contain_no_data(serde: Serde[Any], direction: str) -> None:
    bad: Any = {"canary-7391": "canary-7391", 1: object()}
    if direction == "deserialize":
        bad = b"\xc1canary-7391"
    with pytest.raises(SerializationError) as caught:
        getattr(serde, direction)("topic", bad)

    assert "canary" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("value", "place"),
    [
        (lambda number: number, r"\$ is"),
        (lambda number: {"a": [{"b": None}, {"b": number}]}, r"\$\.a\[1\]\.b is"),
        (lambda number: [[1.5, None], (2, number)], r"\$\[1\]\[1\] is"),
    ],
)
def test_json_refuses_numbers_it_cannot_represent(number: float, value: Any, place: str) -> None:
    with pytest.raises(SerializationError, match=place):
        Serdes.json().serialize("topic", value(number))
    with pytest.raises(SerializationError, match=place):
        Serdes.json().serialize_batch("topic", [{"a": None}, value(number), 1])


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.sampled_from(["null", "x"]),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_changes_no_value_silently(value: Any) -> None:
    try:
        data = Serdes.json().serialize("topic", value)
    except SerializationError:
        assert any(word in repr(value) for word in ("nan", "inf"))
    else:
        assert Serdes.json().deserialize("topic", data or b"") == value


@pytest.mark.parametrize("serde", SINGLE, ids=lambda serde: serde.name)
def test_unpickling_returns_the_same_object(serde: Serde[Any]) -> None:
    """Operators choose fast paths by identity, so executors must have the objects of `Serdes`."""
    assert copy.deepcopy(serde) is serde  # by the protocol of pickle
