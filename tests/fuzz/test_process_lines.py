"""Lines between the processes of a worker, and the answers of brokers: read, or skipped."""

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.damage import bounded, examples, hostile
from tidewheel.rebalance.protocol import orders
from tidewheel.rebalance.protocol.messages import JoinGroup
from tidewheel.streams.kafka.admin.transaction_requests import BrokerConnection, NotAskedError
from tidewheel.streams.processes.child import UNREADABLE, LineReader
from tidewheel.streams.processes.restore_helper import helper_messages
from tidewheel.streams.processes.restore_helper.helper_process import HelperProcess
from tidewheel.streams.processes.supervisor import worker_messages
from tidewheel.streams.processes.supervisor.worker_process import WorkerProcess
from tidewheel.streams.processes.watchdog.hello import Hello, decode_hello, encode_hello
from tidewheel.streams.processes.watchdog.link import WatchdogLink
from tidewheel.streams.processes.watchdog.worker_socket import WorkerSocket

pytestmark = pytest.mark.fault("DOORS")

_JOIN = JoinGroup(
    app="shop",
    member="a",
    incarnation="a-1",
    transactional_ids=("shop-a-1-0",),
    host="h",
    pid=os.getpid(),
    process_id="p",
)
_LINES = [
    encode_hello(Hello(join=_JOIN, bootstrap_servers="localhost:9092", consumer={"a": {"b": 1}})),
    worker_messages.encode(worker_messages.MetricsReported(metrics={"tasks": {"0_0": [1, 2.5]}})),
    worker_messages.encode(
        worker_messages.WorkerCrashed(message="ValueError: no", exit_code=1, offset=3)
    ),
    worker_messages.encode(worker_messages.StartWorker(target="a:b", overrides={"x": ["y"]})),
    helper_messages.encode(helper_messages.Failed(number=1, reason="gone")),
    helper_messages.encode(helper_messages.Forget(number=1)),
    orders.encode_line(orders.Welcome(transactional_id="shop-a-1-0")),
    orders.encode_line(orders.WorkerClosed()),
]
#: Lines whose errors are not msgspec's.
_NOT_UTF8 = b'{"type":"crash","error":"\xff","message":"","exit_code":1}'
_DEEP = b'{"type":"metrics","metrics":{"a":' + b"[" * 20_000
_DECODERS: list[Callable[[bytes], object]] = [
    decode_hello,
    worker_messages.decode_order,
    worker_messages.decode_report,
    helper_messages.decode_begin,
    helper_messages.decode_order,
    helper_messages.decode_report,
    orders.decode_order,
    orders.decode_report,
]


@given(hostile(_LINES))
@example(_NOT_UTF8)
@example(_DEEP)
def test_a_line_is_a_message_or_unreadable(line: bytes) -> None:
    for decode in _DECODERS:
        with bounded(), contextlib.suppress(*UNREADABLE):
            assert isinstance(decode(line), msgspec.Struct)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def _hostile_lines(tag: bytes, kind: bytes, field: bytes) -> bytes:
    nested = b'{"%b":"%b","unknown":' % (tag, kind) + b"[" * 5_000
    return b'{"%b":"%b","%b":"\xff"}\n' % (tag, kind, field) + nested + b"\nnoise\n\xff\xfe\n"


def test_a_supervisor_skips_lines_that_are_no_reports(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    worker = WorkerProcess.__new__(WorkerProcess)
    worker._lines = LineReader(ours)
    good = worker_messages.WorkerStopped()
    theirs.sendall(_hostile_lines(b"type", b"crash", b"error") + worker_messages.encode(good))
    assert worker.read_reports() == ([good], False)


def test_a_restore_helper_may_write_anything(pair: tuple[socket.socket, socket.socket]) -> None:
    reports: list[Any] = []
    helper = HelperProcess.__new__(HelperProcess)
    helper._on_report = reports.append
    good = helper_messages.Failed(number=1, reason="gone")
    lines = _hostile_lines(b"type", b"failed", b"reason") + helper_messages.encode(good)
    for line in lines.splitlines():
        helper._handle_report(line)
    assert reports == [good]


def test_a_watchdog_skips_lines_that_are_no_hello_and_no_reports(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    worker = WorkerSocket(ours, lambda: None)
    memory: Any = object()
    worker._memory = memory
    theirs.sendall(_hostile_lines(b"type", b"hello", b"bootstrap_servers") + _LINES[0])
    assert worker.receive() == ([], False)
    assert worker.hello is not None
    good = orders.WorkerClosed()
    theirs.sendall(_hostile_lines(b"report", b"broken", b"task") + orders.encode_line(good))
    assert worker.receive() == ([good], False)
    worker.close()


def test_a_worker_skips_lines_that_are_no_orders() -> None:
    link = WatchdogLink.__new__(WatchdogLink)
    received: Any = []
    link._orders = received
    link._woken = lambda: None
    link._hello = decode_hello(_LINES[0])
    lines = _hostile_lines(b"order", b"run", b"task") + orders.encode_line(
        orders.Welcome(transactional_id="shop-a-1-0")
    )
    link._accept_orders(lines.splitlines())
    assert received == [orders.Welcome(transactional_id="shop-a-1-0")]


# -- answers of brokers -------------------------------------------------------------------------------


def _answer(body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), 1) + body


_PRODUCERS = (
    b"\0" + struct.pack(">i", 0) + b"\x02\x02t\x02" + struct.pack(">ih", 0, 0) + b"\x00\x02"
)
_PRODUCERS += struct.pack(">qiiqiq", 7, 1, 0, 5, 0, 3) + b"\0\0\0\0"
_TRANSACTIONS = (
    b"\0" + struct.pack(">ih", 0, 0) + b"\x01\x02\x03id" + struct.pack(">q", 7) + b"\x03On\0\0"
)
_SCRAM = struct.pack(">hhi", 0, -1, 40)


@contextlib.contextmanager
def _broker(answers: list[bytes]) -> Generator[int]:
    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            with connection:
                for answer in answers:
                    if not connection.recv(4_096):
                        return
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(10)


def test_the_answers_are_those_of_a_broker() -> None:
    with (
        _broker([_answer(_PRODUCERS), _answer(_TRANSACTIONS)]) as port,
        BrokerConnection("127.0.0.1", port, {}, 10) as broker,
    ):
        assert broker.open_producers("t", [0])[0][0].producer_id == 7
        assert broker.transactions_of([7])[7].transactional_id == "id"


def test_foreign_transactional_ids_steer_no_terminal() -> None:
    forged = "a\x1b[2J\nb\u202e".encode()
    answer = _TRANSACTIONS.replace(b"\x03id", bytes([len(forged) + 1]) + forged)
    with (
        _broker([_answer(answer.replace(b"\x03On", b"\x03\r\x07"))]) as port,
        BrokerConnection("127.0.0.1", port, {}, 10) as broker,
    ):
        assert broker.transactions_of([7])[7] == ("a [2J b ", "  ")


@examples(25)
@given(
    hostile([_PRODUCERS]).map(_answer) | hostile([_answer(_PRODUCERS)]), hostile([_TRANSACTIONS])
)
@example(_answer(_PRODUCERS[:-9]), _TRANSACTIONS)
@example(_answer(b"\0" * 5 + b"\xff" * 200_000), _TRANSACTIONS)
@example(_answer(_PRODUCERS), _TRANSACTIONS[:-5] + b"\xff")
def test_damaged_answers_of_a_broker_are_no_answers(producers: bytes, transactions: bytes) -> None:
    with (
        _broker([producers, _answer(transactions)]) as port,
        bounded(),
        contextlib.suppress(NotAskedError),
        BrokerConnection("127.0.0.1", port, {}, 0.2) as broker,
    ):
        broker.open_producers("t", [0])
        broker.transactions_of([7])


@given(
    st.sampled_from(["%s", "%sx", "other"]),
    st.sampled_from(["", "c2FsdA==", "!", "="]),
    st.sampled_from(["", "4096", "-1", "x", "2147483647", str(10**30), "9" * 5_000]),
)
def test_a_broker_does_not_choose_the_work_of_a_login(nonce: str, salt: str, rounds: str) -> None:
    def authenticated(text: bytes) -> bytes:
        return _answer(struct.pack(">hhi", 0, -1, len(text)) + text)

    challenge = f"r={nonce},s={salt},i={rounds}".encode()
    config = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", bytes)
        challenge = challenge.replace(b"%s", b"A" * 24)
        with (
            _broker([_answer(b"\0\0"), authenticated(challenge), authenticated(b"")]) as port,
            bounded(),
            contextlib.suppress(NotAskedError),
        ):
            BrokerConnection("127.0.0.1", port, config, 2).close()
