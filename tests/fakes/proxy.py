"""TCP proxy for a broker that injects faults at chosen requests.

It reads length prefix, API key and correlation id of requests. In replies to Metadata,
FindCoordinator and DescribeCluster it replaces the broker's address by its own, of equal length.
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

#: Replies with brokers' addresses.
_ADDRESSED = frozenset({METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER})


class KafkaProxy:
    """Proxy of one broker; the first matching request uses up a rule.

    Attributes:
        seen: Number of forwarded requests by API key.
        last: Last request by API key, without its length.
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
        """Forward the next requests of this kind, but close the connection instead of replying."""
        with self._lock:
            self._drop_replies[api_key] += times

    def mute(self, api_key: int) -> None:
        """Withhold the next reply of this kind, and all later replies of its connection."""
        with self._lock:
            self._mute.add(api_key)

    def before_request(self, api_key: int, action: Callable[[], None]) -> None:
        with self._lock:
            self._before[api_key] = action

    def repeat(self, api_key: int) -> bytes:
        """Send the last request of a kind again on a new connection; return the reply."""
        frame = self.last[api_key]
        with socket.create_connection(self._upstream, timeout=20) as connection:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            return next(_frames(connection))

    def freeze(self) -> None:
        """Forward nothing more, with all connections open: a half-dead broker."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        with self._lock:
            sockets = list(self._sockets)
        for connection in sockets:
            _shut(connection)

    def close(self) -> None:
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
            except OSError:  # closed: ends this thread
                return
            try:
                server = socket.create_connection(self._upstream, timeout=5)
            except OSError:  # the broker is down
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
            pass  # one end closed; the other follows below
        finally:
            with self._lock:
                self._sockets -= {client, server}
            _shut(client)
            _shut(server)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _frames(source: socket.socket) -> Iterator[bytes]:
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
