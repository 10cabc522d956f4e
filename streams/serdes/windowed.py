"""Serdes of windowed keys, byte for byte Kafka's TimeWindowedSerializer and SessionWindowedSerializer.

A time window's key is the inner key's bytes and the window's start (8 bytes); its end is not in the bytes but follows
from the size. A session's key is the inner key's bytes, its end, and its start (8 bytes each).
"""

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
    """What serdes of windowed keys have in common: the serde of the key inside.

    Attributes:
        inner: The serde of the key inside.
    """

    def __init__(self, inner: SerdePort, name: str, tail_bytes: int) -> None:
        super().__init__(name=f"{name}({getattr(inner, 'name', inner)})", canonical=inner.canonical)
        self.inner = inner
        self._tail_bytes = tail_bytes
        self._for_keys: Serde[Windowed[K]] | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether another serde writes the same bytes: it has the same serde inside, and the same windows."""
        if type(other) is not type(self):
            return NotImplemented
        return self.inner == other.inner and self._same_windows(other)

    def __hash__(self) -> int:
        """Return a number that serdes which are equal share."""
        return hash((type(self), self.inner))

    def _same_windows(self, other: Any) -> bool:  # noqa: ARG002 - those with sizes look at it
        return True

    @property
    def sorts_keys(self) -> bool:
        """Return whether dicts in the key inside are sorted."""
        return getattr(self.inner, "sorts_keys", False) is True

    def sorted_key(self, topic: str, data: bytes, /) -> bytes | None:
        """Return the bytes that a stored key has now."""
        inner: Any = self.inner
        key = inner.sorted_key(topic, data[: -self._tail_bytes])
        return None if key is None else key + data[-self._tail_bytes :]

    @property
    def tail_bytes(self) -> int:
        """Return how many bytes stand behind those of the key inside."""
        return self._tail_bytes

    def for_keys(self) -> Serde[Windowed[K]]:
        """Return the serde of windowed keys whose inner serde is for keys."""
        if self._for_keys is None:
            inner = for_keys(self.inner)
            self._for_keys = self if inner is self.inner else self.with_inner(inner)
        return self._for_keys

    def with_inner(self, inner: SerdePort) -> "WindowedSerde[Any]":
        """Return the same serde around another one."""
        raise NotImplementedError

    def _tail(self, windowed: Windowed[K]) -> bytes:
        raise NotImplementedError

    def _window(self, tail: bytes) -> tuple[int, int]:
        raise NotImplementedError

    def serialize(self, topic: str, value: Windowed[K], /) -> bytes | None:
        """Return the bytes of a windowed key."""
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
        """Return the windowed key of some bytes."""
        cut = len(data) - self._tail_bytes
        if cut < 0:
            raise self.failed(
                "deserialise", topic, f"{len(data)} bytes have no window at their end"
            )
        return Windowed(self.inner.deserialize(topic, data[:cut]), *self._window(data[cut:]))


def is_windowed(serde: object) -> TypeGuard[WindowedSerde[Any]]:
    """Return whether a serde is one of windowed keys."""
    return isinstance(serde, WindowedSerde)


class TimeWindowedSerde(WindowedSerde[K]):
    """Serde of the keys of time windows; `end_of` tells where a window that starts at a time ends."""

    def __init__(self, inner: SerdePort, end_of: Callable[[int], int]) -> None:
        super().__init__(inner, "windowed", _TIME.size)
        self._end_of = end_of

    def with_inner(self, inner: SerdePort) -> "TimeWindowedSerde[Any]":
        """Return the same serde around another one."""
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
    """Serde of the keys of sessions."""

    def __init__(self, inner: SerdePort) -> None:
        super().__init__(inner, "session_windowed", _SESSION.size)

    def with_inner(self, inner: SerdePort) -> "SessionWindowedSerde[Any]":
        """Return the same serde around another one."""
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
    """Return what tells a window's end from its start, for windows of one size; an end past all times is the last one.

    >>> end_after(10)(5)
    15
    """

    def end_of(start: int) -> int:
        return min(start + size_ms, FOREVER)

    return end_of
