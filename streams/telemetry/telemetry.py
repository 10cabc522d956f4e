"""Telemetry of one process: what the setting `telemetry` starts."""

from collections.abc import Callable

from tidewheel.streams.telemetry.guard import Guard
from tidewheel.streams.telemetry.metering import Metering
from tidewheel.streams.telemetry.tracing import Tracing
from tidewheel.tasks.figures import Family
from tidewheel.tasks.processing.engine.traced_graph import BatchTracer
from tidewheel.tasks.restore.state_updater import RestoreEvent


class OpenTelemetry:
    """Reports to the providers that the program has set; without one, to none."""

    def __init__(self, application_id: str) -> None:
        self._application_id = application_id
        self.guard = Guard()
        self._tracing = Tracing(application_id, self.guard)
        self._metering: Metering | None = None

    @property
    def tracer(self) -> BatchTracer:
        """Return the tracer of batches and operators."""
        return self._tracing

    def begin(self, read: Callable[[], list[Family]]) -> None:
        """Report the figures that `read` returns, from now on."""
        try:
            self._metering = Metering(self._application_id, read, self.guard)
        except Exception as error:  # noqa: BLE001 - logged; the worker continues
            self.guard.failed(error)

    def committed(self, slot: int, took_s: float) -> None:
        """Report a commit that has just ended."""
        self._tracing.committed(slot, took_s)
        if self._metering is not None:
            self._metering.committed(slot, took_s)

    def restored(self, event: RestoreEvent, took_s: float) -> None:
        """Report a restore that has just ended."""
        self._tracing.restored(event, took_s)
        if self._metering is not None:
            self._metering.restored(took_s)

    def close(self) -> None:
        """End the spans that wait, and report no figures any more."""
        if self._metering is not None:
            self._metering.close()
        self._tracing.close()
