"""Clock that only tests advance."""


class FakeClock:
    """Port `tidewheel.tasks.kafka.ports.Clock`; both times advance together."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return self._monotonic_ms / 1000

    def advance(self, duration_ms: int) -> None:
        self._now_ms += duration_ms
        self._monotonic_ms += duration_ms

    def jump(self, duration_ms: int) -> None:
        """Set the wall clock forwards or back; no time passes."""
        self._now_ms += duration_ms
