"""TCP proxy for a broker that injects faults at chosen requests.

It reads length prefix, API key and correlation id of requests. In replies to Metadata,
FindCoordinator and DescribeCluster it replaces the broker's address by its own, of equal length.
"""

import contextlib
import queue
import random
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import NamedTuple, Self

PRODUCE = 0
FETCH = 1
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


def _do_nothing() -> None: ...


class _Rule(NamedTuple):
    api_key: int
    #: Bytes that the request contains.
    part: bytes
    action: Callable[[], None] = _do_nothing


class KafkaProxy:
    """Proxy of one broker; the first matching request uses up a rule.

    Attributes:
        seen: Number of forwarded requests by API key.
        last: Last request by API key, without its length.
        withheld: Requests that were not forwarded.
        lost: Number of lost replies by API key.

    Args:
        host: Address to listen on, instead of the broker's.
        name: Name of this host in replies, of equal length as the broker's.
        latency_s: Least and greatest latency in each direction.
    """

    def __init__(
        self,
        upstream: str,
        *,
        host: str = "",
        name: str = "",
        latency_s: tuple[float, float] | None = None,
    ) -> None:
        broker, _, port = upstream.rpartition(":")
        self._upstream = (broker, int(port))
        self._listener = socket.create_server((host or broker, 0))
        self._name = name or host or broker
        assert len(self._name) == len(broker), f"{self._name} must be as long as {broker}"
        self.bootstrap_servers = f"{self._name}:{self._listener.getsockname()[1]}"
        self._latency_s = latency_s
        self.seen: defaultdict[int, int] = defaultdict(int)
        self.last: dict[int, bytes] = {}
        self.withheld: list[bytes] = []
        self.lost: defaultdict[int, int] = defaultdict(int)
        self._lock = threading.Lock()
        self._drop_replies: defaultdict[int, int] = defaultdict(int)
        self._instead: list[_Rule] = []
        self._withhold: list[_Rule] = []
        self._mute: set[int] = set()
        self._before: list[_Rule] = []
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._flowing = threading.Event()
        self._flowing.set()
        self._replies_flow = threading.Event()
        self._replies_flow.set()
        self._loses_replies = False
        self._start(self._accept)

    def drop_reply(self, api_key: int, times: int = 1) -> None:
        """Forward the next requests of this kind, but close the connection instead of replying."""
        with self._lock:
            self._drop_replies[api_key] += times

    def instead_of_reply(self, api_key: int, part: bytes, action: Callable[[], None]) -> None:
        """Act when the next request with this part is answered, then close its connection."""
        with self._lock:
            self._instead.append(_Rule(api_key, part, action))

    def withhold(self, api_key: int, part: bytes) -> None:
        """Close the connection of the next request with this part instead of forwarding it."""
        with self._lock:
            self._withhold.append(_Rule(api_key, part))

    def lose_replies(self) -> None:
        """Lose all replies, with all connections open, until `heal`."""
        self._loses_replies = True

    def hold_replies(self) -> None:
        """Keep all replies back until `heal`."""
        self._replies_flow.clear()

    def heal(self) -> None:
        self._loses_replies = False
        self._replies_flow.set()

    def mute(self, api_key: int) -> None:
        """Withhold the next reply of this kind, and all later replies of its connection."""
        with self._lock:
            self._mute.add(api_key)

    def before_request(self, api_key: int, action: Callable[[], None], part: bytes = b"") -> None:
        with self._lock:
            self._before.append(_Rule(api_key, part, action))

    def repeat(self, api_key: int) -> bytes:
        """Send the last request of a kind again on a new connection; return the reply."""
        return self.deliver(self.last[api_key])

    def deliver(self, frame: bytes) -> bytes:
        """Send a request on a new connection; return the reply."""
        with socket.create_connection(self._upstream, timeout=20) as connection:
            connection.sendall(_framed(frame))
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
        self.heal()
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
            pending: dict[int, bytes] = {}
            self._start(self._forward_requests, client, server, pending)
            self._start(self._forward_replies, client, server, pending)

    def _forward_requests(
        self, client: socket.socket, server: socket.socket, pending: dict[int, bytes]
    ) -> None:
        with self._closing(client, server), self._sending(server) as send:
            for frame in _frames(client):
                api_key, _, correlation = struct.unpack_from(">hhi", frame, 0)
                with self._lock:
                    if _used_up(self._withhold, frame) is not None:
                        self.withheld.append(frame)
                        return
                    self.seen[api_key] += 1
                    self.last[api_key] = frame
                    pending[correlation] = frame
                    before = _used_up(self._before, frame)
                if before is not None:
                    before.action()
                self._flowing.wait()
                send(frame)

    def _forward_replies(
        self, client: socket.socket, server: socket.socket, pending: dict[int, bytes]
    ) -> None:
        with self._closing(client, server), self._sending(client) as send:
            is_mute = False
            for frame in _frames(server):
                (correlation,) = struct.unpack_from(">i", frame, 0)
                with self._lock:
                    request = pending.pop(correlation, b"\xff\xff")
                    (api_key,) = struct.unpack_from(">h", request, 0)
                    drop = self._drop_replies[api_key] > 0
                    if drop:
                        self._drop_replies[api_key] -= 1
                    rule = _used_up(self._instead, request)
                    if api_key in self._mute:
                        self._mute.discard(api_key)
                        is_mute = True
                    if self._loses_replies:
                        self.lost[api_key] += 1
                        continue
                if rule is not None:
                    rule.action()
                if drop or rule is not None:
                    return
                if is_mute:
                    continue
                self._flowing.wait()
                self._replies_flow.wait()
                send(self._readdress(frame) if api_key in _ADDRESSED else frame)

    @contextlib.contextmanager
    def _sending(self, end: socket.socket) -> Iterator[Callable[[bytes], None]]:
        """Yield the function that sends frames to an end, after the latency if there is one."""
        if self._latency_s is None:
            yield lambda frame: end.sendall(_framed(frame))
            return
        least_s, most_s = self._latency_s
        line: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        self._start(_carry, line, end)
        try:
            yield lambda frame: line.put(
                (time.monotonic() + random.uniform(least_s, most_s), _framed(frame))
            )
        finally:
            line.put((0.0, b""))

    def _readdress(self, frame: bytes) -> bytes:
        host, port = self._upstream
        ours = self._listener.getsockname()[1]
        theirs = host.encode() + struct.pack(">i", port)
        return frame.replace(theirs, self._name.encode() + struct.pack(">i", ours))

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


def _carry(line: "queue.SimpleQueue[tuple[float, bytes]]", end: socket.socket) -> None:
    while True:
        due_s, data = line.get()
        if not data:
            return
        time.sleep(max(due_s - time.monotonic(), 0.0))
        with contextlib.suppress(OSError):  # closed
            end.sendall(data)


def _used_up(rules: list[_Rule], request: bytes) -> _Rule | None:
    """Remove and return the first rule that a request matches."""
    (api_key,) = struct.unpack_from(">h", request, 0)
    for rule in rules:
        if rule.api_key == api_key and rule.part in request:
            rules.remove(rule)
            return rule
    return None


def _framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


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
