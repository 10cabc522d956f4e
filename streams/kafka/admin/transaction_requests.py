"""DescribeProducers and ListTransactions: requests about open transactions that librdkafka lacks.

They use a socket with the client settings' TLS and login (PLAIN, SCRAM). Every failure is a
`NotAskedError`: the answers only explain why readers are blocked.
"""

import base64
import hashlib
import hmac
import os
import socket
import ssl
import struct
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Self

from tidewheel.rebalance.protocol.plain_text import plain_text
from tidewheel.streams.config.client_properties import unchecked_certificates

_DESCRIBE_PRODUCERS: Final = (61, 0)
_LIST_TRANSACTIONS: Final = (66, 0)
_SASL_HANDSHAKE: Final = (17, 1)
_SASL_AUTHENTICATE: Final = (36, 1)
_CLIENT_ID: Final = b"tidewheel-transactions"
_ANSWER_BYTES_MAX: Final = 8 << 20
#: Kafka's brokers ask for 4,096 to 16,384.
_ROUNDS_MIN: Final = 4_096
_ROUNDS_MAX: Final = 1_000_000
_VARINT_SHIFT_MAX: Final = 63
_FAILURES: Final = (OSError, ValueError, ArithmeticError, LookupError, struct.error)
_SCRAM: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: Client settings of TLS that this connection does not support.
_OTHER_TLS: Final = (
    "ssl.keystore.location", "ssl.engine.location", "ssl.key.pem", "ssl.providers", "ssl.crl.location",
    "ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list",
)  # fmt: skip


class NotAskedError(Exception):
    """A request was not sent or failed; the text has the reason, without secrets."""


class ProducerState(NamedTuple):
    producer_id: int
    epoch: int
    last_timestamp_ms: int
    start_offset: int


class CoordinatorState(NamedTuple):
    transactional_id: str
    state: str


class BrokerConnection:
    """Connection to one broker; raises `NotAskedError`.

    `config` are librdkafka settings with resolved secrets; `timeout_s` bounds each answer.
    """

    def __init__(self, host: str, port: int, config: Mapping[str, Any], timeout_s: float) -> None:
        self._name = f"{host}:{port}"
        protocol = str(config.get("security.protocol", "plaintext")).lower()
        self._socket: socket.socket | None = None
        try:
            plain = socket.create_connection((host, port), timeout=timeout_s)
            self._socket = plain
            if protocol.endswith("ssl"):
                self._socket = _context(config).wrap_socket(plain, server_hostname=host)
            if protocol.startswith("sasl"):
                self._log_in(config)
        except _FAILURES as error:
            self.close()
            raise self._not_asked(error) from error
        except NotAskedError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def open_producers(
        self, topic: str, partitions: Iterable[int]
    ) -> dict[int, list[ProducerState]]:
        numbers = list(partitions)
        body = (
            _count(1)
            + _compact(topic.encode())
            + _count(len(numbers))
            + b"".join(struct.pack(">i", number) for number in numbers)
            + b"\0\0"
        )
        with self._answered():
            return self._producers(topic, self._ask(_DESCRIBE_PRODUCERS, body))

    def _producers(self, topic: str, response: "_Response") -> dict[int, list[ProducerState]]:
        response.skip(4)
        producers: dict[int, list[ProducerState]] = {}
        for _ in range(response.count()):
            response.text()
            for _ in range(response.count()):
                number, code = response.unpack(">ih")
                response.text()
                states: list[ProducerState] = []
                for _ in range(response.count()):
                    producer, epoch, _, time_ms, _, start = response.unpack(">qiiqiq")
                    response.tags()
                    if start >= 0:
                        states.append(ProducerState(producer, epoch, time_ms, start))
                response.tags()
                if code:
                    raise NotAskedError(
                        f"broker {self._name} answers DescribeProducers for {topic}-{number} with error {code}"
                    )
                producers[number] = states
            response.tags()
        return producers

    def transactions_of(self, producer_ids: Iterable[int]) -> dict[int, CoordinatorState]:
        ids = sorted(producer_ids)
        body = (
            _count(0)
            + _count(len(ids))
            + b"".join(struct.pack(">q", producer_id) for producer_id in ids)
            + b"\0"
        )
        with self._answered():
            return self._coordinators(self._ask(_LIST_TRANSACTIONS, body))

    def _coordinators(self, response: "_Response") -> dict[int, CoordinatorState]:
        _, code = response.unpack(">ih")
        if code:
            raise NotAskedError(f"broker {self._name} answers ListTransactions with error {code}")
        for _ in range(response.count()):
            response.text()
        coordinators: dict[int, CoordinatorState] = {}
        for _ in range(response.count()):
            name = response.text()
            (producer,) = response.unpack(">q")
            coordinators[producer] = CoordinatorState(name, response.text())
            response.tags()
        return coordinators

    def _ask(self, api: tuple[int, int], body: bytes) -> "_Response":
        response = self._exchange(api, b"\0" + body)
        response.tags()
        return response

    @contextmanager
    def _answered(self) -> Generator[None]:
        try:
            yield
        except _FAILURES as error:
            raise self._not_asked(error) from error

    def _not_asked(self, error: Exception) -> NotAskedError:
        return NotAskedError(f"broker {self._name}: {type(error).__name__}")

    def _exchange(self, api: tuple[int, int], body: bytes) -> "_Response":
        assert self._socket is not None, "asked while open"
        request = struct.pack(">hhih", *api, 1, len(_CLIENT_ID)) + _CLIENT_ID + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._read(4))
        if not 4 <= size <= _ANSWER_BYTES_MAX:  # noqa: PLR2004 - the correlation id
            raise ValueError("no answer of Kafka's")
        return _Response(self._read(size)[4:])

    def _read(self, size: int) -> bytes:
        assert self._socket is not None, "read while open"
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return data

    def _log_in(self, config: Mapping[str, Any]) -> None:
        mechanism = str(config.get("sasl.mechanism", config.get("sasl.mechanisms", ""))).upper()
        user = str(config.get("sasl.username", ""))
        password = str(config.get("sasl.password", ""))
        if mechanism != "PLAIN" and mechanism not in _SCRAM:
            raise NotAskedError(
                f"with the login {mechanism or 'that is set'} brokers are not asked for it"
            )
        self._exchange(_SASL_HANDSHAKE, _string(mechanism.encode()))
        if mechanism == "PLAIN":
            self._authenticate(f"\0{user}\0{password}".encode())
            return
        scram = _Scram(_SCRAM[mechanism], user, password)
        scram.check(self._authenticate(scram.last(self._authenticate(scram.first()))))

    def _authenticate(self, data: bytes) -> bytes:
        response = self._exchange(_SASL_AUTHENTICATE, struct.pack(">i", len(data)) + data)
        (code,) = response.unpack(">h")
        if code:
            raise NotAskedError(f"broker {self._name} refuses the login")
        (length,) = response.unpack(">h")
        response.skip(max(length, 0))
        (size,) = response.unpack(">i")
        return response.bytes(max(size, 0))


class _Response:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def unpack(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self._data, self._position)
        self._position += struct.calcsize(form)
        return values

    def skip(self, size: int) -> None:
        self._position += size

    def bytes(self, size: int) -> bytes:
        self._position += size
        return self._data[self._position - size : self._position]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value
            if shift > _VARINT_SHIFT_MAX:
                raise ValueError("no number of Kafka's")

    def count(self) -> int:
        return max(self._varint() - 1, 0)

    def text(self) -> str:
        """Return a text, which any client may have chosen, without unprintable characters."""
        return plain_text(self.bytes(self.count()).decode())

    def tags(self) -> None:
        for _ in range(self._varint()):
            self._varint()
            self.skip(self._varint())


class _Scram:
    """SCRAM client (RFC 5802)."""

    def __init__(self, digest: str, user: str, password: str) -> None:
        self._digest = digest
        self._password = password.encode()
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._nonce = base64.urlsafe_b64encode(os.urandom(18)).decode()
        self._bare = f"n={name},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def last(self, challenge: bytes) -> bytes:
        parts = dict(part.split("=", 1) for part in challenge.decode().split(","))
        if not parts["r"].startswith(self._nonce):
            raise ValueError("another nonce")
        salt, rounds = base64.b64decode(parts["s"]), int(parts["i"])
        if not _ROUNDS_MIN <= rounds <= _ROUNDS_MAX:
            raise ValueError("a number of rounds that no broker asks for")
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, salt, rounds)
        key = hmac.digest(salted, b"Client Key", self._digest)
        without_proof = f"c=biws,r={parts['r']}"
        signed = f"{self._bare},{challenge.decode()},{without_proof}".encode()
        mask = hmac.digest(hashlib.new(self._digest, key).digest(), signed, self._digest)
        server_key = hmac.digest(salted, b"Server Key", self._digest)
        self._signature = hmac.digest(server_key, signed, self._digest)
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, mask, strict=True))).decode()
        return f"{without_proof},p={proof}".encode()

    def check(self, answer: bytes) -> None:
        parts = dict(part.split("=", 1) for part in answer.decode().split(","))
        if not hmac.compare_digest(base64.b64decode(parts["v"]), self._signature):
            raise ValueError("another signature")


def _context(config: Mapping[str, Any]) -> ssl.SSLContext:
    if any(config.get(option) for option in _OTHER_TLS):
        raise NotAskedError("with these settings of TLS brokers are not asked for it")
    context = ssl.create_default_context(
        cafile=config.get("ssl.ca.location"), cadata=config.get("ssl.ca.pem")
    )
    unchecked = unchecked_certificates(config)
    if unchecked:
        context.check_hostname = False
    if "enable.ssl.certificate.verification" in unchecked:
        context.verify_mode = ssl.CERT_NONE
    if config.get("ssl.certificate.location"):
        context.load_cert_chain(
            config["ssl.certificate.location"],
            config.get("ssl.key.location"),
            config.get("ssl.key.password"),
        )
    return context


def _count(length: int) -> bytes:
    value, data = length + 1, bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def _compact(text: bytes) -> bytes:
    return _count(len(text)) + text


def _string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text
