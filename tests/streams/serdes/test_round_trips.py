"""All serdes: a written value reads back equal, or writing fails."""

import copy
import itertools
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, cast

import attrs
import msgspec
import pytest
from google.protobuf import (  # type: ignore[import-untyped]  # its stubs are a package of their own
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr

from tests.streams.serdes import shapes
from tidewheel import StreamsBuilder, StreamsConfig, Windowed
from tidewheel.streams.errors import SerializationError, TopologyError
from tidewheel.streams.serdes import Serde, Serdes
from tidewheel.streams.serdes.serde import for_keys
from tidewheel.testing import TopologyTestDriver

T = TypeVar("T")

FORMATS: list[Any] = [Serdes.json, Serdes.msgpack]

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(2**70), 2**260) | st.floats() | st.text()
    | st.text(st.characters()) | st.binary() | st.uuids() | st.datetimes() | st.timedeltas() | st.dates()
    | st.decimals() | st.fractions() | st.sampled_from(shapes.Color) | st.sampled_from(shapes.Level)
    | st.sampled_from(shapes.Word) | st.sampled_from(["\ud800", 2**53 + 1, -(2**63) - 1, 2**64, 1e300, -0.0]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    | st.tuples(inner, inner) | st.builds(shapes.Point, inner, inner) | st.builds(shapes.Unequal, inner)
    | st.sets(st.integers(), max_size=2),
    max_leaves=6,
)  # fmt: skip

zones = st.none() | st.builds(
    timezone, st.integers(-14, 14).map(lambda hours: timedelta(hours=hours))
)


def flat(python_type: Any) -> st.SearchStrategy[Any]:
    return st.builds(
        python_type,
        id=st.integers(-(2**63), 2**63 - 1),
        name=st.text(),
        size=st.floats(allow_nan=False, allow_infinity=False),
        ok=st.none() | st.booleans(),
    )


def rich(python_type: Any, inner: Any) -> st.SearchStrategy[Any]:
    return st.builds(
        python_type,
        at=st.datetimes(timezones=zones),
        day=st.dates(),
        hour=st.times(),
        span=st.timedeltas(min_value=timedelta(days=-9999), max_value=timedelta(days=9999)),
        amount=st.decimals(allow_nan=False, allow_infinity=False),
        key=st.uuids(),
        raw=st.text().map(str.encode),  # pydantic writes bytes as text
        color=st.sampled_from(shapes.Color),
        level=st.sampled_from(shapes.Level),
        word=st.sampled_from(shapes.Word),
        tags=st.sets(st.integers(-(2**63), 2**63 - 1), max_size=3),
        pair=st.tuples(st.integers(0, 9), st.text()),
        point=st.builds(shapes.Point, st.integers(0, 9), st.integers(0, 9)),
        counts=st.dictionaries(st.integers(0, 99), st.text(), max_size=3),
        either=st.integers(0, 9) | st.text(),
        inner=flat(inner),
    )


SHAPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (shapes.FlatStruct, flat(shapes.FlatStruct)),
    (shapes.FlatData, flat(shapes.FlatData)),
    (shapes.FlatModel, flat(shapes.FlatModel)),
    (shapes.RichStruct, rich(shapes.RichStruct, shapes.FlatStruct)),
    (shapes.RichData, rich(shapes.RichData, shapes.FlatData)),
    (shapes.RichModel, rich(shapes.RichModel, shapes.FlatModel)),
    (shapes.Derived, st.builds(shapes.Derived, st.integers(0, 9), st.integers(0, 9))),
    (shapes.Unequal, st.builds(shapes.Unequal, st.integers(0, 9), st.lists(st.text()))),
    (shapes.Lax, st.builds(shapes.Lax, st.integers(0, 9), st.text())),
    (shapes.Frozen, st.builds(shapes.Frozen, st.integers(0, 9), st.lists(st.text()).map(tuple))),
    (shapes.Renamed, st.builds(shapes.Renamed, st.integers(0, 9), st.text())),
    (shapes.Listed, st.builds(shapes.Listed, st.integers(0, 9), st.text())),
    (shapes.Aliased, st.builds(shapes.Aliased, userId=st.integers(0, 9), homeTown=st.text())),
    (
        shapes.AliasedNested,
        st.builds(shapes.Aliased, userId=st.integers(0, 9)).map(
            lambda one: shapes.AliasedNested(one=one, many=[one])
        ),
    ),
    (shapes.Computed, st.builds(shapes.Computed, id=st.integers(0, 9))),
    (shapes.Hidden, st.builds(shapes.Hidden, id=st.integers(0, 9))),
    (shapes.Validated, st.builds(shapes.Validated, name=st.text())),
    (shapes.Open, st.integers(0, 9).map(lambda n: shapes.Open.model_validate({"id": n, "more": "x"}))),
    (shapes.OpenPassword, st.text().map(lambda text: shapes.OpenPassword(secret=SecretStr(text)))),
    (shapes.Constrained, st.builds(shapes.Constrained, st.integers(0, 9))),
    (dict[int, list[float]], st.dictionaries(st.integers(0, 9), st.lists(st.floats(allow_nan=False, allow_infinity=False)))),
    (shapes.Point, st.builds(shapes.Point, st.integers(0, 9), st.integers(0, 9))),
    (shapes.Row, st.fixed_dictionaries({"id": st.integers(0, 9), "name": st.text()})),
    (tuple[int, str], st.tuples(st.integers(0, 9), st.text())),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (shapes.TaggedA | shapes.TaggedB, st.builds(shapes.TaggedA, st.integers(0, 9)) | st.builds(shapes.TaggedB, st.integers(0, 9))),
    (shapes.Cat | shapes.Dog, st.builds(shapes.Cat, st.just("cat"), st.integers(0, 9)) | st.builds(shapes.Dog, st.just("dog"), st.integers(0, 9))),
    (shapes.Circle | shapes.Square, st.builds(shapes.Circle, st.floats(0, 9)) | st.builds(shapes.Square, st.floats(0, 9))),
    (shapes.DataCat | shapes.DataDog, st.builds(shapes.DataCat, st.integers(0, 9)) | st.builds(shapes.DataDog, st.integers(0, 9))),
    (shapes.DataCircle | shapes.DataSquare, st.builds(shapes.DataCircle, st.floats(0, 9)) | st.builds(shapes.DataSquare, st.floats(0, 9))),
    (shapes.ModelCat | shapes.ModelDog, st.builds(shapes.ModelCat, lives=st.integers(0, 9)) | st.builds(shapes.ModelDog, lives=st.integers(0, 9))),
    (shapes.ModelCircle | shapes.ModelSquare, st.builds(shapes.ModelCircle, radius=st.floats(0, 9)) | st.builds(shapes.ModelSquare, side=st.floats(0, 9))),
    (Annotated[shapes.ModelCat | shapes.ModelDog, Field(discriminator="kind")], st.builds(shapes.ModelCat, lives=st.integers(0, 9)) | st.builds(shapes.ModelDog, lives=st.integers(0, 9))),
    (list[shapes.DataCat | shapes.DataDog], st.lists(st.builds(shapes.DataCat, st.integers(0, 9)) | st.builds(shapes.DataDog, st.integers(0, 9)))),
    (shapes.Cat | shapes.DataDog | shapes.ModelSquare, st.builds(shapes.Cat, st.just("cat"), st.integers(0, 9)) | st.builds(shapes.DataDog, st.integers(0, 9)) | st.builds(shapes.ModelSquare, side=st.floats(0, 9))),
    (shapes.HolderOfUnion, st.builds(shapes.HolderOfUnion, st.builds(shapes.DataDog, st.integers(0, 9)), st.dictionaries(st.text(), st.builds(shapes.DataSquare, st.floats(0, 9)), max_size=2))),
]  # fmt: skip


def attributes(value: Any) -> Any:
    return getattr(value, "__dict__", None)


def assert_law(serde: Serde[Any], values: list[Any]) -> bool:
    try:
        data = serde.serialize_batch("topic", values)
    except SerializationError:
        return False
    assert data == [serde.serialize("topic", value) for value in values]
    for value, back in zip(
        values, serde.deserialize_batch("topic", [item or b"" for item in data]), strict=True
    ):
        is_nan = isinstance(value, float | Decimal) and value != value  # noqa: PLR0124
        assert back == value or is_nan or attributes(value) == attributes(back) is not None
        if attributes(value) is not None and not isinstance(value, str | int | Fraction):
            assert type(back) is type(value)
            assert attributes(back) == attributes(value)
    return True


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(("python_type", "values"), SHAPES, ids=[str(shape) for shape, _ in SHAPES])
def test_values_of_a_type_read_back_equal(make: Any, python_type: Any, values: Any) -> None:
    serde = make(python_type)

    @settings(max_examples=12)
    @given(st.lists(values, max_size=4))
    def law(batch: list[Any]) -> None:
        assert assert_law(serde, batch)

    law()


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(
    ("python_type", "fields"),
    [
        (shapes.FlatStruct, ("id", "name", "size", "ok")),
        (shapes.FlatData, ("id", "name", "size", "ok")),
        (shapes.Derived, ("id", "total", "tags", "_id")),
        (shapes.Unequal, ("id", "tags")),
        (shapes.Lax, ("id", "note")),
    ],
)
def test_fields_of_another_type_are_equal_or_refused(
    make: Any, python_type: Any, fields: Any
) -> None:
    serde = make(python_type)

    @settings(max_examples=40)
    @given(st.sampled_from(fields), ANYTHING)
    def law(name: str, part: Any) -> None:
        value = python_type(**({"name": "x", "size": 1.5} if "size" in fields else {}), id=1)
        setattr(value, name, part)
        try:
            data = serde.serialize("topic", value)
        except SerializationError:
            return
        back = serde.deserialize("topic", data)
        assert type(back) is python_type
        assert same(getattr(back, name), part)

    law()


def same(back: Any, value: Any) -> bool:
    if isinstance(value, shapes.Unequal):
        return type(back) is type(value) and same(vars(back), vars(value))
    kind = cast("object", type(value))
    if kind is dict:
        return back.keys() == value.keys() and all(same(back[key], value[key]) for key in value)
    if isinstance(value, list | tuple):
        given = cast("Sequence[Any]", value)
        is_list = isinstance(back, list) == isinstance(value, list)
        return is_list and len(back) == len(given) and all(map(same, back, given))
    return bool(back == value) or bool(value != value and back != back)  # noqa: PLR0124


@pytest.mark.parametrize(
    "serde",
    [
        Serdes.bytes(), Serdes.string(), Serdes.int32(), Serdes.int64(), Serdes.float64(), Serdes.boolean(), Serdes.uuid(),
        Serdes.json(), Serdes.msgpack(), for_keys(Serdes.json()), for_keys(Serdes.msgpack()), Serdes.json_schema({}),
        Serdes.json(Any), Serdes.json(dict[str, Any]), Serdes.json(list[Any]),
    ],
    ids=str,
)  # fmt: skip
def test_every_value_reads_back_equal_or_is_refused(serde: Any) -> None:
    @settings(max_examples=100)
    @given(ANYTHING)
    def law(value: Any) -> None:
        try:
            data = serde.serialize("topic", value)
        except SerializationError:
            with pytest.raises(SerializationError):
                serde.serialize_batch("topic", [value])
            return
        assert serde.serialize_batch("topic", [value]) == [data]
        assert same(serde.deserialize("topic", data), value)

    law()


BIG = 2**256 - 1


@pytest.mark.parametrize(
    "serde",
    [Serdes.json(), Serdes.json_schema({"title": "x"}), Serdes.json(dict[str, Any])],
    ids=str,
)
def test_whole_numbers_beyond_64_bits(serde: Any) -> None:
    for data, value in (
        (b'{"n": %d}' % BIG, {"n": BIG}),
        (b'{"n": [-%d, 1.5]}' % BIG, {"n": [-BIG, 1.5]}),
        (b'{"n": 18446744073709551616}', {"n": 2**64}),
        (b'{"n": -9223372036854775809}', {"n": -(2**63) - 1}),
    ):
        assert serde.deserialize("topic", data) == value
        assert serde.deserialize_batch("topic", [data, b'{"n": 1}']) == [value, {"n": 1}]
        assert serde.deserialize("topic", serde.serialize("topic", value)) == value
        assert type(serde.deserialize("topic", b'{"n": 1e30}')["n"]) is float


@dataclass
class Plain:
    id: int
    _id: int = 5


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": (1, 2)}, r"at \$\.a: tuple is read back as list"),
        ({"a": [Plain(1)]}, r"at \$\.a\[0\]"),
        (Plain(1), r"at \$: Plain is read back as dict"),
        ({"at": datetime(2026, 1, 2, tzinfo=UTC)}, r"at \$\.at: datetime is read back as str"),
        ({"id": uuid.UUID(int=1)}, r"at \$\.id: UUID is read back as str"),
        ({"c": shapes.Color.RED}, r"at \$\.c: Color is read back as str"),
        ({"p": {"q": shapes.Point(1, 2)}}, r"at \$\.p\.q"),
        ({"s": {1, 2}}, r"at \$\.s"),
        ({"b": b"canary"}, r"at \$\.b"),
        ({"t": "canary\ud800"}, r"at \$\.t"),
        ({"d": {1: "canary"}}, r"at \$\.d: Dict key must be str"),
        ({"big": 2**70, "s": [{"canary"}]}, r"at \$\.s\[0\]: set is read back as list"),
    ],
)  # fmt: skip
def test_untyped_json_names_the_place(value: Any, place: str) -> None:
    for serde in (Serdes.json(), for_keys(Serdes.json())):
        with pytest.raises(SerializationError, match=place) as caught:
            serde.serialize("topic", value)
        with pytest.raises(SerializationError, match=place):
            serde.serialize_batch("topic", [{"a": 1}, value])
        assert "canary" not in str(caught.value)


class SubStruct(shapes.FlatStruct):
    more: int = 0


class SubModel(shapes.FlatModel):
    more: int = 0


@dataclass
class SubData(shapes.FlatData):
    more: int = 0


def hidden(cache: int) -> shapes.Hidden:
    made = shapes.Hidden(id=1)
    made.remember(cache)
    return made


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(
    ("python_type", "value", "reason"),
    [
        (shapes.FlatStruct, SubStruct(1, "canary", 1.0), "got SubStruct, a subclass"),
        (shapes.FlatModel, SubModel(id=1, name="canary", size=1.0), "got SubModel, a subclass"),
        (shapes.FlatData, SubData(1, "canary", 1.0), "got SubData, a subclass"),
        (list[shapes.FlatStruct], [SubStruct(1, "canary", 1.0)], r"at \$\[0\]: SubStruct is read back as FlatStruct"),
        (list[shapes.FlatModel], [SubModel(id=1, name="canary", size=1.0)], r"at \$\[0\]: SubModel is read back as FlatModel"),
        (dict[str, shapes.FlatData], {"a": SubData(1, "canary", 1.0)}, r"at \$\[str key\]: SubData is read back as FlatData"),
        (shapes.Hidden, shapes.Hidden.model_validate({"id": 1, "secret": "canary"}), r"at \$\.secret"),
        (shapes.Hidden, hidden(5), r"at \$\._cache"),
        (shapes.Row, {"id": 1, "name": "x", "more": "canary"}, r"at \$\[str key\]: is lost"),
        (shapes.Serialised, shapes.Serialised(at=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)), r"at \$\.at: datetime is read back with another value"),
        (shapes.FlatStruct, shapes.FlatStruct(id=True, name="x", size=1.0), r"\$\.id"),
        (shapes.FlatStruct, shapes.FlatStruct(id=1, name="x", size=2**53 + 1), r"\$\.size"),
        (shapes.FlatData, shapes.FlatData(id=1, name="canary\ud800", size=1.0), r"at \$\.name"),
        (shapes.Constrained, shapes.Constrained(size=-5), r"\$\.size"),
        (shapes.Unequal, shapes.Unequal(1, [(1, 2)]), r"at \$\.tags\[0\]: tuple is read back as list"),
        (shapes.Lax, shapes.Lax(1, (1, 2)), r"at \$\.note: tuple is read back as list"),
        (shapes.Circle | shapes.Dog, shapes.Square(1.0), r"expected Circle \| Dog, got Square"),
    ],
)  # fmt: skip
def test_values_that_would_lose_data_are_refused(
    make: Any, python_type: Any, value: Any, reason: str
) -> None:
    serde = make(python_type)
    with pytest.raises(SerializationError, match=reason) as caught:
        serde.serialize("topic", value)
    with pytest.raises(SerializationError, match=reason):
        serde.serialize_batch("topic", [value])
    assert "canary" not in str(caught.value)


def test_ambiguous_unions_are_refused_when_written() -> None:
    @dataclass
    class Left:
        id: int

    @dataclass
    class Right:
        id: int

    for make in FORMATS:
        serde: Any = make(Left | Right)
        assert serde.deserialize("topic", serde.serialize("topic", Left(1))) == Left(1)
        with pytest.raises(SerializationError, match=r"at \$: Right is read back as Left"):
            serde.serialize("topic", Right(1))


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(
    ("python_type", "reason"),
    [
        (shapes.Password, r"at \$\.secret"),
        (shapes.OneWay, r"at \$\.user_id"),
        (shapes.ForbiddenExtra, r"at \$\.double"),
    ],
)
def test_classes_that_never_read_back_are_refused_when_built(
    make: Any, python_type: Any, reason: str
) -> None:
    with pytest.raises(TopologyError, match=reason):
        make(python_type)


def test_an_aliased_model_is_written_by_alias_and_read_by_both() -> None:
    serde = Serdes.json(shapes.Aliased)
    value = shapes.Aliased(userId=1, homeTown="Ulm")

    assert serde.serialize("topic", value) == b'{"userId":1,"homeTown":"Ulm"}'
    assert serde.deserialize("topic", b'{"user_id":1,"home_town":"Ulm"}') == value
    assert serde.from_plain({"user_id": 1}) == value


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(
    "python_type",
    [None, dict[str, int], shapes.HolderOfUnion, shapes.Open, dict[str, Any], shapes.Row],
)
def test_equal_keys_have_equal_bytes(make: Any, python_type: Any) -> None:
    serde: Any = for_keys(make(python_type))
    one: Any = {"id": 1, "name": "x"}
    other: Any = {"name": "x", "id": 1}
    if python_type == dict[str, int]:
        one, other = {"id": 1, "name": 2}, {"name": 2, "id": 1}
    elif python_type is shapes.HolderOfUnion:
        left, right = shapes.DataSquare(1.0), shapes.DataCircle(2.0)
        one = shapes.HolderOfUnion(shapes.DataDog(1), {"a": left, "b": right})
        other = shapes.HolderOfUnion(shapes.DataDog(1), {"b": right, "a": left})
    elif python_type is shapes.Open:
        extra: Any = {"a": 1, "b": 2}
        one = shapes.Open(id=1, **extra)
        other = shapes.Open(id=1, **dict(reversed(extra.items())))

    data = serde.serialize("topic", one)
    assert data == serde.serialize("topic", other)
    assert serde.serialize_batch("topic", [one, other]) == [data, data]
    assert serde.deserialize("topic", data) == one
    assert for_keys(serde) is serde


class _Generic(msgspec.Struct, Generic[T]):
    part: T


class _Bare(msgspec.Struct):
    parts: list  # type: ignore[type-arg] # a list of anything


class _Numbered(msgspec.Struct):
    names: dict[int, str]


@attrs.define
class _Attrs:
    parts: dict[str, Any]


class _Pair(NamedTuple):
    parts: dict[str, int]


class _Model(BaseModel):
    names: dict[int, dict[str, int]]


ONE: dict[str, Any] = {"a": 1, "b": {"c": 1, "d": [{"e": 1, "f": 2}]}}
OTHER: dict[str, Any] = {"b": {"d": [{"f": 2, "e": 1}], "c": 1}, "a": 1}
NUMBERS = {1: "a", 2: "b", 10: "c"}
OTHER_NUMBERS = {10: "c", 2: "b", 1: "a"}


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(
    ("python_type", "one", "other"),
    [
        (Any, ONE, OTHER), (dict, ONE, OTHER), (list, [ONE], [OTHER]), (tuple, (1, 2), (1, 2)), (list[Any], [ONE], [OTHER]),
        (tuple[Any, ...], (ONE, 1), (OTHER, 1)), (_Bare, _Bare([ONE]), _Bare([OTHER])), (_Generic, _Generic(ONE), _Generic(OTHER)),
        (_Generic[dict[str, Any]], _Generic(ONE), _Generic(OTHER)), (_Attrs, _Attrs(ONE), _Attrs(OTHER)),
        (_Pair, _Pair({"a": 1, "b": 2}), _Pair({"b": 2, "a": 1})), (dict[int, str], NUMBERS, OTHER_NUMBERS),
        (_Numbered, _Numbered(NUMBERS), _Numbered(OTHER_NUMBERS)), (list[_Numbered], [_Numbered(NUMBERS)], [_Numbered(OTHER_NUMBERS)]),
        (_Model, _Model(names={1: {"a": 1, "b": 2}, 2: {}}), _Model(names={2: {}, 1: {"b": 2, "a": 1}})),
        (shapes.FlatData | _Numbered, _Numbered(NUMBERS), _Numbered(OTHER_NUMBERS)),
        (dict[str, dict[int, str]], {"a": NUMBERS}, {"a": OTHER_NUMBERS}),
    ],
    ids=str,
)  # fmt: skip
def test_dicts_anywhere_in_a_key_have_one_order(
    make: Any, python_type: Any, one: Any, other: Any
) -> None:
    assert one == other
    serde: Any = for_keys(make(python_type))

    data = serde.serialize("t", one)

    assert serde.serialize("t", other) == data
    assert serde.serialize_batch("t", [one, other] * 5) == [data] * 10
    assert serde.deserialize("t", data) == one
    windowed: Any = for_keys(Serdes.windowed(make(python_type), 10))
    keys = [windowed.serialize("t", Windowed(key, 0, 10)) for key in (one, other)]
    assert keys == [data + bytes(8)] * 2
    assert windowed.sorted_key("t", keys[0]) == keys[0]


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("python_type", [None, dict[str, int], dict[int, str]])
def test_keys_in_the_order_given(make: Any, python_type: Any) -> None:
    given = {1: "b", 0: "a"} if python_type == dict[int, str] else {"b": 1, "a": 2}
    values: Any = make(python_type)
    keys: Any = for_keys(make(python_type, sort_keys=False))

    assert keys.serialize("t", given) == values.serialize("t", given)
    assert keys.deserialize("t", for_keys(values).serialize("t", given)) == given
    assert not keys.sorts_keys
    serdes: list[Any] = [keys, for_keys(values)]
    for serde in serdes:
        again: Any = copy.copy(serde)
        assert again.serialize("t", given) == serde.serialize("t", given)
        assert again.sorts_keys == serde.sorts_keys
        assert for_keys(again) is again


@pytest.mark.parametrize(
    ("serde", "one", "other"),
    [
        (Serdes.json_schema({"title": "Any"}), ONE, OTHER),
        (Serdes.json_schema({"title": "Any"}, "mock://keys"), ONE, OTHER),
        (Serdes.avro({"type": "map", "values": "int"}), {"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Serdes.avro({"type": "map", "values": ["null", {"type": "map", "values": "int"}]}, "mock://keys"), {"x": {"a": 1, "b": 2}, "y": None}, {"y": None, "x": {"b": 2, "a": 1}}),
    ],
    ids=str,
)  # fmt: skip
def test_equal_keys_of_a_schema_have_equal_bytes(serde: Any, one: Any, other: Any) -> None:
    keys: Any = for_keys(serde)

    data: Any = keys.serialize("t", other)

    assert keys.serialize("t", one) == data
    assert keys.deserialize("t", data) == one
    assert serde.serialize("t", one)[5:] != serde.serialize("t", other)[5:]
    assert keys.sorted_key("t", data) == data


def test_maps_of_protobuf_keys_have_one_order() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="keys.proto", package="keys", syntax="proto3")
    message = file.message_type.add(name="Key")
    entry = message.nested_type.add(name="PartsEntry")
    entry.options.map_entry = True
    text = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
    for number, name in enumerate(("key", "value"), start=1):
        entry.field.add(name=name, number=number, type=text, label=1)
    parts = message.field.add(name="parts", number=1, label=3, type=11)
    parts.type_name = ".keys.Key.PartsEntry"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    key: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("keys.Key"))
    names = [f"k{number}" for number in range(20)]
    one = key(parts=dict.fromkeys(names, "x"))
    other = key(parts=dict.fromkeys(reversed(names), "x"))
    assert one == other
    for registry in (None, "mock://proto-keys"):
        serde: Any = for_keys(Serdes.protobuf(key, registry))
        data = serde.serialize("t", one)
        assert serde.serialize("t", other) == data
        assert data.endswith(one.SerializeToString(deterministic=True))
        assert serde.deserialize("t", data) == one


def test_values_keep_the_order_they_were_given() -> None:
    assert Serdes.json().serialize("topic", {"b": 1, "a": 2}) == b'{"b":1,"a":2}'
    assert (
        for_keys(Serdes.json()).serialize("topic", {"b": [{"d": 1, "c": 2}], "a": 2})
        == b'{"a":2,"b":[{"c":2,"d":1}]}'
    )
    assert (
        for_keys(Serdes.json(sort_keys=False)).serialize("topic", {"b": 1, "a": 2})
        == b'{"b":1,"a":2}'
    )


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(
    "python_type",
    [set[str], shapes.RichStruct, frozenset[int], dict[str, set[int]], shapes.RichModel],
)
def test_sets_are_refused_as_keys(make: Any, python_type: Any) -> None:
    with pytest.raises(TopologyError, match="a set has no order"):
        for_keys(make(python_type))


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (Serdes.float64(), 2**53 + 1), (Serdes.float64(), Decimal("0.1")), (Serdes.float64(), Fraction(1, 3)),
        (Serdes.int64(), 1.5), (Serdes.int32(), 2**31), (Serdes.bytes(), memoryview(b"abcd").cast("I")),
    ],
)  # fmt: skip
def test_plain_serdes_refuse_values_they_would_change(serde: Any, value: Any) -> None:
    with pytest.raises(SerializationError, match="can't serialise"):
        serde.serialize("topic", value)
    with pytest.raises(SerializationError):
        serde.serialize_batch("topic", [value])


def test_numbers_that_are_equal_are_written() -> None:
    assert Serdes.float64().deserialize("t", Serdes.float64().serialize("t", 5) or b"") == 5
    assert Serdes.int64().serialize("t", True) == Serdes.int64().serialize("t", 1)
    assert math.isnan(
        Serdes.float64().deserialize("t", Serdes.float64().serialize("t", math.nan) or b"")
    )


def test_json_null_is_a_tombstone() -> None:
    builder = StreamsBuilder()
    table = builder.table("rows", key_serde=str, value_serde=Serdes.json(), store="rows")
    table.to_stream().to("changes", key_serde=str, value_serde=Serdes.json())
    config = StreamsConfig(application_id="nulls", bootstrap_servers="unused:9092")
    with TopologyTestDriver(builder.build(), config) as driver:
        rows = driver.create_input_topic("rows", key_serde=str, value_serde=bytes)
        changes = driver.create_output_topic("changes", key_serde=str, value_serde=bytes)
        rows.pipe_input("a", b'{"n": null}')
        rows.pipe_input("a", b"null")

        assert [record.value for record in changes.read_records()] == [b'{"n":null}', None]
        assert driver.get_state_store("rows").get("a") is None


def test_equal_dicts_are_one_key_in_operators() -> None:
    builder = StreamsBuilder()
    events = builder.stream("events", key_serde=str, value_serde=Serdes.json())
    by_place = events.select_key(lambda event: dict(event["place"]))
    counts = by_place.group_by_key(key_serde=Serdes.json()).count(store="counts")
    counts.to_stream().to("counts", key_serde=Serdes.json(), value_serde=int)
    config = StreamsConfig(application_id="orders", bootstrap_servers="unused:9092")
    with TopologyTestDriver(builder.build(), config) as driver:
        given = driver.create_input_topic("events", key_serde=str, value_serde=Serdes.json())
        counted = driver.create_output_topic("counts", key_serde=bytes, value_serde=int)
        given.pipe_input("x", {"place": {"city": "Ulm", "country": "DE"}})
        given.pipe_input("x", {"place": {"country": "DE", "city": "Ulm"}})

        records = counted.read_records()
        assert [(record.key, record.value) for record in records] == [
            (b'{"city":"Ulm","country":"DE"}', 1),
            (b'{"city":"Ulm","country":"DE"}', 2),
        ]
        assert driver.get_state_store("counts").get({"country": "DE", "city": "Ulm"}).value == 2


@dataclass
class Priced:
    cents: int
    currency: str = "EUR"


@dataclass
class Order:
    total: Priced
    parts: list[Priced] = field(default_factory=list[Priced])
    by_name: dict[str, Priced | None] = field(default_factory=dict[str, Priced | None])
    note: str = "none"


@pytest.mark.parametrize("make", [Serdes.json, Serdes.msgpack])
@pytest.mark.parametrize(
    ("python_type", "older", "value"),
    [
        (Priced, {"cents": 1}, Priced(1)),
        (Priced | None, {"cents": 1}, Priced(1)),
        (list[Priced], [{"cents": 1}], [Priced(1)]),
        (
            Order,
            {"total": {"cents": 1}, "parts": [{"cents": 2}], "by_name": {"a": {"cents": 3}, "b": None}},
            Order(Priced(1), [Priced(2)], {"a": Priced(3), "b": None}),
        ),
    ],
)  # fmt: skip
def test_defaults_of_dataclasses_are_written_with_a_value_that_was_read(
    make: Any, python_type: Any, older: Any, value: Any
) -> None:
    serde = make(python_type)
    data = serde.serialize("topic", value)
    read = serde.deserialize("topic", make().serialize("topic", older))
    assert read == value
    assert serde.serialize("topic", read) == data
    assert for_keys(serde).serialize("topic", read) == for_keys(serde).serialize("topic", value)


@attrs.define(slots=False)
class PartialKey:
    a: int
    b: str = "q"
    c: tuple[int, ...] = ()

    @cached_property
    def length(self) -> int:
        return len(self.c)


@attrs.define
class LongerKey(PartialKey):
    z: int = 5


@dataclass(frozen=True)
class HolderOfKeys:
    key: PartialKey
    others: tuple[PartialKey, ...] = ()


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(
    ("python_type", "wrap"),
    [
        (PartialKey, lambda key: key),
        (LongerKey, lambda key: key),
        (PartialKey | None, lambda key: key),
        (tuple[PartialKey, int], lambda key: (key, 1)),
        (HolderOfKeys, lambda key: HolderOfKeys(key, (key,))),
    ],
)
def test_keys_of_attrs_classes_have_the_declared_order(
    make: Any, python_type: Any, wrap: Any
) -> None:
    cls: Any = LongerKey if python_type is LongerKey else PartialKey
    keys: Any = for_keys(make(python_type))
    parts: dict[str, Any] = {"a": 1, "b": "q", "c": []}
    expected = keys.serialize("t", wrap(cls(1)))
    for count in range(1, 4):
        for names in itertools.permutations(parts, count):
            if "a" in names:
                one = make(cls).deserialize(
                    "t", make().serialize("t", {n: parts[n] for n in names})
                )
                assert one == cls(1)
                assert make(cls).serialize("t", one) == make(cls).serialize("t", cls(1))
                assert keys.serialize("t", wrap(one)) == expected
    asked = cls(1)
    assert asked.length == 0
    assert keys.serialize("t", wrap(asked)) == expected
    assert keys.serialize_batch("t", [wrap(asked)] * 6) == [expected] * 6
