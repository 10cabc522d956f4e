"""One query: its kind, its parameters, and the stores that answer it."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from tidewheel.rebalance.model import Shard, TaskId, TopicPartition
from tidewheel.state_stores.layout.segments import TIME_MAX
from tidewheel.state_stores.spec import StoreKind
from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.definitions.isolation_level import IsolationLevel
from tidewheel.streams.web.query_text import BadQueryError

_KEY_VALUE: Final = frozenset({StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE})
_WINDOWS: Final = frozenset({StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW})
_SESSIONS: Final = frozenset({StoreKind.SESSION})
_VERSIONED: Final = frozenset({StoreKind.VERSIONED})

#: Rows of a store as (key, value); `start` and such become part of the key.
Rows = Iterator[tuple[Any, Any]]


class Part(NamedTuple):
    """A partition, or one of its shards."""

    partition: int
    shard: Shard | None = None

    def has(self, task: TaskId) -> bool:
        return task.partition == self.partition and self.shard in (None, task.shard)

    def __str__(self) -> str:
        return str(self.partition) if self.shard is None else f"{self.partition}/{self.shard}"


class Arguments(NamedTuple):
    """Parameters of a query for one store: keys as its serde has them, times in ms."""

    keys: Mapping[str, Any]
    times: Mapping[str, int]
    reverse: bool


class Shape(NamedTuple):
    """A kind of query for some kinds of stores.

    Attributes:
        keys: Parameters that are keys; `key` is required, and chooses the partition.
        times: Parameters that are times; the value is their default, None if they are required.
        read: Reads a store.
    """

    kinds: frozenset[StoreKind]
    keys: tuple[str, ...]
    times: Mapping[str, int | None]
    read: Callable[[Any, Arguments], Rows]
    text: str
    is_reversible: bool = False


def _one(key: Any, value: Any) -> Rows:
    return iter(() if value is None else ((key, value),))


def _get(store: Any, of: Arguments) -> Rows:
    return _one(of.keys["key"], store.get(of.keys["key"]))


def _get_version(store: Any, of: Arguments) -> Rows:
    return _one(of.keys["key"], store.get(of.keys["key"], of.times.get("as_of")))


def _versions(store: Any, of: Arguments) -> Rows:
    key = of.keys["key"]
    versions = store.history(key, of.times["from"], of.times["to"])
    return ((key, version) for version in versions)


def _get_window(store: Any, of: Arguments) -> Rows:
    key, start = of.keys["key"], of.times["start"]
    return _windows_of(store, key, iter([(start, store.fetch(key, start))]))


def _windows(store: Any, of: Arguments) -> Rows:
    key = of.keys["key"]
    fetch = store.backward_fetch if of.reverse else store.fetch
    return _windows_of(store, key, fetch(key, of.times["from"], of.times["to"]))


def _windows_of(store: Any, key: Any, rows: Iterator[tuple[int, Any]]) -> Rows:
    return (
        (Windowed(key, start, store.window_end(start)), value)
        for start, value in rows
        if value is not None
    )


def _get_session(store: Any, of: Arguments) -> Rows:
    key, start, end = of.keys["key"], of.times["start"], of.times["end"]
    return _one(Windowed(key, start, end), store.fetch_session(key, start, end))


def _sessions(store: Any, of: Arguments) -> Rows:
    find = store.backward_find_sessions if of.reverse else store.find_sessions
    rows: Rows = find(of.keys["key"], of.times["from"], of.times["to"])
    return rows


def _range(store: Any, of: Arguments) -> Rows:
    scan = store.reverse_range if of.reverse else store.range
    rows: Rows = scan(of.keys.get("from_key"), of.keys.get("to_key"))
    return rows


def _prefix(store: Any, of: Arguments) -> Rows:
    rows: Rows = store.prefix_scan(of.keys["prefix"])
    return rows


def _window_range(store: Any, of: Arguments) -> Rows:
    fetch = store.backward_fetch_range if of.reverse else store.fetch_range
    lower, upper = of.keys.get("from_key"), of.keys.get("to_key")
    rows: Rows = fetch(lower, upper, of.times["from"], of.times["to"])
    return rows


def _session_range(store: Any, of: Arguments) -> Rows:
    rows: Rows = store.fetch_range(of.keys.get("from_key"), of.keys.get("to_key"))
    return rows


_ANY_TIME: Final = {"from": 0, "to": TIME_MAX}

#: Shapes by kind of query, in the path.
SHAPES: Final[Mapping[str, tuple[Shape, ...]]] = {
    "get": (
        Shape(_KEY_VALUE, ("key",), {}, _get, "The row of a key"),
        Shape(_VERSIONED, ("key",), {"as_of": -1}, _get_version, "The version at a time"),
        Shape(_WINDOWS, ("key",), {"start": None}, _get_window, "One window of a key"),
        Shape(
            _SESSIONS, ("key",), {"start": None, "end": None}, _get_session, "One session of a key"
        ),
    ),
    "range": (
        Shape(_KEY_VALUE, ("from_key", "to_key"), {}, _range, "Keys between two, inclusive", True),
        Shape(
            _WINDOWS,
            ("from_key", "to_key"),
            _ANY_TIME,
            _window_range,
            "Windows of keys between two, inclusive, that start between two times",
            True,
        ),
        Shape(_SESSIONS, ("from_key", "to_key"), {}, _session_range, "Sessions of keys"),
    ),
    "prefix": (Shape(_KEY_VALUE, ("prefix",), {}, _prefix, "Keys that begin with a prefix"),),
    "windows": (
        Shape(
            _WINDOWS,
            ("key",),
            _ANY_TIME,
            _windows,
            "Windows of a key that start between two times, inclusive",
            True,
        ),
    ),
    "sessions": (
        Shape(
            _SESSIONS,
            ("key",),
            _ANY_TIME,
            _sessions,
            "Sessions of a key that end at `from` or later and start at `to` or earlier",
            True,
        ),
    ),
    "versions": (
        Shape(_VERSIONED, ("key",), _ANY_TIME, _versions, "Versions of a key, newest first"),
    ),
}
#: Most digits of a number: any such number fits 64 bits.
_DIGITS_MAX: Final = 18
#: Parameters whose key must be given.
REQUIRED_KEYS: Final = frozenset({"key", "prefix"})

#: Parameters of every query.
COMMON: Final[Mapping[str, str]] = {
    "limit": "Most rows to return",
    "stale": "true: a standby or learner may answer if the owner can't",
    "max_lag": "With stale: most records that such a copy may be behind",
    "isolation_level": "read_committed or read_uncommitted",
    "min_position": "Offsets of the sub-topology's inputs that the answer must include: topic-partition:offset, with commas between",
    "partitions": "Only these partitions, or shards of them as 3/1of4, with commas between",
    "timeout_ms": "Time for the answer",
    "local": "true: no other member is asked",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one answer; a query may ask for less, and one that asks for more is refused.

    Attributes:
        rows: Most rows, also the default.
        size_bytes: Most bytes of rows.
        timeout_ms: Most time.
    """

    rows: int = 10_000
    size_bytes: int = 8 * 1024 * 1024
    timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRequest:
    """A checked query.

    Attributes:
        texts: Parameters of its shape, as given.
        until_s: Time of the monotonic clock by which the answer must be complete.
    """

    store: str
    kind: str
    texts: Mapping[str, str]
    until_s: float
    rows_max: int
    bytes_max: int
    level: IsolationLevel | None = None
    is_stale: bool = False
    is_local: bool = False
    reverse: bool = False
    max_lag: int | None = None
    partitions: tuple[Part, ...] | None = None
    min_position: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])

    @property
    def left_s(self) -> float:
        return max(self.until_s - time.monotonic(), 0.0)

    def shape_for(self, kind: StoreKind) -> Shape:
        """Return the shape that answers it in a store of this kind."""
        for shape in SHAPES[self.kind]:
            if kind in shape.kinds:
                self._check(shape)
                return shape
        usable = sorted(name for name, shapes in SHAPES.items() if _fits(shapes, kind))
        raise BadQueryError(
            f"store {self.store} is of kind {kind}, which {self.kind!r} can't read; use {' or '.join(usable) or 'none'}"
        )

    def _check(self, shape: Shape) -> None:
        known = {*shape.keys, *shape.times}
        unknown = sorted(self.texts.keys() - known)
        if unknown:
            raise BadQueryError(
                f"unknown parameter {unknown[0]!r}; {self.kind} has "
                f"{', '.join(sorted(known | COMMON.keys() | {'reverse'}))}"
            )
        needed = REQUIRED_KEYS.intersection(shape.keys)
        needed |= {name for name, default in shape.times.items() if default is None}
        missing = sorted(needed - self.texts.keys())
        if missing:
            raise BadQueryError(f"parameter {missing[0]!r} is missing")
        if self.reverse and not shape.is_reversible:
            raise BadQueryError(f"{self.kind} of such a store can't be reversed")

    def times(self, shape: Shape) -> dict[str, int]:
        """Return its times, with defaults; a default below 0 stands for no time."""
        times: dict[str, int] = {}
        for name, default in shape.times.items():
            text = self.texts.get(name)
            value = default if text is None else _time_ms(name, text)
            if value is not None and value >= 0:
                times[name] = value
        return times


def _fits(shapes: tuple[Shape, ...], kind: StoreKind) -> bool:
    return any(kind in shape.kinds for shape in shapes)


def parse_request(
    store: str, kind: str, parameters: Mapping[str, str], limits: Limits, default_timeout_ms: int
) -> QueryRequest:
    """Return a query from a URL's parts; raise `BadQueryError` for a bad one."""
    common = {name: text for name, text in parameters.items() if name in COMMON}
    texts = {
        name: text for name, text in parameters.items() if name not in COMMON and name != "reverse"
    }
    default_timeout_ms = min(default_timeout_ms, limits.timeout_ms)
    timeout_ms = _number(common, "timeout_ms", default_timeout_ms, limits.timeout_ms)
    is_stale = _flag(common, "stale")
    if "max_lag" in common and not is_stale:
        raise BadQueryError("max_lag is of copies, which answer with stale=true only; give both")
    return QueryRequest(
        store=store,
        kind=kind,
        texts=texts,
        until_s=time.monotonic() + timeout_ms / 1000,
        rows_max=_number(common, "limit", limits.rows, limits.rows),
        bytes_max=limits.size_bytes,
        level=_level(common.get("isolation_level")),
        is_stale=is_stale,
        is_local=_flag(common, "local"),
        reverse=_flag(parameters, "reverse"),
        max_lag=_number(common, "max_lag", None, None, least=0),
        partitions=_partitions(common.get("partitions")),
        min_position=_position(common.get("min_position")),
    )


def _number(
    texts: Mapping[str, str], name: str, default: Any, most: int | None, *, least: int = 1
) -> Any:
    text = texts.get(name)
    if text is None:
        return default
    number = _digits(text)
    if number is None or number < least or (most is not None and number > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise BadQueryError(f"{name} must be a whole number {bounds}")
    return number


def _digits(text: str) -> int | None:
    """Return a whole number of ASCII digits; None for other texts, and for some too large for an offset."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    return int(text) if is_number else None


def _flag(texts: Mapping[str, str], name: str) -> bool:
    text = texts.get(name, "false")
    if text not in ("true", "false"):
        raise BadQueryError(f"{name} must be true or false")
    return text == "true"


def _level(text: str | None) -> IsolationLevel | None:
    try:
        return None if text is None else IsolationLevel(text)
    except ValueError:
        raise BadQueryError("isolation_level must be read_committed or read_uncommitted") from None


def _partitions(text: str | None) -> tuple[Part, ...] | None:
    if text is None:
        return None
    parts = tuple(map(_part, text.split(",")))
    if len(set(parts)) < len(parts):
        raise BadQueryError("partitions has a number twice")
    return parts


def _part(text: str) -> Part:
    digits, slash, shard = text.partition("/")
    number = _digits(digits)
    with suppress(ValueError):
        if number is not None:
            return Part(number, TaskId.parse(f"0_0/{shard}").shard if slash else None)
    raise BadQueryError("partitions must be numbers (or shards, as 3/1of4) with commas between")


def _position(text: str | None) -> dict[TopicPartition, int]:
    position: dict[TopicPartition, int] = {}
    for part in () if text is None else text.split(","):
        place, _, offset = part.rpartition(":")
        topic, _, digits = place.rpartition("-")
        partition, least = _digits(digits), _digits(offset)
        if not topic or partition is None or least is None:
            raise BadQueryError("min_position must be topic-partition:offset with commas between")
        at = TopicPartition(topic, partition)
        if at in position:
            raise BadQueryError(f"min_position has {place} twice; give it one offset")
        position[at] = least
    return position


def _time_ms(name: str, text: str) -> int:
    """Return ms since the epoch from ms, or from an ISO time, by default in UTC.

    >>> _time_ms("from", "1970-01-01T00:00:01"), _time_ms("from", "250")
    (1000, 250)
    """
    if text.isascii() and text.isdecimal():
        return TIME_MAX if len(text) > _DIGITS_MAX else min(int(text), TIME_MAX)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(int(moment.timestamp() * 1000), 0)
    except (ValueError, OverflowError):
        raise BadQueryError(
            f"{name} must be ms since the epoch, or an ISO time such as 2026-01-31T12:00Z"
        ) from None
