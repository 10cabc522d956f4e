"""Closed types: the type check agrees with reading back."""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.streams.serdes import shapes
from tidewheel.streams.errors import SerializationError
from tidewheel.streams.serdes import Serdes
from tidewheel.streams.serdes.exact_fields import exact_fields
from tidewheel.streams.serdes.read_back import difference

FORMATS: list[Any] = [msgspec.json, msgspec.msgpack]


class Side(enum.Enum):
    BUY = "buy"
    SELL = "sell"


class Rank(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Item(msgspec.Struct):
    sku: str
    count: int = 1


class Order(msgspec.Struct, kw_only=True, frozen=True):
    id: UUID
    at: datetime
    day: date
    hour: time
    span: timedelta
    amount: Decimal
    weight: float | None
    side: Side
    rank: Rank
    kind: Literal["new", "old", 1]
    raw: bytes
    items: list[Item]
    first: Item | None
    tags: dict[str, str]
    counts: dict[int, float]
    words: tuple[str, ...]
    seen: set[int]
    mixed: int | str | None


class Priced(Item):
    aprice: float = 0.0


@dataclass
class Plain:
    name: str
    size: float
    count: int = 0


@dataclass(slots=True, frozen=True)
class Slotted:
    name: str
    size: float
    count: int = 0


@dataclass
class Holder:
    one: Plain
    many: list[Slotted] = field(default_factory=list)


class Model(BaseModel):
    name: str
    size: float
    count: int | None = None


NAIVE = datetime(2026, 1, 2, tzinfo=UTC).replace(tzinfo=None)
GOOD: dict[str, Any] = {
    "id": UUID(int=5),
    "at": datetime(2026, 1, 2, tzinfo=UTC),
    "day": date(2026, 1, 2),
    "hour": time(1, 2),
    "span": timedelta(days=-1, seconds=5),
    "amount": Decimal("1.10"),
    "weight": 1.5,
    "side": Side.BUY,
    "rank": Rank.LOW,
    "kind": "new",
    "raw": b"x",
    "items": [Item("a"), Item("b", 2)],
    "first": None,
    "tags": {"a": "b"},
    "counts": {1: 1.5},
    "words": ("a", "b"),
    "seen": {1, 2},
    "mixed": 1,
}

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(2**70), 2**70) | st.floats() | st.text() | st.binary()
    | st.uuids() | st.datetimes(timezones=st.none() | st.timezones()) | st.dates() | st.times() | st.timedeltas()
    | st.decimals() | st.sampled_from([*Side, *Rank, "new", 1, True]) | st.builds(Item, st.text(), st.integers())
    | st.sampled_from([*shapes.Word, -0.0, 2**53 + 1, math.inf]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=2)
    | st.lists(inner, max_size=2).map(tuple) | st.builds(Item, inner, inner) | st.sets(st.integers(), max_size=2),
    max_leaves=4,
)  # fmt: skip


def read_back(library: Any, python_type: Any, value: Any) -> str | None:
    try:
        back = library.decode(library.encode(value), type=python_type)
    except Exception as error:  # noqa: BLE001 - whatever a library raises
        return repr(error)
    return difference(value, back)


@pytest.mark.parametrize("library", FORMATS)
@pytest.mark.parametrize("name", list(GOOD))
def test_a_part_of_any_value_is_exact_only_if_it_reads_back(library: Any, name: str) -> None:
    check = exact_fields(Order, library is msgspec.json)

    @settings(max_examples=60)
    @given(ANYTHING)
    def law(part: Any) -> None:
        order = Order(**{**GOOD, name: part})
        if check([Order(**GOOD), order]):
            try:
                library.encode(order)
            except (OverflowError, UnicodeEncodeError):
                return  # the encoder rejects it: too large numbers, lone surrogates
            assert read_back(library, Order, order) is None

    law()


@pytest.mark.parametrize("library", FORMATS)
def test_values_with_exact_fields_are_not_read_back(library: Any) -> None:
    is_json = library is msgspec.json
    closed: list[tuple[Any, list[Any]]] = [
        (Order, [Order(**GOOD), Order(**{**GOOD, "first": Item("x"), "weight": None, "mixed": "y"})]),
        (Item, [Item("a"), Item("b", 2)]),
        (Priced, [Priced("a", 1, 2.5), Priced("b", 2, -1.0)]),
        (Plain, [Plain("a", 1.5), Plain("b", 2.5, 7)]),
        (Slotted, [Slotted("a", 1.5), Slotted("b", 2.5, 7)]),
        (Holder, [Holder(Plain("a", 1.5), [Slotted("b", 2.5)]), Holder(Plain("a", 1.5))]),
        (Model, [Model(name="a", size=1.5), Model(name="b", size=2.5, count=7)]),
        (list[Item], [[Item("a")], []]),
        (dict[str, list[int]], [{"a": [1]}, {}]),
        (int, [1, 2**60]), (str, ["a", ""]), (float, [1.5, -0.0]), (UUID, [UUID(int=1)]),
        (datetime, [NAIVE, NAIVE.replace(tzinfo=UTC)]),
        (Side, [Side.BUY, Side.SELL]),
    ]  # fmt: skip
    for python_type, values in closed:
        check = exact_fields(python_type, is_json)
        for _ in range(2):
            assert check(values), python_type
            assert check(values * 50), python_type
            for value in values:  # encoding moves a dataclass's fields to its `__dict__`
                if not isinstance(value, BaseModel):
                    library.encode(value)
        assert check([])


def wrong(**parts: Any) -> Order:
    return Order(**{**GOOD, **parts})


class Text(str):
    __slots__ = ()


class Other(Item): ...


@pytest.mark.parametrize(
    ("python_type", "value"),
    [
        (Order, wrong(weight=math.nan)), (Order, wrong(weight=math.inf)), (Order, wrong(weight=2**53 + 1)),
        (Order, wrong(kind=True)), (Order, wrong(kind="newer")), (Order, wrong(kind=[1])), (Order, wrong(items=(Item("a"),))),
        (Order, wrong(items=[Other("a")])), (Order, wrong(items=[Item("a", True)])), (Order, wrong(items=None)),
        (Order, wrong(first=Other("a"))), (Order, wrong(tags={"a": 1})), (Order, wrong(tags={1: "a"})),
        (Order, wrong(counts={True: 1.5})), (Order, wrong(counts={1: math.nan})), (Order, wrong(words=["a"])),
        (Order, wrong(seen={True})), (Order, wrong(seen=frozenset({1}))), (Order, wrong(side="buy")), (Order, wrong(rank=1)),
        (Order, wrong(at=datetime(2026, 1, 2, tzinfo=timezone(timedelta(seconds=1))))), (Order, wrong(at=date(2026, 1, 2))),
        (Order, wrong(day=NAIVE)), (Order, wrong(mixed=True)), (Order, wrong(amount=Decimal("NaN"))),
        (Order, wrong(amount=Decimal("sNaN"))), (Order, wrong(raw=bytearray(b"x"))), (Order, wrong(id="x")),
        (Plain, Plain("a", 1)), (Plain, Plain("a", math.nan)), (Plain, Plain(None, 1.0)),  # type: ignore[arg-type]
        (Slotted, Slotted(1, 1.0)),  # type: ignore[arg-type]
        (Holder, Holder(Plain("a", 1), [])), (Holder, Holder(Plain("a", 1.0), [Slotted("b", 1)])),
        (Model, Model.model_construct(name="a", size=1)), (Model, Model.model_construct(name="a", size=math.inf)),
        (Model, Model.model_construct(name="a")), (Item, Other("a")), (int, True), (str, Text("a")), (float, 1),
    ],
)  # fmt: skip
def test_values_with_inexact_fields_are_read_back(python_type: Any, value: Any) -> None:
    check = exact_fields(python_type, is_json=True)
    good: dict[Any, Any] = {Order: Order(**GOOD), Plain: Plain("a", 1.5), Slotted: Slotted("a", 1.5), Item: Item("a"), int: 1, str: "a", float: 1.5}  # fmt: skip
    assert not check([value])
    if python_type in good:
        assert not check([good[python_type]] * 9 + [value])
        assert check([good[python_type]] * 9)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_has_no_such_numbers_in_any_batch(value: float) -> None:
    serde = Serdes.json(Plain)
    for others in ([], [1.0] * 9, [-math.inf, 1.0], [1e308] * 9):
        batch = [Plain("a", size) for size in (*others, value)]
        with pytest.raises(SerializationError, match=r"\$\.size is -?(nan|inf)"):
            serde.serialize_batch("t", batch)
    great = [Plain("a", 1e308)] * 9
    assert (
        serde.deserialize_batch("t", [x or b"" for x in serde.serialize_batch("t", great)]) == great
    )
    assert len(Serdes.msgpack(Plain).serialize_batch("t", [Plain("a", value)] * 9)) == 9


@pytest.mark.parametrize("make", [Serdes.json, Serdes.msgpack])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 50])
def test_batches_of_every_size_have_the_bytes_of_single_values(make: Any, count: int) -> None:
    for python_type, one in (
        (Order, Order(**{**GOOD, "tags": {"a\nb": "c\r\nd\n"}})),
        (Plain, Plain("a\nb", 1.5)),
        (Model, Model(name="a\nb", size=1.5)),
        (str, "a\n"),
    ):
        serde: Any = make(python_type)
        wanted = serde.serialize("t", one)
        assert serde.serialize_batch("t", [one] * count) == [wanted] * count
        assert serde.deserialize("t", wanted) == one


def test_raw_json_with_line_feeds_keeps_its_place() -> None:
    class Wrapped(msgspec.Struct):
        raw: msgspec.Raw

    serde = Serdes.json(Wrapped)
    values = [Wrapped(msgspec.Raw(b'{"a":\n%d}' % number)) for number in range(9)]
    data = serde.serialize_batch("t", values)
    assert data == [b'{"raw":{"a":\n%d}}' % number for number in range(9)]


def test_types_that_are_not_closed() -> None:
    class Node(msgspec.Struct):
        after: "list[Node]"

    class Hooked(msgspec.Struct):
        id: int

        def __post_init__(self) -> None:
            self.id += 1

    @dataclass
    class Checked:
        id: int

        def __post_init__(self) -> None:
            self.id += 1

    class Odd(enum.Enum):
        A = (1, 2)

    values: list[tuple[Any, Callable[[], Any]]] = [
        (Node, lambda: Node([])),
        (Hooked, lambda: Hooked(1)),
        (Checked, lambda: Checked(1)),
        (Odd, lambda: Odd.A),
        (Any, lambda: 1),
        (list, lambda: [1]),
        (dict[str, Any], dict),
        (Annotated[int, msgspec.Meta(ge=0)], lambda: 1),
        (str | datetime, lambda: "2026-01-02T00:00:00"),
        (shapes.Unequal, lambda: shapes.Unequal(1, [])),
    ]
    for python_type, make in values:
        assert not exact_fields(python_type, is_json=True)([make()]), python_type


def test_an_object_without_a_field_is_an_error() -> None:
    lacking = Plain("a", 1.5)
    del lacking.name
    serde = Serdes.json(Plain)
    for count in (1, 9):
        with pytest.raises(SerializationError):
            serde.serialize_batch("t", [Plain("a", 1.5)] * count + [lacking])


def test_many_fields() -> None:
    names = [f"f{number}" for number in range(60)]
    wide = make_dataclass("Wide", [(name, int) for name in names])
    check = exact_fields(wide, is_json=True)
    good = [wide(*range(60)), wide(*range(60))]
    assert check(good * 5)
    good[1].f33 = "x"
    assert not check(good * 5)
