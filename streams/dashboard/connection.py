"""One connection of a dashboard: how long its requests may take, and how many connections there may be."""

import asyncio
from typing import Final, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from tidewheel.streams.dashboard.web import STREAMS_MAX

#: Seconds from a connection's beginning, or from the last answer, until a whole request has to be there.
REQUEST_S: Final = 10.0
#: Seconds that a viewer may take nothing of what is sent.
UNREAD_S: Final = 30.0

#: Connections beside those that follow: a request each.
_SHORT_MAX: Final = 64
#: Requests on further connections are answered with 503.
CONNECTIONS_MAX: Final = STREAMS_MAX + _SHORT_MAX
#: And these are ended before they ask anything: they hold descriptors.
_REFUSED_MAX: Final = 32


class Connection(H11Protocol):
    """Ends when its client is slow: uvicorn alone waits for ever for the rest of a request."""

    _request_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request, unless there are too many connections."""
        super().connection_made(cast("asyncio.Transport", transport))
        if len(self.connections) > CONNECTIONS_MAX + _REFUSED_MAX:
            self.transport.abort()
            return
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        for timer in (self._request_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one."""
        super().on_response_complete()
        self._await_request()

    def pause_writing(self) -> None:
        """Wait for the client to read on."""
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on writing."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        super().resume_writing()

    def _await_request(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
        self._request_timer = self.loop.call_later(REQUEST_S, self._end_unless_whole)

    def _end_unless_whole(self) -> None:
        """End the connection unless a whole request is here, whose answer may take long: a stream."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        answers = cycle is not None and not cycle.response_complete
        if not answers or self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.abort()
