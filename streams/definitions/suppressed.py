"""What `KTable.suppress` holds back and for how long: `Suppressed` and `BufferConfig`. Pure values."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.definitions.names import where
from tidewheel.streams.durations import Duration, to_ms
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.user_functions import caller_location

# For type checkers: whether a buffer emits early, and of which keys a table may be; users need not say either.
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Early_co = TypeVarWithDefault("Early_co", covariant=True, default=Any)
    K_contra = TypeVarWithDefault("K_contra", contravariant=True, default=Any)
else:
    Early_co = TypeVar("Early_co", covariant=True)
    K_contra = TypeVar("K_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class BufferConfig(Generic[Early_co]):
    """How much `suppress` may hold back, and what happens when there is more.

    Made by `unbounded`, `max_records` and `max_bytes`. A limited buffer emits its oldest rows early when it is full,
    unless it is told to `shut_down_when_full`.

    Attributes:
        record_limit: The most rows it may hold; None for any number.
        byte_limit: The most bytes it may hold, counted as Kafka Streams does: for each row 8 bytes, its key, its
            value, the values before, and topic, offset, timestamp and headers of its record. None for any number.
        emits_early: Whether a full buffer emits its oldest rows; otherwise the application stops.

    >>> BufferConfig.max_records(1_000).with_max_bytes(1 << 20).shut_down_when_full()
    BufferConfig(record_limit=1000, byte_limit=1048576, emits_early=False)
    """

    record_limit: int | None = None
    byte_limit: int | None = None
    emits_early: bool = False

    @classmethod
    def unbounded(cls) -> "BufferConfig[Literal[False]]":
        """Return a buffer without limits: it is kept on disk, and what is in memory is bounded.

        >>> BufferConfig.unbounded().record_limit is None
        True
        """
        return BufferConfig()

    @classmethod
    def max_records(cls, count: int) -> "BufferConfig[Literal[True]]":
        """Return a buffer of at most so many rows, which emits early when it is full.

        Raises:
            TopologyError: It is not a whole number, or negative.

        >>> BufferConfig.max_records(10).emits_early
        True
        """
        return BufferConfig(record_limit=_limit("max_records", count), emits_early=True)

    @classmethod
    def max_bytes(cls, size: int) -> "BufferConfig[Literal[True]]":
        """Return a buffer of at most so many bytes, which emits early when it is full.

        Raises:
            TopologyError: It is not a whole number, or negative.

        >>> BufferConfig.max_bytes(1 << 20).byte_limit
        1048576
        """
        return BufferConfig(byte_limit=_limit("max_bytes", size), emits_early=True)

    def with_max_records(self, count: int) -> "BufferConfig[Early_co]":
        """Return the same with another limit of rows; raises as `max_records` does.

        >>> BufferConfig.max_bytes(1 << 20).with_max_records(10).record_limit
        10
        """
        return replace(self, record_limit=_limit("with_max_records", count))

    def with_max_bytes(self, size: int) -> "BufferConfig[Early_co]":
        """Return the same with another limit of bytes; raises as `max_bytes` does.

        >>> BufferConfig.max_records(10).with_max_bytes(1 << 20).byte_limit
        1048576
        """
        return replace(self, byte_limit=_limit("with_max_bytes", size))

    def emit_early_when_full(self) -> "BufferConfig[Literal[True]]":
        """Return the same, emitting the oldest rows when it is full.

        >>> BufferConfig.max_records(10).shut_down_when_full().emit_early_when_full().emits_early
        True
        """
        return BufferConfig(self.record_limit, self.byte_limit, emits_early=True)

    def shut_down_when_full(self) -> "BufferConfig[Literal[False]]":
        """Return the same, stopping the application when it is full.

        >>> BufferConfig.max_records(10).shut_down_when_full().emits_early
        False
        """
        return BufferConfig(self.record_limit, self.byte_limit, emits_early=False)


@dataclass(frozen=True, slots=True)
class Suppressed(Generic[K_contra]):
    """How long `KTable.suppress` holds a row back; made by `until_window_closes` and `until_time_limit`.

    Attributes:
        buffer: How much it may hold back.
        final: Whether a row is held back until its window is closed, and then comes once.
        limit_ms: Otherwise how long after its first change a row is held back (ms of stream time); None for ever.

    >>> from datetime import timedelta
    >>> Suppressed.until_time_limit(timedelta(minutes=5), BufferConfig.max_records(1_000)).limit_ms
    300000
    """

    buffer: BufferConfig
    final: bool
    limit_ms: int | None

    @classmethod
    def until_window_closes(
        cls, buffer: BufferConfig[Literal[False]]
    ) -> "Suppressed[Windowed[Any]]":
        """Hold each row of a windowed table back until its window is closed: one final result per window.

        Args:
            buffer: `BufferConfig.unbounded()`, or one with `shut_down_when_full()`; results that come early would not
                be final.

        Raises:
            TopologyError: The buffer emits early.

        >>> Suppressed.until_window_closes(BufferConfig.unbounded()).final
        True
        """
        if _checked_buffer("until_window_closes", buffer).emits_early:
            raise TopologyError(
                f"{_here('until_window_closes')}: the buffer emits early when it is full, so results would not be "
                "final; add .shut_down_when_full(), or give BufferConfig.unbounded()"
            )
        return Suppressed(buffer, final=True, limit_ms=None)

    @classmethod
    def until_time_limit(cls, duration: Duration | None, buffer: BufferConfig) -> "Suppressed[Any]":
        """Hold each row back until so much stream time has passed since its first change, then emit its last value.

        Args:
            duration: How long; None for no limit, so that only a full buffer emits.
            buffer: How much may be held back.

        Raises:
            TopologyError: A negative duration, or no buffer.

        >>> Suppressed.until_time_limit(None, BufferConfig.max_records(10)).limit_ms is None
        True
        """
        _checked_buffer("until_time_limit", buffer)
        if duration is None:
            return Suppressed(buffer, final=False, limit_ms=None)
        limit_ms = to_ms(duration, f"{_here('until_time_limit')}: duration", minimum_ms=0)
        return Suppressed(buffer, final=False, limit_ms=limit_ms)


def _here(call: str) -> str:
    return where(call, caller_location())


def _checked_buffer(call: str, buffer: BufferConfig) -> BufferConfig:
    if not isinstance(buffer, BufferConfig):  # pyright: ignore[reportUnnecessaryIsInstance] - users may be untyped
        raise TopologyError(
            f"{_here(call)}: the buffer is of type {type(buffer).__name__}; give a BufferConfig, such as "
            "BufferConfig.unbounded()"
        )
    return buffer


def _limit(call: str, count: int) -> int:
    if type(count) is not int or count < 0:
        raise TopologyError(f"{_here(call)}: {count!r} is no limit; give an int of at least 0")
    return count
