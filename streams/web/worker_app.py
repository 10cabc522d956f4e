"""Routes of a worker's HTTP server: metrics, health, state and interactive queries."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidewheel.streams.web.access_control import Guard
from tidewheel.streams.web.json_response import PROBLEM_HANDLERS, json_response
from tidewheel.streams.web.prometheus import TEXT_TYPE, metrics_text
from tidewheel.streams.web.query_app import QueryRoutes
from tidewheel.streams.worker.application.application_state import KafkaStreamsState
from tidewheel.streams.worker.process_view import ProcessView

#: Paths without a token: they show nothing but the state.
_OPEN: Final = ("/healthz", "/readyz")
_PATHS: Final = ("/metrics", "/healthz", "/readyz", "/state", "/stores", "/openapi.json")
#: States in which a restart of the process is no help.
_ALIVE: Final = frozenset(KafkaStreamsState) - {
    KafkaStreamsState.PENDING_ERROR,
    KafkaStreamsState.ERROR,
    KafkaStreamsState.NOT_RUNNING,
}


def worker_app(
    view: ProcessView,
    *,
    token: str | None = None,
    names: Iterable[str] | None = (),
    is_announced: bool = False,
) -> Starlette:
    """Return the ASGI application of one process.

    Args:
        token: Token that requests must show.
        names: Accepted Host names besides `localhost` and numeric addresses; with a token, and with
            None, all are accepted.
        is_announced: True if the process's address in the group leads here.
    """
    view.application.measuring.is_wanted = True
    answers = _Answers(view)
    queries = QueryRoutes(view, is_announced=is_announced)

    @asynccontextmanager
    async def close_at_end(_: Starlette) -> AsyncGenerator[None]:
        yield
        queries.close()

    app = Starlette(
        routes=[
            Route("/", answers.index),
            Route("/metrics", answers.metrics),
            Route("/healthz", answers.health),
            Route("/readyz", answers.ready),
            Route("/state", answers.state),
            *queries.routes,
        ],
        lifespan=close_at_end,
        exception_handlers=PROBLEM_HANDLERS,
        middleware=[
            Middleware(
                Guard,
                names=None if token is not None or names is None else tuple(names),
                token=token,
                open_paths=_OPEN,
                advice="use its address, or set application_server to that name, or http_token",
            )
        ],
    )
    app.router.redirect_slashes = False  # Redirects would echo parts of the request.
    return app


class _Answers:
    def __init__(self, view: ProcessView) -> None:
        self._view = view

    async def index(self, _: Request) -> Response:
        """Name the other paths."""
        return json_response({"paths": _PATHS})

    async def metrics(self, _: Request) -> Response:
        """Return the figures; in a thread, because RocksDB's take some ms with many tasks."""
        text = await run_in_threadpool(self._metrics)
        return Response(text, media_type=TEXT_TYPE)

    def _metrics(self) -> bytes:
        return metrics_text(self._view.config.application_id, self._view.families())

    async def health(self, _: Request) -> Response:
        """Report if the process works, perhaps without tasks; 503 after an error or its end."""
        return self._state(is_fine=self._view.state() in _ALIVE)

    async def ready(self, _: Request) -> Response:
        """Report if all tasks of this process run."""
        return self._state(is_fine=self._view.state() is KafkaStreamsState.RUNNING)

    def _state(self, *, is_fine: bool) -> Response:
        return json_response({"state": self._view.state()}, status_code=200 if is_fine else 503)

    async def state(self, _: Request) -> Response:
        """Return the tasks and figures of this process."""
        return json_response(await run_in_threadpool(state_of, self._view))


def state_of(view: ProcessView) -> dict[str, Any]:
    return {
        "application_id": view.config.application_id,
        "state": view.state(),
        "slots": view.slots,
        "endpoint": view.application.endpoint,
        "tasks": view.tasks(),
        "metrics": view.metrics(),
    }
