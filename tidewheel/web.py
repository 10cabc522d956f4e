"""HTTP of a running application: metrics, health, state and interactive queries.

Needs `pip install 'tidewheel[web]'`. With `http_port` each worker serves all of it by itself.
"""

from starlette.types import ASGIApp

from tidewheel.streams.kafka_streams import KafkaStreams
from tidewheel.streams.web.worker_app import worker_app

__all__ = ["app"]


def app(streams: KafkaStreams, *, token: str | None = None) -> ASGIApp:
    """Return an ASGI application with `/metrics`, `/healthz`, `/readyz` and `/state`.

    Serve it, or mount it in an application of yours, where the process runs.

    Args:
        token: Text that requests must show as `Authorization: Bearer TOKEN`; None leaves access
            control to the server around it.

    >>> def program(streams: KafkaStreams) -> ASGIApp:
    ...     return app(streams, token="0123456789abcdef")
    """
    return worker_app(streams.view, token=token, names=None)
