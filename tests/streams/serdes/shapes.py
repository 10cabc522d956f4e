import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypedDict

import msgspec
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    computed_field,
    field_serializer,
    field_validator,
)


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Word(StrEnum):
    YES = "yes"
    NO = "no"


class Point(NamedTuple):
    x: int
    y: int


class Row(TypedDict):
    id: int
    name: str


class FlatStruct(msgspec.Struct):
    id: int
    name: str
    size: float
    ok: bool | None = None


@dataclass
class FlatData:
    id: int
    name: str
    size: float
    ok: bool | None = None


class FlatModel(BaseModel):
    id: int
    name: str
    size: float
    ok: bool | None = None


class RichStruct(msgspec.Struct):
    at: datetime
    day: date
    hour: time
    span: timedelta
    amount: Decimal
    key: uuid.UUID
    raw: bytes
    color: Color
    level: Level
    word: Word
    tags: set[int]
    pair: tuple[int, str]
    point: Point
    counts: dict[int, str]
    either: int | str
    inner: FlatStruct


@dataclass
class RichData:
    at: datetime
    day: date
    hour: time
    span: timedelta
    amount: Decimal
    key: uuid.UUID
    raw: bytes
    color: Color
    level: Level
    word: Word
    tags: set[int]
    pair: tuple[int, str]
    point: Point
    counts: dict[int, str]
    either: int | str
    inner: FlatData


class RichModel(BaseModel):
    at: datetime
    day: date
    hour: time
    span: timedelta
    amount: Decimal
    key: uuid.UUID
    raw: bytes
    color: Color
    level: Level
    word: Word
    tags: set[int]
    pair: tuple[int, str]
    point: Point
    counts: dict[int, str]
    either: int | str
    inner: FlatModel


@dataclass
class Derived:
    id: int
    _id: int = 0
    total: int = field(init=False, default=3)
    tags: list[str] = field(default_factory=list[str])
    unit: ClassVar[str] = "EUR"


@dataclass(eq=False)
class Unequal:
    id: int
    tags: list[Any] = field(default_factory=list[Any])


@dataclass
class Lax:
    id: int
    note: Any = field(compare=False, default=None)


@dataclass(frozen=True, slots=True)
class Frozen:
    id: int
    parts: tuple[str, ...] = ()


class Renamed(msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    user_id: int
    home_town: str = "Ulm"


class Listed(msgspec.Struct, array_like=True):
    user_id: int
    home_town: str = "Ulm"


class Aliased(BaseModel):
    user_id: int = Field(alias="userId")
    home_town: str = Field(default="Ulm", alias="homeTown")


class AliasedNested(BaseModel):
    one: Aliased
    many: list[Aliased] = []


class Hidden(BaseModel):
    id: int
    secret: str = Field(default="", exclude=True)
    _cache: int = PrivateAttr(default=0)

    def remember(self, cache: int) -> None:
        self._cache = cache


class Computed(BaseModel):
    id: int

    def _twice(self) -> int:
        return self.id * 2

    #: Written, but ignored when read.
    double = computed_field(return_type=int)(property(_twice))


class Serialised(BaseModel):
    at: datetime

    @field_serializer("at")
    def write(self, at: datetime) -> str:
        return at.isoformat(timespec="seconds")


class Validated(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def strip(cls, name: str) -> str:
        return name.strip()


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: int


class Password(BaseModel):
    name: str
    secret: SecretStr


class OpenPassword(BaseModel):
    secret: SecretStr

    @field_serializer("secret")
    def write(self, secret: SecretStr) -> str:
        return secret.get_secret_value()


class ForbiddenExtra(Computed):
    model_config = ConfigDict(extra="forbid")


class OneWay(BaseModel):
    user_id: int = Field(serialization_alias="userId")


class Constrained(msgspec.Struct):
    size: Annotated[int, msgspec.Meta(ge=0)]


class Cat(msgspec.Struct):
    kind: Literal["cat"]
    lives: int


class Dog(msgspec.Struct):
    kind: Literal["dog"]
    lives: int


class Circle(msgspec.Struct):
    radius: float


class Square(msgspec.Struct):
    side: float
    radius: float = 0.0


class TaggedA(msgspec.Struct, tag=True):
    id: int


class TaggedB(msgspec.Struct, tag=True):
    id: int


@dataclass
class DataCat:
    lives: int
    kind: Literal["cat"] = "cat"


@dataclass
class DataDog:
    lives: int
    kind: Literal["dog"] = "dog"


@dataclass
class DataCircle:
    radius: float


@dataclass
class DataSquare:
    side: float


class ModelCat(BaseModel):
    lives: int
    kind: Literal["cat"] = "cat"


class ModelDog(BaseModel):
    lives: int
    kind: Literal["dog"] = "dog"


class ModelCircle(BaseModel):
    radius: float


class ModelSquare(BaseModel):
    side: float


@dataclass
class HolderOfUnion:
    one: DataCat | DataDog
    many: Mapping[str, DataCircle | DataSquare]
