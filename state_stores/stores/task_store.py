"""Base of a task's stores."""

from collections.abc import Callable
from typing import Any, Generic, Never, TypeVar

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer
from tidewheel.state_stores.buffers.record_cache import RecordCache
from tidewheel.state_stores.buffers.timed_buffer import TimedBuffer
from tidewheel.state_stores.errors import InvalidStateStoreError

B = TypeVar("B", bound=CommitBuffer)


class TaskStore(Generic[B]):
    """Store of a task; `cache` (record cache) is None until an operator opens it."""

    buffer: B

    def _attach(self, buffer: B, now: Callable[[], int], *, is_cached: bool) -> None:
        self.buffer = buffer
        self.cache: RecordCache | None = None
        self.expired_puts = 0
        self._is_cached = is_cached
        self._now = now

    def open_cache(self) -> RecordCache | None:
        """Return the record cache; None if caching is off.

        The operator that calls first must flush it before each commit; later ones share it.
        """
        if self._is_cached and self.cache is None:
            self.cache = RecordCache(self.buffer)
        return self.cache

    def _write(self, key: Any, data: bytes, value: Any, timestamp: int) -> None:
        if self.cache is None:
            self.buffer.put(data, value, timestamp)
            return
        existed = self.buffer.exists(data)
        old = self.buffer.get(data) if self.cache.keeps_old_values else None
        self.buffer.put(data, value, timestamp)
        if self.cache.keeps_old_values:
            self.cache.old_values.setdefault(data, old)
        self.cache.changed(key, data, existed=existed)

    def erase(self, key: bytes, tail: int = 0) -> int:
        """Delete all rows of a serialised key, expired ones too; return their number.

        `tail` is the number of bytes after the key in rows of windowed keys, else 0.
        """
        raise NotImplementedError

    def close(self) -> None:
        closed: Any = _ClosedBuffer(self.buffer.spec.name)
        self.buffer = closed

    def divide(self) -> None:
        if isinstance(self.buffer, TimedBuffer):
            self.buffer.divide()

    def unite(self) -> None:
        if isinstance(self.buffer, TimedBuffer):
            self.buffer.unite()

    def times(self) -> tuple[int, ...]:
        """Return the stream time for the commit metadata; () if the store has no time."""
        buffer = self.buffer
        return (buffer.observed_stream_time_ms,) if isinstance(buffer, TimedBuffer) else ()

    def restore_times(self, times: tuple[int, ...]) -> None:
        buffer = self.buffer
        if isinstance(buffer, TimedBuffer):
            (observed,) = times
            buffer.observe(observed)


class _ClosedBuffer:
    def __init__(self, store: str) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Never:
        raise InvalidStateStoreError(
            f"store {self._store} is closed, because its task has stopped or moved; get the store again"
        )
