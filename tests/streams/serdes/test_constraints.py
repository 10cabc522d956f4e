import dataclasses
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pydantic.dataclasses
import pytest
from msgspec import Meta
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    field_validator,
)

from tidewheel.streams.errors import SerializationError, TopologyError
from tidewheel.streams.serdes import Serdes
from tidewheel.streams.serdes.type_parts import NO_SAMPLE, sample

FORMATS: list[Any] = [Serdes.json, Serdes.msgpack]


def _refused(value: str) -> str:
    if not value.startswith("id-"):
        raise ValueError(value)
    return value


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
CONSTRAINED: list[tuple[Any, Any, Any]] = [
    (Annotated[str, Meta(min_length=3)], "abc", "ab"),
    (Annotated[str, Meta(min_length=10**9)], None, "ab"),
    (Annotated[str, Meta(max_length=0)], "", "ab"),
    (Annotated[str, Meta(pattern="^[0-9]{4}$")], "1234", "abc"),
    (Annotated[bytes, Meta(min_length=2)], b"ab", b"a"),
    (Annotated[int, Meta(ge=10)], 11, 9),
    (Annotated[int, Meta(gt=10, multiple_of=7)], 14, 15),
    (Annotated[int, Meta(lt=-5)], -6, 0),
    (Annotated[int, Meta(ge=10, le=12, multiple_of=6)], 12, 11),
    (Annotated[float, Meta(gt=0.1, lt=0.2)], 0.15, 0.3),
    (Annotated[datetime, Meta(tz=False)], MOMENT.replace(tzinfo=None), MOMENT),
    (Annotated[time, Meta(tz=True)], time(1, tzinfo=UTC), time(1)),
    (Annotated[list[int], Meta(min_length=2)], [1, 2], [1]),
    (Annotated[dict[str, int], Meta(min_length=2)], {"a": 1, "b": 2}, {"a": 1}),
    (list[Annotated[int, Meta(ge=4)]], [4], [3]),
]


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(("hint", "good", "bad"), CONSTRAINED, ids=lambda part: str(part)[:60])
@pytest.mark.parametrize("kind", ["struct", "dataclass"])
def test_constraints_refuse_values_and_not_classes(
    make: Any, kind: str, hint: Any, good: Any, bad: Any
) -> None:
    if kind == "struct":
        python_type: Any = msgspec.defstruct("Constrained", [("n", hint)])
    else:
        python_type = dataclasses.make_dataclass("Constrained", [("n", hint)])
    serde = make(python_type)

    if good is not None:
        value = python_type(good)
        assert serde.deserialize("t", serde.serialize("t", value)) == value
    for count in (1, 6):
        with pytest.raises(SerializationError):
            serde.serialize_batch("t", [python_type(bad)] * count)


@pytest.mark.parametrize(
    "hint", [hint for hint, *_ in CONSTRAINED if "10000000" not in str(hint)], ids=str
)
def test_samples_fit_their_constraints(hint: Any) -> None:
    found = sample(hint)
    if found is NO_SAMPLE:  # texts of a pattern and dicts with several entries are not generated
        assert "pattern" in str(hint) or "dict" in str(hint) or "max_length" in str(hint)
    else:
        assert msgspec.convert(found, hint) == found


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(
    ("hint", "good"),
    [
        (Annotated[int, Field(ge=10)], 10),
        (Annotated[str, Field(pattern="^[0-9]+$")], "12"),
        (Annotated[str, StringConstraints(min_length=4)], "abcd"),
        (Annotated[str, AfterValidator(_refused)], "id-1"),
        (Annotated[Decimal, Field(gt=5, lt=6)], Decimal("5.5")),
    ],
)  # fmt: skip
def test_constraints_of_pydantic_do_not_refuse_classes(make: Any, hint: Any, good: Any) -> None:
    model: Any = pydantic.create_model("Model", n=(hint, ...))
    with_default: Any = pydantic.create_model("WithDefault", n=(hint, good))
    plain: Any = dataclasses.make_dataclass("Plain", [("n", hint)])
    holder: Any = dataclasses.make_dataclass("Holder", [("n", hint), ("model", model)])
    values = [
        model(n=good),
        with_default(),
        TypeAdapter[Any](pydantic.dataclasses.dataclass(plain)).validate_python({"n": good}),
        holder(good, model(n=good)),
    ]
    for value in values:
        serde = make(type(value))
        assert serde.deserialize("t", serde.serialize("t", value)) == value


@pydantic.dataclasses.dataclass
class Aliased:
    a: int = Field(ge=10)
    b: str = Field(default="q", alias="B")


@pydantic.dataclasses.dataclass
class Counting:
    a: int

    @field_validator("a")
    @classmethod
    def _count(cls, value: int) -> int:
        return value + 1


@pydantic.dataclasses.dataclass
class Excluding:
    a: int
    b: int = Field(default=0, exclude=True)


@pydantic.dataclasses.dataclass(config=ConfigDict(extra="allow"))
class Open:
    a: int


@dataclass
class Holding:
    inner: Aliased
    more: list[Aliased] = field(default_factory=list[Aliased])


def _aliased(a: int, b: str) -> Aliased:
    return TypeAdapter(Aliased).validate_python({"a": a, "B": b})


@pytest.mark.parametrize("make", FORMATS)
def test_pydantic_reads_and_writes_its_dataclasses(make: Any) -> None:
    one, other = _aliased(10, "x"), _aliased(11, "y")
    for python_type, value in (
        (Aliased, one),
        (Aliased | None, one),
        (list[Aliased], [one, other]),
        (Holding, Holding(one, [other])),
    ):
        serde = make(python_type)
        data = serde.serialize("t", value)
        assert b"B" in data
        assert serde.deserialize("t", data) == value
        assert serde.serialize_batch("t", [value] * 6) == [data] * 6
    with pytest.raises(SerializationError, match=r"greater_than_equal at \$\.a"):
        make(Aliased).deserialize("t", make().serialize("t", {"a": 1}))


@pytest.mark.parametrize("make", FORMATS)
def test_dataclasses_of_pydantic_that_lose_fields_are_refused(make: Any) -> None:
    with pytest.raises(TopologyError, match=r"at \$\.a"):
        make(Counting)
    for value, place in ((Excluding(1, 2), r"\$\.b"), (Open(a=1, z=5), r"\$\.z")):  # type: ignore[call-arg]
        for count in (1, 6):
            with pytest.raises(SerializationError, match=f"at {place}"):
                make(type(value)).serialize_batch("t", [value] * count)


class SometimesExcluding(BaseModel):
    a: int
    b: int = Field(default=0, exclude_if=lambda value: value > 5)


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("count", [1, 2, 6])
def test_values_that_exclude_if_drops_are_refused(make: Any, count: int) -> None:
    serde = make(SometimesExcluding)
    kept, dropped = SometimesExcluding(a=1, b=2), SometimesExcluding(a=1, b=9)

    assert (
        serde.deserialize_batch("t", serde.serialize_batch("t", [kept] * count)) == [kept] * count
    )
    with pytest.raises(SerializationError, match=r"at \$\.b"):
        serde.serialize_batch("t", [dropped] * count)


@dataclass
class Place:
    x: int


@dataclass
class Labelled(Place):
    label: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and other.x == self.x

    __hash__ = None  # type: ignore[assignment]


class PlaceStruct(msgspec.Struct):
    x: int


class LabelledStruct(PlaceStruct):
    label: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlaceStruct) and other.x == self.x

    __hash__ = None  # type: ignore[assignment]


class PlaceModel(BaseModel):
    x: int


class LabelledModel(PlaceModel):
    label: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlaceModel) and other.x == self.x

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Tour:
    at: Place
    via: list[Place] = field(default_factory=list[Place])


class TourModel(BaseModel):
    at: PlaceModel


@dataclass
class Chain:
    x: int
    after: "Chain | None" = None


@dataclass
class LabelledChain(Chain):
    label: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and other.x == self.x

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize(
    ("python_type", "value", "place"),
    [
        (Tour, Tour(Labelled(1, "a")), r"\$\.at"),
        (Tour, Tour(Place(1), [Labelled(1, "a")]), r"\$\.via\[0\]"),
        (list[PlaceStruct], [LabelledStruct(1, "a")], r"\$\[0\]"),
        (TourModel, TourModel(at=LabelledModel(x=1, label="a")), r"\$\.at"),
        (Chain, Chain(1, LabelledChain(2, None, "a")), r"\$\.after"),
    ],
    ids=str,
)
def test_fields_of_a_nested_subclass_are_not_lost(
    make: Any, python_type: Any, value: Any, place: str, count: int
) -> None:
    serde = make(python_type)
    with pytest.raises(SerializationError, match=f"at {place}: Labelled.* is read back as"):
        serde.serialize("t", value)
    with pytest.raises(SerializationError, match=f"at {place}: Labelled.* is read back as"):
        serde.serialize_batch("t", [value] * count)
