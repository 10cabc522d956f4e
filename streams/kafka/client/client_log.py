"""What librdkafka writes to its log: passed on to Python's logging, and read for what no call tells.

The client repeats an EndTxn request on its own after a lost connection and then reports success, although the first
one may still be on its way and end a *later* transaction (PROTOCOL.md H8). Only its debug log shows that. So the
transactional producer's log is a `TransactionLog`, which keeps such lines as doubt. Lines are handed over on the
thread that polls the client. In a commit that may be one of two, and each line only sets a field, so nothing here needs a lock.
"""

import logging
import re
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

from confluent_kafka import KafkaError, KafkaException

from tidewheel.streams.kafka.client.codes import ALL_BROKERS_DOWN, AWAY, LOGIN_FAILED, is_transient
from tidewheel.streams.kafka.client.settings import ClientKind, Config, construction_error

_LOGGER: Final = logging.getLogger("tidewheel.streams.kafka.client")

#: The same kind of line is passed on once in this time; the client repeats some 20 times a second.
_QUIET_S: Final = 30.0

#: What to do about a refused login.
LOGIN_ADVICE: Final = "check security.protocol, sasl.* and ssl.* of consumer, producer and admin"

_UNANSWERED_END: Final = re.compile(r"EndTxn returned _")
_ENDED_BY_US: Final = "_DESTROY"


def raises_doubt(facility: str, text: str, *, offsets_sent: bool) -> bool:
    """Whether a log line of the open transaction means that a request may be answered later, unseen.

    Requests of a transaction go to its coordinator, except its offsets, which go to the group's; so once they are
    under way a lost connection to any broker counts.
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
    """The `logger=` of a client. Debug lines are passed on only if the user asked librdkafka for them.

    Attributes:
        refused_login: What a broker said when it refused this client's login, or ""; calls only tell of a time-out.
        unreachable: Why a broker could not be reached, or "" if none was missed; calls only tell of a time-out here too.
    """

    __slots__ = ("_name", "_seen", "_with_debug", "refused_login", "unreachable")

    def __init__(self, name: str, *, with_debug: bool = False) -> None:
        self._name = name
        self._with_debug = with_debug
        self.refused_login = ""
        self.unreachable = ""
        #: When each kind of line was last passed on, and how many were held back since.
        self._seen: dict[str, tuple[float, int]] = {}

    def log(self, level: int, template: str, *parts: Any) -> None:
        """Take one line; librdkafka gives facility, client and text."""
        if level <= logging.DEBUG:
            if self._with_debug:
                _LOGGER.debug("%s: %s", self._name, template % parts)
            return
        self.say(level, str(parts[0]) if parts else template, template % parts)

    def on_error(self, error: KafkaError) -> None:
        """Take an error that belongs to no call (`error_cb`): lost brokers, failed logins."""
        if error.code() in LOGIN_FAILED:
            self.refused_login = error.str()
        elif error.code() in AWAY and error.code() != ALL_BROKERS_DOWN:
            self.unreachable = error.str().partition(" (after ")[0]
        level = logging.WARNING if error.retriable() or is_transient(error) else logging.ERROR
        self.say(level, error.name(), f"{error.str()}{_advice(error)}")

    def say(self, level: int, kind: str, text: str) -> None:
        """Pass a line on unless one of its kind was passed on just now."""
        now = time.monotonic()
        last, held_back = self._seen.get(kind, (-_QUIET_S, 0))
        if now - last < _QUIET_S:
            self._seen[kind] = (last, held_back + 1)
            return
        self._seen[kind] = (now, 0)
        more = f" ({held_back} more like this)" if held_back else ""
        _LOGGER.log(level, "%s: %s%s", self._name, text, more)


class TransactionLog(ClientLog):
    """The log of a transactional producer, read for doubts and for why a transaction failed.

    Attributes:
        doubt: The line that makes the outcome of the open transaction unknown, or "".
        failure: Why the client says that the open transaction must be aborted, or "".
    """

    __slots__ = ("_offsets_sent", "doubt", "failure")

    def __init__(self, name: str, *, with_debug: bool = False) -> None:
        super().__init__(name, with_debug=with_debug)
        self.doubt = ""
        self.failure = ""
        self._offsets_sent = False

    def transaction_begins(self) -> None:
        """Forget what was said of earlier transactions."""
        self.doubt = ""
        self.failure = ""
        self._offsets_sent = False

    def offsets_are_sent(self) -> None:
        """From here on a lost connection to any broker is a doubt."""
        self._offsets_sent = True

    def offsets_are_answered(self) -> None:
        """Again only one to the coordinator is."""
        self._offsets_sent = False

    def log(self, level: int, template: str, *parts: Any) -> None:
        """Take one line; librdkafka gives facility, client and text."""
        if parts:
            facility, text = str(parts[0]), str(parts[-1])
            if raises_doubt(facility, text, offsets_sent=self._offsets_sent):
                self.doubt = self.doubt or text
            elif facility == "TXNERR":
                self.failure = text
        super().log(level, template, *parts)


def error_of(exception: KafkaException) -> KafkaError:
    """Return the error inside librdkafka's exception."""
    error = exception.args[0]
    assert isinstance(error, KafkaError), "librdkafka's exceptions hold a KafkaError"
    return error


def _advice(error: KafkaError) -> str:
    if error.code() in LOGIN_FAILED:
        return f"; {LOGIN_ADVICE}"
    return ""


def make_client(make: Callable[..., Any], kind: ClientKind, config: Config, log: ClientLog) -> Any:
    """Make a librdkafka client that writes to `log`; a refused setting raises ConfigError without its value."""
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
    """Raise the ConfigError of a refused setting. The cause is dropped: its text may hold the value."""
    del cause
    raise construction_error(kind, reason) from None
