"""Serves a dashboard until a signal ends it."""

import signal
import socket
from collections.abc import Iterable
from types import FrameType
from typing import Final

import uvicorn
from starlette.applications import Starlette

from tidewheel.streams.dashboard.connection import CONNECTIONS_MAX, Connection
from tidewheel.streams.dashboard.looks import Looks
from tidewheel.streams.dashboard.web import build_app
from tidewheel.streams.processes.signals import signals_handled

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
#: Streams end by themselves; a viewer who takes nothing any more is not waited for longer.
_END_S: Final = 3


def serve(
    listening: socket.socket,
    application_id: str,
    looks: Looks,
    *,
    names: Iterable[str] = (),
    token: str | None = None,
) -> None:
    """Serve a dashboard on a socket, until SIGINT or SIGTERM.

    Raises:
        Exception: What ended the looks, if that was an error nobody foresaw.
    """
    config = server_config(build_app(application_id, looks, names=names, token=token))
    with signals_handled(_SIGNALS, _nothing):
        _Server(config, looks).run(sockets=[listening])
    if looks.failure is not None:
        raise looks.failure


def server_config(app: Starlette) -> uvicorn.Config:
    """Return how a dashboard is served."""
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=_END_S,
    )


class _Server(uvicorn.Server):
    """Ends its streams when it is told to end, and ends when there is nothing to stream."""

    def __init__(self, config: uvicorn.Config, looks: Looks) -> None:
        super().__init__(config)
        self._looks = looks

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal."""
        super().handle_exit(sig, frame)
        self._looks.end()

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end; called ten times a second."""
        return await super().on_tick(counter) or self._looks.ended


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Take a signal and do nothing: uvicorn raises those that ended it once more at its end."""
