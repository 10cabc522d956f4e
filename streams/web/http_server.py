"""HTTP server in a thread of its own; also uvicorn's settings for the dashboard."""

import socket
import threading
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from tidewheel.streams.web.connection import CONNECTIONS_MAX, Connection

#: Seconds at shutdown for clients that do not read their data.
_END_S: Final = 3
#: Seconds for the thread to end, more than `_END_S`.
_JOIN_S: Final = 5.0


def server_config(app: ASGIApp) -> uvicorn.Config:
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


class HttpServer:
    """Server of one application on a listening socket, which it closes."""

    def __init__(self, app: ASGIApp, listening: socket.socket, url: str) -> None:
        self.url = url
        self._server = uvicorn.Server(server_config(app))
        self._listening = listening
        self._thread = threading.Thread(target=self._run, name="tidewheel-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        with self._listening:
            self._server.run(sockets=[self._listening])
