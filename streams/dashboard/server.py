"""Dashboard server."""

import signal
import socket
from collections.abc import Iterable
from types import FrameType
from typing import Final

import uvicorn

from tidewheel.streams.dashboard.poller import GroupPoller
from tidewheel.streams.dashboard.web import build_app
from tidewheel.streams.processes.signals import signals_handled
from tidewheel.streams.web.http_server import server_config

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


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
