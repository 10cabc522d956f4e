"""Telemetry, if its packages are installed."""

from importlib.util import find_spec

from tidewheel.streams.errors import ConfigError
from tidewheel.streams.worker.application.application import Telemetry


def make_telemetry(application_id: str) -> Telemetry:
    """Return the telemetry of a process; raise `ConfigError` without its packages."""
    if find_spec("opentelemetry") is None:
        raise ConfigError(
            "telemetry='opentelemetry' needs opentelemetry-api: pip install 'tidewheel[opentelemetry]', and an SDK with an "
            "exporter of your choice"
        )
    from tidewheel.streams.telemetry.telemetry import OpenTelemetry  # noqa: PLC0415 - needs the extra

    return OpenTelemetry(application_id)
