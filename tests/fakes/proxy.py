"""A TCP proxy in front of a broker that reads just enough of Kafka's protocol to do harm at chosen requests.

It knows the length prefix, the API key and the correlation id of requests. Replies to Metadata, FindCoordinator and
DescribeCluster have the broker's address replaced by the proxy's, so clients never find their way around it; the
host is the same text on both sides, so no length changes. One thread a direction and connection; `close` ends them.
"""

import contextlib
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

PRODUCE = 0
METADATA = 3
OFFSET_FETCH = 9
FIND_COORDINATOR = 10
API_VERSIONS = 18
ADD_OFFSETS_TO_TXN = 25
END_TXN = 26
TXN_OFFSET_COMMIT = 28
DESCRIBE_CLUSTER = 60

#: Replies that name brokers by host and port.
_ADDRESSED = frozenset({METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER})


class KafkaProxy:
    """Forwards to one broker. Rules are one-shot: each is used up by the first request it fits.

    Attributes:
        seen: How many requests of each API key were forwarded.
        last: The last request of each API key, without its length.
    """

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))
        self._listener = socket.create_server((host, 0))
        self.bootstrap_servers = f"{host}:{self._listener.getsockname()[1]}"
        self.seen: defaultdict[int, int] = defaultdict(int)
        self.last: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._drop_replies: defaultdict[int, int] = defaultdict(int)
        self._mute: set[int] = set()
        self._before: dict[int, Callable[[], None]] = {}
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._flowing = threading.Event()
        self._flowing.set()
        self._start(self._accept)

    def drop_reply(self, api_key: int, times: int = 1) -> None:
        """Forward the next requests of this kind, but cut the connection in place of each reply."""
        with self._lock:
            self._drop_replies[api_key] += times

    def mute(self, api_key: int) -> None:
        """Hold back the reply to the next request of this kind and all after it on its connection, which stays open."""
        with self._lock:
            self._mute.add(api_key)

    def before_request(self, api_key: int, action: Callable[[], None]) -> None:
        """Call `action` before the next request of this kind is forwarded."""
        with self._lock:
            self._before[api_key] = action

    def repeat(self, api_key: int) -> bytes:
        """Deliver the last request of a kind once more, as a network may, late and on a connection of its own; the reply."""
        frame = self.last[api_key]
        with socket.create_connection(self._upstream, timeout=20) as connection:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            return next(_frames(connection))

    def freeze(self) -> None:
        """Forward nothing more, in either direction, with every connection left open: a half-dead broker."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Forward again, what was held back first."""
        self._flowing.set()

    def cut(self) -> None:
        """Close every connection; clients may connect again."""
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            _shut(each)

    def close(self) -> None:
        """Stop listening, close every connection and end the threads."""
        self._closed = True
        self._flowing.set()
        _shut(self._listener)
        self.cut()
        for thread in self._threads:
            thread.join(timeout=5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name="kafka-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed: that is how this thread is told to end
                return
            try:
                server = socket.create_connection(self._upstream, timeout=5)
            except OSError:  # the broker is down: so is this connection
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._sockets |= {client, server}
            pending: dict[int, int] = {}
            self._start(self._forward_requests, client, server, pending)
            self._start(self._forward_replies, client, server, pending)

    def _forward_requests(
        self, client: socket.socket, server: socket.socket, pending: dict[int, int]
    ) -> None:
        with self._closing(client, server):
            for frame in _frames(client):
                api_key, _, correlation = struct.unpack_from(">hhi", frame, 0)
                with self._lock:
                    self.seen[api_key] += 1
                    self.last[api_key] = frame
                    pending[correlation] = api_key
                    action = self._before.pop(api_key, None)
                if action is not None:
                    action()
                self._flowing.wait()
                server.sendall(struct.pack(">i", len(frame)) + frame)

    def _forward_replies(
        self, client: socket.socket, server: socket.socket, pending: dict[int, int]
    ) -> None:
        with self._closing(client, server):
            is_mute = False
            for frame in _frames(server):
                (correlation,) = struct.unpack_from(">i", frame, 0)
                with self._lock:
                    api_key = pending.pop(correlation, -1)
                    drop = self._drop_replies[api_key] > 0
                    if drop:
                        self._drop_replies[api_key] -= 1
                    if api_key in self._mute:
                        self._mute.discard(api_key)
                        is_mute = True
                if drop:
                    return
                if is_mute:
                    continue
                body = self._readdress(frame) if api_key in _ADDRESSED else frame
                self._flowing.wait()
                client.sendall(struct.pack(">i", len(body)) + body)

    def _readdress(self, frame: bytes) -> bytes:
        host, port = self._upstream
        ours = self._listener.getsockname()[1]
        name = host.encode()
        return frame.replace(name + struct.pack(">i", port), name + struct.pack(">i", ours))

    @contextlib.contextmanager
    def _closing(self, client: socket.socket, server: socket.socket) -> Iterator[None]:
        try:
            yield
        except OSError:
            pass  # either end went away; the other follows below
        finally:
            with self._lock:
                self._sockets -= {client, server}
            _shut(client)
            _shut(server)


def _shut(end: socket.socket) -> None:
    """Close a socket so that a thread blocked in it wakes up."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _frames(source: socket.socket) -> Iterator[bytes]:
    """Yield length-prefixed messages until the other end closes."""
    while True:
        head = _exactly(source, 4)
        if head is None:
            return
        body = _exactly(source, struct.unpack(">i", head)[0])
        if body is None:
            return
        yield body


def _exactly(source: socket.socket, size: int) -> bytes | None:
    chunks = bytearray()
    while len(chunks) < size:
        chunk = source.recv(min(size - len(chunks), 1 << 20))
        if not chunk:
            return None
        chunks += chunk
    return bytes(chunks)
