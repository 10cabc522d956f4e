"""Dashboard routes: page, event stream, JSON and Prometheus metrics."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, Final

import orjson
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tidewheel.streams.dashboard.metrics import metrics_text
from tidewheel.streams.dashboard.poller import GroupPoller, PolledGroup, PollResult
from tidewheel.streams.web.access_control import Guard
from tidewheel.streams.web.connection import STREAMS_MAX
from tidewheel.streams.web.prometheus import TEXT_TYPE

#: Page file and media type by URL path.
_PAGE: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{
        f"/{name}": (name, "text/javascript; charset=utf-8")
        for name in ("page.js", "elements.js", "graph.js", "tables.js", "timeline.js")
    },
}
#: Paths without a token: they show nothing about the group.
_OPEN: Final = frozenset({*_PAGE, "/healthz"})


def build_app(
    application_id: str, poller: GroupPoller, *, names: Iterable[str] = (), token: str | None = None
) -> Starlette:
    answers = _Answers(application_id, poller)

    @asynccontextmanager
    async def poll_while_serving(_: Starlette) -> AsyncGenerator[None]:
        running = asyncio.create_task(poller.run())
        try:
            yield
        finally:
            poller.end()
            await running

    routes = [Route(path, answers.page) for path in _PAGE]
    routes += [
        Route("/api/status", answers.status),
        Route("/api/events", answers.events),
        Route("/healthz", answers.health),
        Route("/metrics", answers.metrics),
    ]
    app = Starlette(
        routes=routes,
        lifespan=poll_while_serving,
        middleware=[
            Middleware(
                Guard,
                names=tuple(names),
                token=token,
                open_paths=_OPEN,
                advice="use its address, or start it with --allowed-host NAME",
            )
        ],
    )
    app.router.redirect_slashes = False  # Redirects would echo parts of the request.
    return app


def event(
    poll: PollResult, interval_s: float, now_s: float, sent: PolledGroup | None = None
) -> bytes:
    """Return a poll result as one server-sent event: JSON has no line breaks to escape.

    It has history and graph only if they differ from those in `sent`, which the viewer has.
    """
    data: dict[str, Any] = {
        "look": poll.number,
        "age_s": max(now_s - poll.at_s, 0),
        "interval_s": interval_s,
        "problem": poll.problem,
    }
    if poll.polled is not None:
        data |= {"status": poll.polled.status.to_dict(), "alarms": poll.polled.alarms}
        if sent is None or sent.history != poll.polled.history:
            data["history"] = poll.polled.history
        if sent is None or sent.graph != poll.polled.graph:
            data["graph"] = poll.polled.graph
    return b"data: " + orjson.dumps(data, default=str) + b"\n\n"


class _Answers:
    def __init__(self, application_id: str, poller: GroupPoller) -> None:
        self._application_id = application_id
        self._poller = poller
        self._streams = 0
        folder = files("tidewheel.streams.dashboard") / "page"
        self._files = {
            path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _PAGE.items()
        }

    async def page(self, request: Request) -> Response:
        content, kind = self._files[request.url.path]
        return Response(content, media_type=kind)

    async def status(self, _: Request) -> Response:
        """Return the group as `tidewheel status --json` prints it; 503 if it can't be read."""
        poll = self._poller.now()
        if poll.polled is None:
            return _json({"problem": poll.problem}, status_code=503)
        return _json(poll.polled.status.to_dict())

    async def events(self, request: Request) -> Response:
        if request.method != "GET":
            return Response(media_type="text/event-stream")
        if self._streams >= STREAMS_MAX:
            return PlainTextResponse(
                f"{STREAMS_MAX} viewers follow already, which is as many as may: close one.\n",
                status_code=503,
                headers={"retry-after": "10"},
            )
        self._streams += 1
        return _EventStream(self._stream(), self._free_place)

    async def health(self, _: Request) -> Response:
        """Report readability of the group and nothing else, because this route needs no token."""
        fine = self._poller.now().polled is not None
        return _json({"ok": fine}, status_code=200 if fine else 503)

    async def metrics(self, _: Request) -> Response:
        text = metrics_text(self._application_id, self._poller.now())
        return Response(text, media_type=TEXT_TYPE)

    async def _stream(self) -> AsyncGenerator[bytes]:
        clock = asyncio.get_running_loop()
        async with contextlib.aclosing(self._poller.results()) as results:
            sent: PolledGroup | None = None
            async for poll in results:
                yield event(poll, self._poller.interval_s, clock.time(), sent)
                sent = poll.polled or sent
        yield b"event: end\ndata: {}\n\n"

    def _free_place(self) -> None:
        self._streams -= 1


class _EventStream(StreamingResponse):
    """Response that frees its place at its end, even if its client left before the first event."""

    def __init__(self, content: AsyncGenerator[bytes], free_place: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream")
        self._free_place = free_place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._free_place()


def _json(value: object, *, status_code: int = 200) -> Response:
    body = orjson.dumps(value, default=str) + b"\n"
    return Response(body, status_code=status_code, media_type="application/json")
