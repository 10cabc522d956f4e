"""What a dashboard answers: its page, the looks as a stream of events, the last one as JSON, and figures for Prometheus."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, Final

import orjson
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tidewheel.streams.dashboard.access_control import Guard
from tidewheel.streams.dashboard.looks import Look, Looks
from tidewheel.streams.dashboard.metrics import metrics_text

#: As many viewers may follow at a time; each has a connection that stays open.
STREAMS_MAX: Final = 32

#: Path -> file of the page, and what it is.
_PAGE: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def build_app(
    application_id: str, looks: Looks, *, names: Iterable[str] = (), token: str | None = None
) -> Starlette:
    """Return a dashboard: it looks for as long as it is served, and answers GET alone.

    Args:
        application_id: Whose group it shows.
        looks: The looks at it.
        names: See `Guard`.
        token: See `Guard`.
    """
    answers = _Answers(application_id, looks)

    @asynccontextmanager
    async def looking(_: Starlette) -> AsyncGenerator[None]:
        running = asyncio.create_task(looks.run())
        try:
            yield
        finally:
            looks.end()
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
        lifespan=looking,
        middleware=[Middleware(Guard, names=tuple(names), token=token)],
    )
    app.router.redirect_slashes = False  # nothing is built of what a request says
    return app


def event(look: Look, interval_s: float, now_s: float) -> bytes:
    """Return a look as one event of a stream (text/event-stream): its data is one line, because JSON has no line ends."""
    told: dict[str, Any] = {
        "look": look.number,
        "age_s": max(now_s - look.at_s, 0),
        "interval_s": interval_s,
        "problem": look.problem,
    }
    if look.seen is not None:
        told |= {"status": look.seen.status.to_dict(), "history": look.seen.history}
    return b"data: " + orjson.dumps(told, default=str) + b"\n\n"


class _Answers:
    """Answers requests from the last look."""

    def __init__(self, application_id: str, looks: Looks) -> None:
        self._application_id = application_id
        self._looks = looks
        self._streams = 0
        folder = files("tidewheel.streams.dashboard") / "page"
        self._files = {
            path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _PAGE.items()
        }

    async def page(self, request: Request) -> Response:
        """Return a part of the page."""
        content, kind = self._files[request.url.path]
        return Response(content, media_type=kind)

    async def status(self, _: Request) -> Response:
        """Return the group as `tidewheel status --json` prints it; 503 with the problem where it can't be read now."""
        look = self._looks.now()
        if look.seen is None:
            return _json({"problem": look.problem}, status_code=503)
        return _json(look.seen.status.to_dict())

    async def events(self, request: Request) -> Response:
        """Return the looks, one event each, until the dashboard ends."""
        if request.method != "GET":
            return Response(media_type="text/event-stream")
        if self._streams >= STREAMS_MAX:
            return PlainTextResponse(
                f"{STREAMS_MAX} viewers follow already, which is as many as may: close one.\n",
                status_code=503,
                headers={"retry-after": "10"},
            )
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def health(self, _: Request) -> Response:
        """Say whether the group could be read at the last look; nothing else, because this needs no token."""
        fine = self._looks.now().seen is not None
        return _json({"ok": fine}, status_code=200 if fine else 503)

    async def metrics(self, _: Request) -> Response:
        """Return the group's figures for Prometheus."""
        text = metrics_text(self._application_id, self._looks.now())
        return Response(text, media_type=_METRICS_TYPE)

    async def _stream(self) -> AsyncGenerator[bytes]:
        self._streams += 1
        clock = asyncio.get_running_loop()
        try:
            async with contextlib.aclosing(self._looks.each()) as looks:
                async for look in looks:
                    yield event(look, self._looks.interval_s, clock.time())
            yield b"event: end\ndata: {}\n\n"
        finally:
            self._streams -= 1


def _json(value: object, *, status_code: int = 200) -> Response:
    body = orjson.dumps(value, default=str) + b"\n"
    return Response(body, status_code=status_code, media_type="application/json")
