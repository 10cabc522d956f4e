"""Connections with time limits and a maximum number."""

import asyncio
from typing import Final, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

#: Maximum concurrent event streams; more viewers get 503.
STREAMS_MAX: Final = 32
#: Seconds to send a whole request, from the connection's start or the last answer.
REQUEST_S: Final = 10.0
#: Seconds a viewer may leave data unread.
UNREAD_S: Final = 30.0

#: Maximum connections besides event streams.
_SHORT_MAX: Final = 64
#: Maximum connections; further ones are answered with 503.
CONNECTIONS_MAX: Final = STREAMS_MAX + _SHORT_MAX
#: Connections above `CONNECTIONS_MAX` that still get the 503; more are closed immediately, to save
#: file descriptors.
_REFUSED_MAX: Final = 32


class Connection(H11Protocol):
    """Connection that closes for slow clients: uvicorn alone waits forever for a request."""

    _request_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        if len(self.connections) > CONNECTIONS_MAX + _REFUSED_MAX:
            self.transport.abort()
            return
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._request_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        super().resume_writing()

    def _await_request(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
        self._request_timer = self.loop.call_later(REQUEST_S, self._close_if_incomplete)

    def _close_if_incomplete(self) -> None:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        answers = cycle is not None and not cycle.response_complete
        if not answers or self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.abort()
