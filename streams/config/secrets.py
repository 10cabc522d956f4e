"""Secrets in client properties: never shown, resolved late.

An allow-list decides which properties are shown, so unknown ones are hidden. A value may be a
reference, `file:/path` or `env:NAME`, resolved when a client is created.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tidewheel.state_stores.bulk_restore.urls import HIDDEN
from tidewheel.streams.config.names import import_object
from tidewheel.streams.config.sources import is_utf8
from tidewheel.streams.errors import ConfigError

#: librdkafka properties shown in full, because they can't be secret.
_HARMLESS_NAMES: Final = frozenset({
    "acks", "allow.auto.create.topics", "auto.offset.reset", "batch.num.messages", "batch.size", "broker.address.family",
    "broker.address.ttl", "broker.version.fallback", "check.crcs", "client.dns.lookup", "client.id", "client.rack",
    "compression.codec", "compression.level", "compression.type", "connections.max.idle.ms", "debug",
    "delivery.timeout.ms", "enable.auto.commit", "enable.auto.offset.store", "enable.idempotence",
    "enable.metrics.push", "enable.partition.eof", "enable.ssl.certificate.verification", "error_cb", "group.id",
    "isolation.level", "linger.ms", "log.connection.close", "log.thread.name", "log_level", "max.in.flight",
    "max.in.flight.requests.per.connection", "max.partition.fetch.bytes", "max.poll.interval.ms", "message.max.bytes",
    "message.send.max.retries", "message.timeout.ms", "metadata.max.age.ms", "metadata.recovery.strategy", "oauth_cb",
    "receive.message.max.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms", "request.required.acks",
    "request.timeout.ms", "retries", "retry.backoff.max.ms", "retry.backoff.ms", "sasl.mechanism", "sasl.mechanisms",
    "sasl.oauthbearer.method", "security.protocol", "socket.connection.setup.timeout.ms", "socket.keepalive.enable",
    "socket.max.fails", "socket.nagle.disable", "socket.receive.buffer.bytes", "socket.send.buffer.bytes",
    "socket.timeout.ms", "ssl.ca.location", "ssl.certificate.location", "ssl.endpoint.identification.algorithm",
    "ssl.key.location", "ssl.keystore.location", "statistics.interval.ms", "stats_cb", "sticky.partitioning.linger.ms",
    "throttle_cb", "transaction.timeout.ms", "transactional.id",
})  # fmt: skip
_HARMLESS_PREFIXES: Final = ("fetch.", "queue.buffering.", "queued.", "topic.metadata.")

#: Properties that name a file; librdkafka's error for a missing file omits its name.
_FILE_NAMES: Final = frozenset({
    "sasl.kerberos.keytab", "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.jwt.template.file", "sasl.oauthbearer.assertion.private.key.file",
    "ssl.ca.location", "ssl.certificate.location", "ssl.crl.location", "ssl.engine.location",
    "ssl.key.location", "ssl.keystore.location",
})  # fmt: skip
#: `location` values that name no file: with them librdkafka searches system paths.
_NO_FILE: Final = frozenset({"probe"})

_REFERENCE: Final = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.*", re.DOTALL)
#: Shortest token that clients of an HTTP server show.
TOKEN_CHARACTERS_MIN: Final = 16
#: Larger secret files are refused: they are no password or key, or are endless.
_SECRET_MAX_BYTES: Final = 1024 * 1024


def shown(key: str, value: Any) -> Any:
    """Return a client property's value for display, hidden if it may be secret.

    >>> shown("linger.ms", 5), shown("sasl.password", "secret"), shown("sasl.password", "env:KAFKA_PASSWORD")
    (5, '***', 'env:KAFKA_PASSWORD')
    """
    if key in _HARMLESS_NAMES or key.startswith(_HARMLESS_PREFIXES):
        return value
    return value if isinstance(value, str) and is_reference(value) else HIDDEN


def is_reference(value: str) -> bool:
    """Return True if a value is a reference (`env:`, `file:/`), not the secret itself.

    >>> is_reference("file:/run/secrets/kafka"), is_reference("hunter2")
    (True, False)
    """
    return _REFERENCE.fullmatch(value) is not None


def is_token(text: str) -> bool:
    """Return True if a text may be the token of an HTTP server: long, and fit for a header.

    >>> is_token("0123456789abcdef"), is_token("short"), is_token("0123456789 abcdef")
    (True, False, False)
    """
    return (
        len(text) >= TOKEN_CHARACTERS_MIN
        and text.isascii()
        and text.isprintable()
        and " " not in text
    )


def redacted(properties: Mapping[str, Any]) -> dict[str, Any]:
    # Errors show malformed tables, whose keys may not be text; `shown` needs text.
    return {key: shown(str(key), value) for key, value in properties.items()}


def resolve_secrets(properties: Mapping[str, Any], option: str) -> dict[str, Any]:
    """Return client properties for a client: references resolved, callbacks imported.

    Call it when a client is created, and do not store the result.

    Raises:
        ConfigError: A referenced file or variable is missing, or a file is unreadable; names it,
            without content.
    """
    resolved = {
        key: _resolved(key, value, f"{option}[{key!r}]") for key, value in properties.items()
    }
    check_files(resolved, option)
    return resolved


def check_files(properties: Mapping[str, Any], option: str) -> None:
    """Raise ConfigError if a property names a file that this process can't read.

    References (`env:NAME`) are skipped: they may be meant for another process.
    """
    for key in _FILE_NAMES & properties.keys():
        value = str(properties[key])
        if value not in _NO_FILE and not is_reference(value):
            _check_readable(Path(value), f"{option}[{key!r}]")


def _check_readable(path: Path, where: str) -> None:
    try:
        if path.is_dir():
            next(path.iterdir(), None)
        else:
            with path.open("rb"):
                pass
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{where}: can't read {str(path)!r} ({_reason(error)}); check the path and its permissions"
        ) from error


def _resolved(key: str, value: Any, where: str) -> Any:
    if not isinstance(value, str):
        return value
    if key.endswith("_cb"):
        return import_object(value)
    scheme, _, rest = value.partition(":")
    match scheme:
        case "env":
            try:
                secret = os.environ.get(rest)
            except UnicodeEncodeError:
                secret = None
            if secret is None:
                raise ConfigError(
                    f"{where}: environment variable {rest!r} is not set; set it where this process starts"
                )
            if not is_utf8(secret):
                raise ConfigError(
                    f"{where}: environment variable {rest!r} is not UTF-8 text; librdkafka takes text"
                )
            return secret
        case "file":
            return _secret_of_file(Path(rest), where)
        case _:
            return value


def _secret_of_file(path: Path, where: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_SECRET_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{where}: can't read secret file {str(path)!r} ({_reason(error)}); check the path and its permissions"
        ) from error
    if len(content) > _SECRET_MAX_BYTES:
        raise ConfigError(
            f"{where}: secret file {str(path)!r} is larger than {_SECRET_MAX_BYTES} bytes; name the right file"
        )
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ConfigError(
            f"{where}: secret file {str(path)!r} is not UTF-8 text; librdkafka takes text"
        ) from None
    # Editors and `echo` append one line end that is not part of the secret.
    return text.removesuffix("\r\n" if text.endswith("\r\n") else "\n")


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or "") if isinstance(error, OSError) else str(error)
