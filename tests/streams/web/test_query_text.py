"""Keys in URLs and values in JSON."""

import json
import math
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tidewheel import Serde, Serdes
from tidewheel.streams.web.query_client import _text
from tidewheel.streams.web.query_text import BadQueryError, encoded, key_of

_SOME_ID = uuid.UUID(int=7)


@dataclass(frozen=True)
class Place:
    shop: str
    floor: int


class Point(NamedTuple):
    x: int


class Row(msgspec.Struct):
    place: Place
    at: datetime


class Reading(msgspec.Struct):
    rate: float


@dataclass
class Measured:
    rate: float


class Model(BaseModel):
    price: Decimal


@pytest.mark.parametrize(
    ("serde", "text", "key"),
    [
        (Serdes.string(), "7", "7"),
        (Serdes.string(), '"a"', '"a"'),
        (Serdes.int64(), "7", 7),
        (Serdes.int32(), "-1", -1),
        (Serdes.float64(), "2.5", 2.5),
        (Serdes.boolean(), "true", True),
        (Serdes.uuid(), str(_SOME_ID), _SOME_ID),
        (Serdes.bytes(), "AAE=", b"\0\1"),
        (Serdes.json(), '{"b": [1]}', {"b": [1]}),
        (Serdes.json(Place), '{"shop": "s", "floor": 2}', Place("s", 2)),
        (Serdes.msgpack(Place), '{"shop": "s", "floor": 2}', Place("s", 2)),
        (Serde(lambda _, text: text.encode(), lambda _, data: data.decode()), "x y", "x y"),
        (Serde(lambda _, text: text.encode(), lambda _, data: data.decode()), "12", "12"),
    ],
)
def test_a_text_is_the_key_that_the_serde_has(serde: Any, text: str, key: Any) -> None:
    assert key_of(serde, "t", text) == key


@pytest.mark.parametrize(
    ("serde", "text"),
    [
        (Serdes.int64(), "seven"),
        (Serdes.int32(), str(1 << 40)),
        (Serdes.boolean(), "yes"),
        *((Serdes.int64(), text) for text in (" 7", "7\n", "+7", "07", "-0", "1_0", "\u0661", "")),
        *((Serdes.float64(), text) for text in (" 7", "+7", "1_0", "nan", "inf", "\u0661", "0x1")),
        (Serdes.uuid(), "7"),
        (Serdes.bytes(), "no base64!"),
        (Serdes.json(Place), '{"shop": 1}'),
        (Serdes.json(Place), "s"),
        (Serdes.string(), "\ud800"),
    ],
)
def test_a_key_that_the_serde_refuses_is_a_bad_query(serde: Any, text: str) -> None:
    with pytest.raises(BadQueryError):
        key_of(serde, "t", text)


@given(
    st.text()
    | st.integers(-(2**63), 2**63 - 1)
    | st.binary()
    | st.booleans()
    | st.floats(allow_nan=False)
)
def test_the_client_writes_keys_as_the_server_reads_them(key: Any) -> None:
    serdes: dict[type, Any] = {
        str: Serdes.string(),
        int: Serdes.int64(),
        bytes: Serdes.bytes(),
        bool: Serdes.boolean(),
        float: Serdes.float64(),
    }
    assert key_of(serdes[type(key)], "t", _text(key)) == key


def test_a_time_has_one_form_beside_a_null_too() -> None:
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    plain, with_nan = (
        json.loads(encoded({"at": moment, "rate": rate}))["at"] for rate in (1.0, math.nan)
    )
    assert plain == with_nan


def test_the_client_writes_typed_keys_as_json() -> None:
    assert key_of(Serdes.json(Place), "t", _text(Place("s", 2))) == Place("s", 2)
    assert key_of(Serdes.uuid(), "t", _text(_SOME_ID)) == _SOME_ID


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (
            Row(Place("s", 2), datetime(2026, 1, 31, tzinfo=UTC)),
            {"place": {"shop": "s", "floor": 2}, "at": "2026-01-31T00:00:00+00:00"},
        ),
        (Model(price=Decimal("1.50")), {"price": "1.50"}),
        (Decimal("1.50"), "1.50"),
        (Point(3), [3]),
        ({b"a"}, ["YQ=="]),
        ({"id": _SOME_ID}, {"id": str(_SOME_ID)}),
        ([1 << 70], [1 << 70]),
        (math.nan, "NaN"),
        ({"a": [math.inf, None], "b": (-math.inf,)}, {"a": ["Infinity", None], "b": ["-Infinity"]}),
        ({"a": math.nan, "b": 1 << 70}, {"a": "NaN", "b": 1 << 70}),
        (Measured(math.nan), {"rate": "NaN"}),
        (Reading(math.inf), {"rate": "Infinity"}),
        ("null", "null"),
        (None, None),
    ],
)
def test_values_have_a_form_in_json(value: Any, shown: Any) -> None:
    read = json.loads(encoded({"value": value}))["value"]
    if isinstance(shown, dict) and "at" in shown:
        read["at"] = datetime.fromisoformat(read["at"]).isoformat()
    assert read == shown
