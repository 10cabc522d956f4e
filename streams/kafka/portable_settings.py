"""Client settings for other processes: secrets travel as references.

Public values and references (`env:NAME`, `file:/path`) stay unchanged. Any other value is written
to a file of this user, and the path is sent. For other machines it is rejected unless the
transport is encrypted.

The process that made the files locks their folder and deletes it at the end; after a kill, the
next process does.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tidewheel.state_stores.bulk_restore.urls import HIDDEN, redacted_url
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.config.client_properties import CLIENT_KINDS
from tidewheel.streams.config.secrets import resolve_secrets, shown
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.kafka.client.settings import ClientKind, ClientSettings
from tidewheel.streams.kafka.clients import KafkaClients

_PREFIX: Final = "tidewheel-secrets-"
_LOCK: Final = ".lock"
#: Prefix of references to stored URLs; fsspec has no such scheme.
_STORED_URL_PREFIX: Final = "kept:"


def settings_of(config: StreamsConfig, client_id: str = "") -> ClientSettings:
    return ClientSettings(
        bootstrap_servers=config.bootstrap_servers,
        application_id=config.application_id,
        client_id=client_id,
        kafka=dict(config.kafka),
        **{kind: config.client_properties(kind) for kind in CLIENT_KINDS},
    )


def without_clients(config: StreamsConfig) -> StreamsConfig:
    """Return a config without client properties and HTTP token: their secrets must not travel."""
    return config.replace(kafka={}, consumer={}, producer={}, admin={}, http_token=None)


class Keeper:
    """Store of secrets in files, which `close` deletes; returns references to them.

    Args:
        same_machine: The receiving processes run here, as this user.
    """

    def __init__(self, *, same_machine: bool, encrypted: bool = False) -> None:
        self._same_machine = same_machine
        self._encrypted = encrypted
        self._folder: Path | None = None
        self._lock = -1
        self._secret_count = 0

    def settings(self, settings: ClientSettings) -> ClientSettings:
        """Return settings that other processes may get; raise `ConfigError` to protect a secret."""
        tables = {kind: self._table(kind, getattr(settings, kind)) for kind in CLIENT_KINDS}
        return ClientSettings(
            bootstrap_servers=settings.bootstrap_servers,
            application_id=settings.application_id,
            client_id=settings.client_id,
            kafka={},  # its secrets must not travel
            **tables,
        )

    def url(self, option: str, url: str) -> str:
        """Return a URL that other processes may get; `opened_url` reverses it."""
        if redacted_url(url) == url:
            return url
        reference = self._secret(option, url, "leave its credentials to fsspec's own sources")
        return url if reference == url else f"{_STORED_URL_PREFIX}{reference}"

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _table(self, kind: ClientKind, properties: Mapping[str, Any]) -> dict[str, Any]:
        advice = "give it as env:NAME or file:/path that they can read"
        return {
            name: self._secret(f"{kind}[{name!r}]", value, advice)
            if shown(name, value) == HIDDEN
            else value
            for name, value in properties.items()
        }

    def _secret(self, what: str, value: Any, advice: str) -> Any:
        if self._same_machine:
            return f"file:{self._written(str(value))}"
        if self._encrypted:
            return value
        raise ConfigError(
            f"{what} holds a secret that would travel to other machines in the open; {advice}, or turn on Spark's "
            "spark.authenticate and spark.network.crypto.enabled"
        )

    def _written(self, text: str) -> Path:
        if self._folder is None:
            _delete_stale_folders()
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            unlocked = self._folder / f"{_LOCK}-new"
            self._lock = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # Named only once locked: other processes delete a folder whose `_LOCK` is unlocked.
            unlocked.rename(self._folder / _LOCK)
        path = self._folder / str(self._secret_count)
        self._secret_count += 1
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            # `resolve_secrets` removes this line end.
            file.write(f"{text}\r\n")
        return path


def _delete_stale_folders() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            is_own = folder.stat().st_uid == os.getuid()
            # A folder without a lock file is being created or deleted. Opening another user's
            # file fails.
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        with os.fdopen(lock, "rb"):
            if is_own and _is_free(lock):
                shutil.rmtree(folder, ignore_errors=True)


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # Locked, or no locks on this file system.
        return False
    return True


def opened_url(travelled: str) -> str:
    """Return the original URL of a result of `Keeper.url`.

    >>> opened_url("s3://bucket/snapshots")
    's3://bucket/snapshots'
    """
    if not travelled.startswith(_STORED_URL_PREFIX):
        return travelled
    reference = travelled.removeprefix(_STORED_URL_PREFIX)
    url: str = resolve_secrets({"url": reference}, "snapshot_location")["url"]
    return url


@contextlib.contextmanager
def portable_settings(
    settings: ClientSettings, *, same_machine: bool, encrypted: bool = False
) -> Generator[ClientSettings]:
    """Yield settings for other processes, valid inside the context; see `Keeper`."""
    with Keeper(same_machine=same_machine, encrypted=encrypted) as keeper:
        yield keeper.settings(settings)


def clients_of(settings: ClientSettings) -> KafkaClients:
    return KafkaClients(
        bootstrap_servers=settings.bootstrap_servers,
        application_id=settings.application_id,
        client_id=settings.client_id,
        consumer=settings.consumer,
        producer=settings.producer,
        admin=settings.admin,
        kafka=settings.kafka,
    )
