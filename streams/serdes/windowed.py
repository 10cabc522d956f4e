"""Serdes of windowed keys, byte-identical to Kafka's TimeWindowedSerializer and SessionWindowedSerializer."""

import struct
from collections.abc import Callable
from typing import Any, Final, TypeGuard, TypeVar

from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.serdes.schema_port import CodecError
from tidewheel.streams.serdes.serde import Serde, for_keys
from tidewheel.streams.windows import FOREVER

K = TypeVar("K")

_TIME: Final = struct.Struct(">q")
_SESSION: Final = struct.Struct(">qq")


class WindowedSerde(Serde[Windowed[K]]):
    def __init__(self, inner: SerdePort, name: str, tail_bytes: int) -> None:
        super().__init__(name=f"{name}({getattr(inner, 'name', inner)})", canonical=inner.canonical)
        self.inner = inner
        self._tail_bytes = tail_bytes
        self._for_keys: Serde[Windowed[K]] | None = None

    def __eq__(self, other: object) -> bool:
        """Return True if another serde writes the same bytes: equal inner serde and windows."""
        if type(other) is not type(self):
            return NotImplemented
        return self.inner == other.inner and self._same_windows(other)

    def __hash__(self) -> int:
        return hash((type(self), self.inner))

    def _same_windows(self, other: Any) -> bool:  # noqa: ARG002 - those with sizes look at it
        return True

    @property
    def sorts_keys(self) -> bool:
        return getattr(self.inner, "sorts_keys", False) is True

    def sorted_key(self, topic: str, data: bytes, /) -> bytes | None:
        inner: Any = self.inner
        key = inner.sorted_key(topic, data[: -self._tail_bytes])
        return None if key is None else key + data[-self._tail_bytes :]

    @property
    def tail_bytes(self) -> int:
        return self._tail_bytes

    def for_keys(self) -> Serde[Windowed[K]]:
        if self._for_keys is None:
            inner = for_keys(self.inner)
            self._for_keys = self if inner is self.inner else self.with_inner(inner)
        return self._for_keys

    def with_inner(self, inner: SerdePort) -> "WindowedSerde[Any]":
        raise NotImplementedError

    def _tail(self, windowed: Windowed[K]) -> bytes:
        raise NotImplementedError

    def _window(self, tail: bytes) -> tuple[int, int]:
        raise NotImplementedError

    def serialize(self, topic: str, value: Windowed[K], /) -> bytes | None:
        if not isinstance(value, Windowed):  # pyright: ignore[reportUnnecessaryIsInstance] - users may be untyped
            raise self.failed("serialise", topic, f"{type(value).__name__} is not a Windowed")
        data = self.inner.serialize(topic, value.key)
        if data is None:
            raise self.failed("serialise", topic, "the inner serde made None of a key")
        try:
            return data + self._tail(value)
        except struct.error:
            reason = "the window's start and end must be whole numbers of milliseconds in 64 bits"
        except CodecError as error:
            reason = str(error)
        raise self.failed("serialise", topic, reason)

    def deserialize(self, topic: str, data: bytes, /) -> Windowed[K]:
        cut = len(data) - self._tail_bytes
        if cut < 0:
            raise self.failed(
                "deserialise", topic, f"{len(data)} bytes have no window at their end"
            )
        return Windowed(self.inner.deserialize(topic, data[:cut]), *self._window(data[cut:]))


def is_windowed(serde: object) -> TypeGuard[WindowedSerde[Any]]:
    return isinstance(serde, WindowedSerde)


class TimeWindowedSerde(WindowedSerde[K]):
    """Serde of time-windowed keys; `end_of` returns a window's end by its start."""

    def __init__(self, inner: SerdePort, end_of: Callable[[int], int]) -> None:
        super().__init__(inner, "windowed", _TIME.size)
        self._end_of = end_of

    def with_inner(self, inner: SerdePort) -> "TimeWindowedSerde[Any]":
        return TimeWindowedSerde(inner, self._end_of)

    def _same_windows(self, other: "TimeWindowedSerde[Any]") -> bool:
        return self._end_of == other._end_of  # noqa: SLF001 - of its own kind

    def _tail(self, windowed: Windowed[K]) -> bytes:
        tail = _TIME.pack(windowed.start)
        if windowed.end != self._end_of(windowed.start):
            raise CodecError("the window's end is not the one of windows of this serde's size")
        return tail

    def _window(self, tail: bytes) -> tuple[int, int]:
        (start,) = _TIME.unpack(tail)
        return start, self._end_of(start)


class SessionWindowedSerde(WindowedSerde[K]):
    def __init__(self, inner: SerdePort) -> None:
        super().__init__(inner, "session_windowed", _SESSION.size)

    def with_inner(self, inner: SerdePort) -> "SessionWindowedSerde[Any]":
        return SessionWindowedSerde(inner)

    def _tail(self, windowed: Windowed[K]) -> bytes:
        tail = _SESSION.pack(windowed.end, windowed.start)
        if windowed.end < windowed.start:
            raise CodecError("the session's end is before its start")
        return tail

    def _window(self, tail: bytes) -> tuple[int, int]:
        end, start = _SESSION.unpack(tail)
        return start, end


def end_after(size_ms: int) -> Callable[[int], int]:
    """Return a function that maps a window's start to its end, for windows of one size.

    Ends are capped at the largest timestamp.

    >>> end_after(10)(5)
    15
    """

    def end_of(start: int) -> int:
        return min(start + size_ms, FOREVER)

    return end_of
