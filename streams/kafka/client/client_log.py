"""librdkafka's log: forwarded to Python's logging, and read for facts that no call reports.

After a lost connection the client repeats an EndTxn request and reports success. The first request
may still end a *later* transaction (H8). Only the debug log shows the lost connection
(`TransactionLog.doubt`). Each line only sets a field, so no lock is needed.
"""

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

from confluent_kafka import KafkaError, KafkaException

from tidewheel.streams.console_log import UNREACHABLE_LOGGER, unreachable
from tidewheel.streams.kafka.client.advice import AWAY_ADVICE, LOGIN_ADVICE
from tidewheel.streams.kafka.client.codes import (
    ALL_BROKERS_DOWN,
    AWAY,
    FENCED,
    LOGIN_FAILED,
    is_transient,
)
from tidewheel.streams.kafka.client.settings import ClientKind, Config, construction_error

_LOGGER: Final = logging.getLogger("tidewheel.streams.kafka.client")
_BROKERS: Final = logging.getLogger(UNREACHABLE_LOGGER)

#: Seconds between lines of one kind, and of one broker; the client repeats some 20 times a second.
_QUIET_S: Final = 60.0

#: Kinds of log lines about the connection to a broker.
_CONNECTION: Final = frozenset({"FAIL", "REQTMOUT"})
#: "sasl_ssl://host:9092/1: Connect to ipv4#10.0.0.1:9092 failed: refused (after 0ms in state CONNECT)"
_AWAY_LINE: Final = re.compile(
    r"(?:^|[ /])(?P<address>[^\s/]+:\d+)(?:/(?P<node>\w+))?: (?:Connect to \S+ failed: )?(?P<reason>.*)$"
)

#: Kinds of log lines about a coordinator or leader not known yet: the client asks again.
_ASKS_AGAIN: Final = frozenset({"GETPID", "METADATAUPDATE"})

#: Kinds of log lines about a transaction's requests: the client repeats them, or a call raises.
_TRANSACTION: Final = frozenset({"ADDOFFSETS", "ADDPARTS", "ENDTXN", "TXNERR", "TXNOFFSETS"})

#: The first four bytes of an answer that is not Kafka's, read as its size.
_FOREIGN_SIZE: Final = re.compile(r"Invalid response size (-?\d+)")

#: Texts of errors that a fenced producer reports.
_FENCED: Final = tuple(KafkaError(code).str() for code in sorted(FENCED))

_UNANSWERED_END: Final = re.compile(r"EndTxn returned _")
_ENDED_BY_US: Final = "_DESTROY"


def raises_doubt(facility: str, text: str, *, offsets_sent: bool) -> bool:
    """Return True if a log line means that a transaction request may still take effect, unseen.

    Requests go to the transaction coordinator, a transaction's offsets to the group coordinator.
    With offsets in flight, a lost connection to any broker counts.
    """
    match facility:
        case "FAIL" | "REQTMOUT":
            if _ENDED_BY_US in text:
                return False
            return "TxnCoordinator" in text or (offsets_sent and "/bootstrap" not in text)
        case "COORD":
            return "is now down" in text
        case "ENDTXN":
            return _UNANSWERED_END.search(text) is not None
        case _:
            return False


class ClientLog:
    """The `logger=` of a client; forwards debug lines only if the user enabled them.

    Attributes:
        refused_login: The broker's refusal of the login; calls report only a time-out.
        unreachable: The reason why no broker is reached, or "".
    """

    __slots__ = ("_last_logged", "_name", "_with_debug", "refused_login", "unreachable")

    def __init__(self, name: str, *, with_debug: bool = False) -> None:
        self._name = name
        self._with_debug = with_debug
        self.refused_login: KafkaError | None = None
        self.unreachable = ""
        #: Per kind of line: time of the last forwarded one, and number suppressed since.
        self._last_logged: dict[str, tuple[float, int]] = {}

    def log(self, level: int, template: str, *parts: Any) -> None:
        if level <= logging.DEBUG:
            if self._with_debug:
                _LOGGER.debug("%s: %s", self._name, template % parts)
            return
        facility = str(parts[0]) if parts else template
        if facility in _ASKS_AGAIN:
            level = logging.DEBUG
        elif facility in _TRANSACTION:
            level = min(level, logging.WARNING)
        if facility in _CONNECTION:
            self.unreachable = _foreign(str(parts[-1])) or self.unreachable
            if _report_away(str(parts[-1])):
                return
        self.forward(level, facility, template % parts)

    def on_error(self, error: KafkaError) -> None:
        """Handle an error that belongs to no call (`error_cb`): lost broker, failed login."""
        if error.code() in LOGIN_FAILED:
            self.refused_login = error
        elif error.code() in AWAY and error.code() != ALL_BROKERS_DOWN:
            self.unreachable = error.str().partition(" (after ")[0]
        if error.code() == ALL_BROKERS_DOWN or (error.code() in AWAY and _report_away(error.str())):
            return  # each broker has its line
        if _foreign(error.str()):
            return  # the same line came before, with the reason
        level = logging.WARNING if error.retriable() or is_transient(error) else logging.ERROR
        self.forward(level, error.name(), f"{error.str()}{_advice(error)}")

    def cause_of(self, error: KafkaError) -> KafkaError:
        return self.refused_login if self.refused_login and is_transient(error) else error

    def forward(self, level: int, kind: str, text: str) -> None:
        now = time.monotonic()
        last, suppressed = self._last_logged.get(kind, (-_QUIET_S, 0))
        if now - last < _QUIET_S:
            self._last_logged[kind] = (last, suppressed + 1)
            return
        self._last_logged[kind] = (now, 0)
        more = f" ({suppressed} more like this)" if suppressed else ""
        _LOGGER.log(level, "%s: %s%s", self._name, text, more)


class _Away:
    """Time of the last line about each broker, of all clients of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged_s: dict[str, float] = {}

    def is_due(self, address: str) -> bool:
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._logged_s.get(address, -_QUIET_S) < _QUIET_S:
                return False
            self._logged_s[address] = now_s
            return True

    def clear(self) -> None:
        with self._lock:
            self._logged_s.clear()


away: Final = _Away()


def _report_away(text: str) -> bool:
    """Log once a minute that a broker can't be reached; return False if no broker is named."""
    found = _AWAY_LINE.search(text.partition(" (after ")[0])
    if found is None:
        return False
    address, reason = found["address"], found["reason"].removesuffix(".")
    if _ENDED_BY_US in text:
        return True
    reason = _foreign(text) or reason
    unreachable.see()
    if away.is_due(address):
        advice = f"; {AWAY_ADVICE}" if found["node"] == "bootstrap" else ""
        _BROKERS.warning("broker %s can't be reached: %s%s", address, reason, advice)
    return True


def _foreign(text: str) -> str:
    """Return the reason if a line tells of an answer that is not Kafka's, else "".

    >>> _foreign("Receive failed: Invalid response size 1213486160 (0..100000000)")
    'what answers there is not Kafka: it begins with "HTTP"'
    """
    found = _FOREIGN_SIZE.search(text)
    if found is None:
        return ""
    begins = (int(found[1]) & 0xFFFF_FFFF).to_bytes(4, "big")
    shown = begins.decode() if begins.isalnum() else begins.hex()
    return f'what answers there is not Kafka: it begins with "{shown}"'


class TransactionLog(ClientLog):
    """The log of a transactional producer.

    Attributes:
        doubt: The line that makes the open transaction's outcome unknown, or "".
        failure: The client's reason to abort the open transaction, or "".
        forbidden: The topic that the open transaction may not write, or "".
    """

    __slots__ = ("_offsets_sent", "doubt", "failure", "forbidden")

    def __init__(self, name: str, *, with_debug: bool = False) -> None:
        super().__init__(name, with_debug=with_debug)
        self.transaction_begins()

    def transaction_begins(self) -> None:
        self.doubt = ""
        self.failure = ""
        self.forbidden = ""
        self._offsets_sent = False

    def offsets_are_sent(self) -> None:
        """From now on, count a lost connection to any broker as a doubt."""
        self._offsets_sent = True

    def offsets_are_answered(self) -> None:
        """Count only a lost connection to the transaction coordinator again."""
        self._offsets_sent = False

    def log(self, level: int, template: str, *parts: Any) -> None:
        if parts:
            facility, text = str(parts[0]), str(parts[-1])
            if raises_doubt(facility, text, offsets_sent=self._offsets_sent):
                self.doubt = self.doubt or text
            elif facility == "TXNERR":
                self.failure = text
            elif facility == "ADDPARTS" and "authorization" in text:
                self.forbidden = text.split('"')[1]
        super().log(level, template, *parts)


class LeaderLog(TransactionLog):
    """The log of a leader's producer. A newer leader fences it: the caller sees that and handles it."""

    __slots__ = ()

    def forward(self, level: int, kind: str, text: str) -> None:
        if any(fenced in text for fenced in _FENCED):
            _LOGGER.debug("%s: %s", self._name, text)
        else:
            super().forward(level, kind, text)


def error_of(exception: KafkaException) -> KafkaError:
    error = exception.args[0]
    assert isinstance(error, KafkaError), "librdkafka's exceptions hold a KafkaError"
    return error


def _advice(error: KafkaError) -> str:
    if error.code() in LOGIN_FAILED:
        return f"; {LOGIN_ADVICE}"
    return ""


def make_client(make: Callable[..., Any], kind: ClientKind, config: Config, log: ClientLog) -> Any:
    """Make a client that logs to `log`; raise ConfigError, without the value, for a bad setting."""
    users_error_cb = config.get("error_cb")

    def on_error(error: KafkaError) -> None:
        log.on_error(error)
        if users_error_cb is not None:
            users_error_cb(error)

    try:
        return make(config | {"error_cb": on_error}, logger=log)
    except KafkaException as exception:
        refused(kind, error_of(exception).str(), exception)
    except (TypeError, ValueError) as exception:
        refused(kind, str(exception), exception)


def refused(kind: ClientKind, reason: str, cause: BaseException) -> NoReturn:
    """Raise a ConfigError without the cause, whose text may show a secret."""
    del cause
    raise construction_error(kind, reason) from None
