"""What every store of a task is: a commit buffer with a name, perhaps a cache, and perhaps a stream time."""

from collections.abc import Callable
from typing import Any, Generic, Never, TypeVar

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer
from tidewheel.state_stores.buffers.record_cache import HeldBack
from tidewheel.state_stores.buffers.timed_buffer import TimedBuffer
from tidewheel.state_stores.errors import InvalidStateStoreError

B = TypeVar("B", bound=CommitBuffer)


class TaskStore(Generic[B]):
    """A store of a task, for its processors and operators.

    Attributes:
        buffer: What the store writes to; operators use it directly.
        held: What is held back from downstream; None while nobody asked for that.
        expired_puts: How many puts were dropped because their time was over.
    """

    buffer: B

    def _attach(self, buffer: B, now: Callable[[], int], *, may_hold_back: bool) -> None:
        self.buffer = buffer
        self.held: HeldBack | None = None
        self.expired_puts = 0
        self._may_hold_back = may_hold_back
        self._now = now

    def hold_back(self) -> HeldBack | None:
        """Note changes from now on for the operator that flushes them downstream; None if this store has no cache.

        The first operator that asks is the one that flushes; operators that share the store get the same object.
        """
        if self._may_hold_back and self.held is None:
            self.held = HeldBack(self.buffer)
        return self.held

    def _write(self, key: Any, data: bytes, value: Any, timestamp: int) -> None:
        """Put a value under its serialised key, and note the change if there is a cache."""
        if self.held is None:
            self.buffer.put(data, value, timestamp)
            return
        existed = self.buffer.exists(data)
        old = self.buffer.get(data) if self.held.keeps_old_values else None
        self.buffer.put(data, value, timestamp)
        if self.held.keeps_old_values:
            self.held.old_values.setdefault(data, old)
        self.held.changed(key, data, existed=existed)

    def erase(self, key: bytes, tail: int = 0) -> int:
        """Delete all rows of a serialised key, expired ones too, as `put(key, None)` deletes one; return how many there were.

        Args:
            key: The key's bytes.
            tail: Number of bytes that follow them in the keys of the rows: those of a window, where keys are windowed.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Answer no more: every call raises `InvalidStateStoreError` from now on."""
        closed: Any = _ClosedBuffer(self.buffer.spec.name)
        self.buffer = closed

    def divide(self) -> None:
        """Be as one key range until `unite` (see `TimedBuffer`)."""
        if isinstance(self.buffer, TimedBuffer):
            self.buffer.divide()

    def unite(self) -> None:
        """Be the whole store again."""
        if isinstance(self.buffer, TimedBuffer):
            self.buffer.unite()

    def times(self) -> tuple[int, ...]:
        """Return the store's stream time, for the commit's metadata; () for a store without one."""
        buffer = self.buffer
        return (buffer.observed_stream_time_ms,) if isinstance(buffer, TimedBuffer) else ()

    def restore_times(self, times: tuple[int, ...]) -> None:
        """Go on with what `times` gave before a restart."""
        buffer = self.buffer
        if isinstance(buffer, TimedBuffer):
            (observed,) = times
            buffer.observe(observed)


class _ClosedBuffer:
    """Stands where a closed store had its buffer."""

    def __init__(self, store: str) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Never:
        raise InvalidStateStoreError(
            f"store {self._store} is closed, as what it belonged to is; ask what runs now for its store"
        )
