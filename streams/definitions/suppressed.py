"""`Suppressed` and `BufferConfig`: the limits of `KTable.suppress`. Pure values."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.definitions.names import where
from tidewheel.streams.durations import to_ms
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.user_functions import caller_location
from tidewheel.tasks.durations import Duration

# `Early_co`: type of a buffer's `emits_early`, `Literal[True]` or `Literal[False]`. `K_contra`: key
# type of tables that a `Suppressed` fits. Users may omit both.
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Early_co = TypeVarWithDefault("Early_co", covariant=True, default=Any)
    K_contra = TypeVarWithDefault("K_contra", contravariant=True, default=Any)
else:
    Early_co = TypeVar("Early_co", covariant=True)
    K_contra = TypeVar("K_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class BufferConfig(Generic[Early_co]):
    """Limits of a `suppress` buffer, and the action when it is full.

    Made by `unbounded`, `max_records` and `max_bytes`. A full buffer emits its oldest rows early,
    or with `shut_down_when_full` stops the application.

    Attributes:
        record_limit: Maximum number of rows; None: unlimited.
        byte_limit: Maximum bytes, counted as in Kafka Streams: per row 8 bytes, key, value, old
            values, and the record's topic, offset, timestamp and headers. None: unlimited.
        emits_early: True if a full buffer emits its oldest rows; False if the application stops.

    >>> BufferConfig.max_records(1_000).with_max_bytes(1 << 20).shut_down_when_full()
    BufferConfig(record_limit=1000, byte_limit=1048576, emits_early=False)
    """

    record_limit: int | None = None
    byte_limit: int | None = None
    emits_early: bool = False

    @classmethod
    def unbounded(cls) -> "BufferConfig[Literal[False]]":
        """Return a buffer without limits; it is on disk and uses bounded memory.

        >>> BufferConfig.unbounded().record_limit is None
        True
        """
        return BufferConfig()

    @classmethod
    def max_records(cls, count: int) -> "BufferConfig[Literal[True]]":
        """Return a buffer limited in rows, which emits early when full.

        >>> BufferConfig.max_records(10).emits_early
        True
        """
        return BufferConfig(record_limit=_limit("max_records", count), emits_early=True)

    @classmethod
    def max_bytes(cls, size: int) -> "BufferConfig[Literal[True]]":
        """Return a buffer limited in bytes, which emits early when full.

        >>> BufferConfig.max_bytes(1 << 20).byte_limit
        1048576
        """
        return BufferConfig(byte_limit=_limit("max_bytes", size), emits_early=True)

    def with_max_records(self, count: int) -> "BufferConfig[Early_co]":
        """Return a copy with another row limit.

        >>> BufferConfig.max_bytes(1 << 20).with_max_records(10).record_limit
        10
        """
        return replace(self, record_limit=_limit("with_max_records", count))

    def with_max_bytes(self, size: int) -> "BufferConfig[Early_co]":
        """Return a copy with another byte limit.

        >>> BufferConfig.max_records(10).with_max_bytes(1 << 20).byte_limit
        1048576
        """
        return replace(self, byte_limit=_limit("with_max_bytes", size))

    def emit_early_when_full(self) -> "BufferConfig[Literal[True]]":
        """Return a copy that emits its oldest rows when full.

        >>> BufferConfig.max_records(10).shut_down_when_full().emit_early_when_full().emits_early
        True
        """
        return BufferConfig(self.record_limit, self.byte_limit, emits_early=True)

    def shut_down_when_full(self) -> "BufferConfig[Literal[False]]":
        """Return a copy that stops the application when full.

        >>> BufferConfig.max_records(10).shut_down_when_full().emits_early
        False
        """
        return BufferConfig(self.record_limit, self.byte_limit, emits_early=False)


@dataclass(frozen=True, slots=True)
class Suppressed(Generic[K_contra]):
    """Buffering time of `KTable.suppress`; made by `until_window_closes` and `until_time_limit`.

    Attributes:
        final: True if a row is emitted once, when its window closes.
        limit_ms: Otherwise the maximum buffering time after a row's first change (ms of stream
            time); None: unlimited.

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
        """Buffer each row of a windowed table until its window closes: one final result per window.

        Args:
            buffer: `BufferConfig.unbounded()`, or one with `shut_down_when_full()`; early results
                would not be final.

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
        """Buffer each row for a stream time after its first change; then emit its last value.

        Args:
            duration: Maximum buffering time; None: only a full buffer emits.

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
    if not isinstance(buffer, BufferConfig):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped users
        raise TopologyError(
            f"{_here(call)}: the buffer is of type {type(buffer).__name__}; give a BufferConfig, such as "
            "BufferConfig.unbounded()"
        )
    return buffer


def _limit(call: str, count: int) -> int:
    if type(count) is not int or count < 0:
        raise TopologyError(f"{_here(call)}: {count!r} is no limit; give an int of at least 0")
    return count
