import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from tidewheel.streams.errors import SerializationError, TopologyError
from tidewheel.streams.serdes import Serde, Serdes


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Struct(msgspec.Struct):
    id: int
    name: str
    color: Color = Color.RED
    tags: list[str] = []


@dataclass
class Data:
    id: int
    name: str
    color: Color = Color.RED
    tags: list[str] = field(default_factory=list[str])


class Model(BaseModel):
    id: int
    name: str
    color: Color = Color.RED
    tags: list[str] = []


class Rich(BaseModel):
    at: datetime
    amount: Decimal
    key: uuid.UUID
    raw: bytes
    inner: Model | None = None


class Table(TypedDict):
    id: int
    name: str


FORMATS: list[Any] = [Serdes.json, Serdes.msgpack]
TYPES: list[Any] = [Struct, Data, Model]


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("python_type", TYPES)
def test_objects_read_back_equal(make: Any, python_type: Any) -> None:
    serde: Serde[Any] = make(python_type)

    @settings(max_examples=40)
    @given(
        st.lists(
            st.builds(
                python_type,
                id=st.integers(-(2**63), 2**63 - 1),
                name=st.text(),
                color=st.sampled_from(Color),
                tags=st.lists(st.text(), max_size=3),
            ),
            max_size=4,
        )
    )
    def law(batch: list[Any]) -> None:
        data = serde.serialize_batch("topic", batch)
        assert data == [serde.serialize("topic", value) for value in batch]
        present = [item for item in data if item is not None]
        assert serde.deserialize_batch("topic", present) == batch
        assert [serde.deserialize("topic", item) for item in present] == batch

    law()


@pytest.mark.parametrize("make", FORMATS)
def test_models_with_rich_fields_read_back_equal(make: Any) -> None:
    value = Rich(
        at=datetime(2026, 1, 2, tzinfo=UTC), amount=Decimal("1.10"), key=uuid.UUID(int=5), raw=b"abc",
        inner=Model(id=1, name="x"),
    )  # fmt: skip
    serde: Serde[Rich] = make(Rich)

    assert serde.deserialize("topic", serde.serialize("topic", value) or b"") == value


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(
    ("python_type", "value"),
    [(list[int], [1, 2]), (dict[str, float], {"a": 1.5}), (int | str, "x"), (Table, {"id": 1, "name": "n"})],
)  # fmt: skip
def test_plain_types_are_checked(make: Any, python_type: Any, value: Any) -> None:
    serde = make(python_type)

    assert serde.deserialize("topic", serde.serialize("topic", value)) == value
    with pytest.raises(SerializationError):
        serde.deserialize("topic", make().serialize("topic", [{"not": None}]))


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(
    ("python_type", "value", "reason"),
    [
        (Struct, {"id": "x", "name": "n"}, r"Expected `int`, got `str` - at `\$.id`"),
        (Data, {"id": 1}, r"missing required field `name`"),
        (Model, {"id": "x", "name": "n"}, r"int_parsing at \$.id"),
        (Model, {"id": 1}, r"missing at \$.name"),
        (Struct, {"id": 1, "name": "n", "color": "canary"}, r"Invalid enum value '…'"),
        (Literal["a", "b"], "canary", r"Invalid enum value '…'"),
    ],
)
def test_other_shapes_are_refused(make: Any, python_type: Any, value: Any, reason: str) -> None:
    data = make().serialize("topic", value)
    with pytest.raises(SerializationError, match=reason) as caught:
        make(python_type).deserialize("topic", data)
    with pytest.raises(SerializationError, match=reason):
        make(python_type).deserialize_batch("topic", [data])

    assert "canary" not in str(caught.value)
    assert caught.value.__context__ is None


class Picky(BaseModel):
    secret: str

    @field_validator("secret")
    @classmethod
    def refuse(cls, value: str) -> str:
        raise RuntimeError(value)


@pytest.mark.parametrize("make", FORMATS)
def test_errors_of_the_users_own_validators(make: Any) -> None:
    data = make().serialize("topic", {"secret": "canary"})
    with pytest.raises(SerializationError, match="raised RuntimeError") as caught:
        make(Picky).deserialize("topic", data)

    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("make", FORMATS)
def test_a_model_with_wrong_values_is_refused(make: Any) -> None:
    value = Model(id=1, name="x")
    value.id = "canary"  # type: ignore[assignment]

    with pytest.raises(SerializationError) as caught:
        make(Model).serialize("topic", value)

    assert "canary" not in str(caught.value)


class Ordinary: ...


@pytest.mark.parametrize("make", FORMATS)
def test_types_without_a_decoder_are_refused_at_build_time(make: Any) -> None:
    with pytest.raises(TopologyError, match=r"\(Ordinary\): .*msgspec.Struct, a dataclass"):
        make(Ordinary)


def test_typed_serdes_are_made_once() -> None:
    typed = [Serdes.json(Struct), Serdes.json(Data), Serdes.msgpack(Struct), Serdes.json()]
    again = [Serdes.json(Struct), Serdes.json(Data), Serdes.msgpack(Struct), Serdes.json()]

    assert [id(serde) for serde in typed] == [id(serde) for serde in again]
    assert len({id(serde) for serde in typed}) == len(typed)


class Measured(msgspec.Struct):
    at: dict[str, list[float | None]]


@dataclass
class MeasuredData:
    at: dict[str, list[float | None]]


class MeasuredModel(BaseModel):
    at: dict[str, list[float | None]]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("python_type", [Measured, MeasuredData, MeasuredModel])
def test_numbers_that_json_cannot_represent_are_refused(python_type: Any, number: float) -> None:
    good = python_type(at={"ulm": [1.0, None]})
    bad = python_type(at={"ulm": [1.0, None, number]})
    serde = Serdes.json(python_type)

    assert serde.deserialize("topic", serde.serialize("topic", good) or b"") == good
    with pytest.raises(
        SerializationError, match=rf"\$\.at\[str key\]\[2\] is {number}, which JSON"
    ):
        serde.serialize("topic", bad)
    with pytest.raises(SerializationError, match=r"\$\.at\[str key\]\[2\] is"):
        serde.serialize_batch("topic", [good, bad])
    packed = Serdes.msgpack(python_type)
    read = packed.deserialize("topic", packed.serialize("topic", bad) or b"")
    assert str(read.at["ulm"][2]) == str(number)


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(
    ("python_type", "value", "reason"),
    [
        (Struct, Data(id=1, name="x"), "expected Struct, got Data"),
        (Data, {"id": 1, "name": "canary"}, "expected Data, got dict"),
        (Model, {"id": 1, "name": "canary"}, "expected Model, got dict"),
        (int, True, "Expected `int`, got `bool`"),
        (list[int], [1, "canary"], r"Expected `int`, got `str` - at `\$\[1\]`"),
        (list[Struct], [Data(id=1, name="canary")], r"at \$\[0\]: Data is read back as Struct"),
        (list[Model], [Model(id=1, name="x"), 5], r"model_type at \$\[1\]"),
        (Table, {"id": 1}, "missing required field `name`"),
        (Color, "green", "Invalid enum value"),
        (int | str, 1.5, r"Expected `int \| str`, got `float`"),
    ],
)
def test_values_that_could_not_be_read_are_not_written(
    make: Any, python_type: Any, value: Any, reason: str
) -> None:
    serde: Serde[Any] = make(python_type)
    with pytest.raises(SerializationError, match=f"can't serialise .*{reason}") as caught:
        serde.serialize("topic", value)
    with pytest.raises(SerializationError, match=f"can't serialise .*{reason}"):
        serde.serialize_batch("topic", [value])

    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("make", FORMATS)
def test_models_within_other_types_are_read(make: Any) -> None:
    serde: Serde[Any] = make(list[Model])
    value = [Model(id=1, name="x"), Model(id=2, name="y")]

    assert serde.deserialize("topic", serde.serialize("topic", value) or b"") == value


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("python_type", [list[Ordinary], dict[str, Ordinary | None]])
def test_ordinary_classes_within_other_types_are_refused_at_build_time(
    make: Any, python_type: Any
) -> None:
    with pytest.raises(TopologyError, match="Ordinary is an ordinary class"):
        make(python_type)


class Card(msgspec.Struct, forbid_unknown_fields=True):
    number: str

    def __post_init__(self) -> None:
        if self.number.startswith("4"):
            raise ValueError(f"bad card {self.number} - at `$.{self.number}`")
        if self.number.startswith("5"):
            raise msgspec.ValidationError(f"bad card {self.number}")
        if self.number.startswith("6"):
            raise OverflowError(f"bad card {self.number}")


@dataclass
class CardData:
    number: str

    def __post_init__(self) -> None:
        if self.number.startswith(("4", "5")):
            raise TypeError(f"bad card {self.number}")


class CardModel(BaseModel):
    number: str
    by_owner: dict[str, int] = Field(default_factory=dict)

    @field_validator("number")
    @classmethod
    def check(cls, value: str) -> str:
        if value.startswith("4"):
            raise TypeError(f"bad card {value}")
        if value.startswith("5"):
            raise ValueError(f"bad card {value}")
        return value


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Tagged(msgspec.Struct, tag=True):
    a: int


class OtherTagged(msgspec.Struct, tag=True):
    a: int


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(
    ("python_type", "value", "reason"),
    [
        (Card, {"number": "4111'1111"}, "raised ValueError"),
        (Card, {"number": "5111'1111"}, "raised ValidationError"),
        (Card, {"number": "6111'1111"}, "raised OverflowError"),
        (list[Card], [{"number": "4111'1111"}], r"raised ValueError - at `\$\[0\]`"),
        (Card, {"number": "1", "4111'1111": 2}, "Object contains unknown field '…'"),
        (CardData, {"number": "4111'1111"}, "raised TypeError"),
        (CardModel, {"number": "4111'1111"}, "raised TypeError"),
        (CardModel, {"number": "5111'1111"}, r"value_error at \$\.number"),
        (CardModel, {"number": "1", "by_owner": {"4111'1111": "x"}}, r"int_parsing at \$\.by_owner\[str key\]"),
        (dict[int, CardModel], {41111111: {"number": "5"}}, r"value_error at \$\[(int|str) key\]\.number"),
        (list[CardModel], [{"number": "5"}], r"value_error at \$\[[^]]*\]\.number"),
        (dict[str, int], {"4111'1111": "x"}, r"at `\$\[\.\.\.\]`"),
        (Level, 41111111, "Invalid enum value '…'"),
        (list[Level], [41111111], r"Invalid enum value '…' - at `\$\[0\]`"),
        (Literal[1, 2], 41111111, "Invalid enum value '…'"),
        (Literal["a", "b"], "4111'1111", "Invalid enum value '…'"),
        (Tagged | OtherTagged, {"type": "4111'1111"}, r"Invalid value '…' - at `\$\.type`"),
    ],
    ids=str,
)  # fmt: skip
def test_errors_contain_no_data(make: Any, python_type: Any, value: Any, reason: str) -> None:
    data = msgspec.json.encode(value) if make is Serdes.json else msgspec.msgpack.encode(value)
    with pytest.raises(SerializationError, match=reason) as caught:
        make(python_type).deserialize("t", data)
    assert "111" not in str(caught.value)
    with pytest.raises(SerializationError) as caught:
        make(python_type).from_plain(value)
    assert "111" not in str(caught.value)


@pytest.mark.parametrize(
    ("serde", "value", "place"),
    [
        (Serdes.json(), {"cards": {"4111111": {1}}}, r"\$\.cards\[str key\]"),
        (Serdes.json(), {"ann@example.com": float("nan")}, r"\$\[str key\]"),
        (Serdes.json(), {"line-items": [{1}]}, r"\$\.line-items\[0\]"),
        (Serdes.json(dict[str, float]), {"ann": float("nan")}, r"\$\[str key\]"),
        (Serdes.json(dict[str, int]), {"ann": "x"}, r"\$\[\.\.\.\]"),
        (Serdes.msgpack(dict[str, tuple[int, ...]]), {"ann": [1]}, r"\$\[str key\]"),
        (Serdes.avro({"type": "map", "values": "int"}), {"ann": "x"}, r"\$\[str key\]"),
        (Serdes.avro({"type": "record", "name": "Z", "fields": []}), {"411111": 1}, r"specifies: \[str key\]"),
        (Serdes.json_schema({"additionalProperties": {"type": "integer"}}), {"ann": "x"}, r"\$\[str key\]:"),
        (Serdes.json_schema({"properties": {"ann": {"items": {"type": "integer"}}}}), {"ann": ["x"]}, r"\$\.ann\[0\]:"),
        (Serdes.json_schema({"properties": {"ann": {"type": "integer"}}}, "mock://names"), {"ann": "x"}, r"\$\.ann:"),
    ],
    ids=str,
)  # fmt: skip
def test_keys_of_dicts_are_data(serde: Any, value: Any, place: str) -> None:
    with pytest.raises(SerializationError, match=place) as caught:
        serde.serialize("t", value)
    assert "111" not in str(caught.value)
    assert "example.com" not in str(caught.value)
