"""HTTP of a running application: metrics, health, state and interactive queries.

Needs `pip install 'tidewheel[web]'`. With `http_port` each worker serves all of it by itself.
"""

from starlette.types import ASGIApp

from tidewheel.streams.kafka_streams import KafkaStreams
from tidewheel.streams.web.query_app import queries_app
from tidewheel.streams.web.query_client import QueryClient, QueryResult, QueryRow
from tidewheel.streams.web.query_place import QueryPlace
from tidewheel.streams.web.query_request import Limits
from tidewheel.streams.web.query_text import BadQueryError
from tidewheel.streams.web.worker_app import worker_app

__all__ = [
    "BadQueryError",
    "Limits",
    "QueryClient",
    "QueryPlace",
    "QueryResult",
    "QueryRow",
    "app",
    "queries",
]


def app(streams: KafkaStreams, *, token: str | None = None) -> ASGIApp:
    """Return an ASGI application with metrics, health, state and queries.

    Serve it where the process runs, or mount it in an application of yours. Its paths are
    `/metrics`, `/healthz`, `/readyz`, `/state`, and those of `queries`.

    Args:
        token: Text that requests must show as `Authorization: Bearer TOKEN`; None leaves access
            control to the server around it.

    >>> def program(streams: KafkaStreams) -> ASGIApp:
    ...     return app(streams, token="0123456789abcdef")
    """
    return worker_app(streams.view, token=token, names=None)


def queries(streams: KafkaStreams, *, limits: Limits | None = None) -> ASGIApp:
    """Return the interactive queries as an ASGI application, to mount in FastAPI or Starlette.

    Access control is that of the application around it. Queries for other processes' tasks go to
    their `application_server`, below the same path, with the request's `Authorization`.

    >>> def mounted(streams: KafkaStreams) -> ASGIApp:
    ...     return queries(streams, limits=Limits(rows=100))
    """
    return queries_app(streams.view, limits)
