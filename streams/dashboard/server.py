"""Dashboard server."""

import signal
import socket
from collections.abc import Iterable
from types import FrameType
from typing import Final

import uvicorn
from starlette.applications import Starlette

from tidewheel.streams.dashboard.connection import CONNECTIONS_MAX, Connection
from tidewheel.streams.dashboard.poller import GroupPoller
from tidewheel.streams.dashboard.web import build_app
from tidewheel.streams.processes.signals import signals_handled

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
#: Seconds at shutdown for viewers that do not read their data.
_END_S: Final = 3


def serve(
    listening: socket.socket,
    application_id: str,
    poller: GroupPoller,
    *,
    names: Iterable[str] = (),
    token: str | None = None,
) -> None:
    """Serve a dashboard until SIGINT or SIGTERM; re-raise a poller failure."""
    config = server_config(build_app(application_id, poller, names=names, token=token))
    with signals_handled(_SIGNALS, _ignore_signal):
        _Server(config, poller).run(sockets=[listening])
    if poller.failure is not None:
        raise poller.failure


def server_config(app: Starlette) -> uvicorn.Config:
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
    def __init__(self, config: uvicorn.Config, poller: GroupPoller) -> None:
        super().__init__(config)
        self._poller = poller

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._poller.end()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._poller.ended


def _ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal: uvicorn raises it again at its end."""
