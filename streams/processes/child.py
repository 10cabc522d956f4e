"""Lines over a socket pair whose two ends are ours."""

import socket
from typing import Final

_READ_BYTES: Final = 256 * 1024


class LineReader:
    """Reads whole lines from a non-blocking socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._parts: list[bytes] = []

    def read(self) -> tuple[list[bytes], bool]:
        """Return the lines that have come, and whether the other end is gone. Never waits."""
        lines: list[bytes] = []
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return lines, False
            except ConnectionError:
                return lines, True
            if not data:
                return lines, True
            *whole, rest = data.split(b"\n")
            if whole:
                lines.append(b"".join((*self._parts, whole[0])))
                lines += whole[1:]
                self._parts = []
            if rest:
                self._parts.append(rest)
