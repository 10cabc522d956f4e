"""A clock that moves only when a test says so."""


class FakeClock:
    """The port `tidewheel.tasks.ports.Clock`; both times move together."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        """Return wall-clock time in ms since the epoch."""
        return self._now_ms

    def monotonic_s(self) -> float:
        """Return a clock that never jumps, in seconds."""
        return self._monotonic_ms / 1000

    def advance(self, duration_ms: int) -> None:
        """Let time pass."""
        self._now_ms += duration_ms
        self._monotonic_ms += duration_ms

    def jump(self, duration_ms: int) -> None:
        """Set the wall clock forwards or back, as an administrator would; no time passes."""
        self._now_ms += duration_ms
