"""Client settings for other processes: secrets travel as references, never in what is sent to them.

What may be shown (`tidewheel.streams.config.secrets`) travels as it is, and so do references such as `env:NAME` and `file:/path`, which
are resolved where a client is made. Any other value goes to a file that only this user can read, and travels as the
path of it: that works on this machine. Elsewhere it is refused, unless everything that travels there is encrypted.

The folder of such files is locked by the process that made it, and deleted when it is done; what one left behind that was killed is deleted by
the next that keeps something.
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

from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.config.secrets import HIDDEN, redacted_url, resolve_secrets, shown
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.kafka.client.settings import ClientKind, ClientSettings
from tidewheel.streams.kafka.clients import KafkaClients

_KINDS: Final[tuple[ClientKind, ...]] = ("consumer", "producer", "admin")
_PREFIX: Final = "tidewheel-secrets-"
_LOCK: Final = ".lock"
#: Stands before the reference to a kept URL: no scheme of fsspec's.
_KEPT: Final = "kept:"


def settings_of(config: StreamsConfig, client_id: str = "") -> ClientSettings:
    """Return the settings of an application's clients, as its workers use them."""
    return ClientSettings(
        bootstrap_servers=config.bootstrap_servers,
        application_id=config.application_id,
        client_id=client_id,
        consumer=config.consumer,
        producer=config.producer,
        admin=config.admin,
    )


class Keeper:
    """Keeps what must not travel, for as long as it is open, and tells what travels in its place.

    Args:
        same_machine: The processes that things travel to run here, as this user.
        encrypted: What is sent to them is encrypted on the way.
    """

    def __init__(self, *, same_machine: bool, encrypted: bool = False) -> None:
        self._same_machine = same_machine
        self._encrypted = encrypted
        self._folder: Path | None = None
        self._lock = -1
        self._kept = 0

    def settings(self, settings: ClientSettings) -> ClientSettings:
        """Return settings that may travel.

        Raises:
            ConfigError: A secret would have to travel; names the property and how to refer to it instead.
        """
        tables = {kind: self._table(kind, getattr(settings, kind)) for kind in _KINDS}
        return ClientSettings(
            bootstrap_servers=settings.bootstrap_servers,
            application_id=settings.application_id,
            client_id=settings.client_id,
            **tables,
        )

    def url(self, option: str, url: str) -> str:
        """Return a URL that may travel; `opened_url` gives it back.

        Raises:
            ConfigError: It holds a secret, which would have to travel.
        """
        if redacted_url(url) == url:
            return url
        kept = self._secret(option, url, "leave its credentials to where fsspec looks for them")
        return url if kept == url else f"{_KEPT}{kept}"

    def close(self) -> None:
        """Delete what was kept; idempotent."""
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
            _delete_left_behind()
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))  # only this user may look into it
            unlocked = self._folder / f"{_LOCK}-new"
            self._lock = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            unlocked.rename(self._folder / _LOCK)  # whoever looks for it finds it locked
        path = self._folder / str(self._kept)
        self._kept += 1
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(f"{text}\n")  # the reader takes one newline off
        return path


def _delete_left_behind() -> None:
    """Delete the folders of processes of this user that were killed: nobody holds their locks any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            is_ours = folder.stat().st_uid == os.getuid()
            # A folder without its lock has just been made, or is being deleted; a stranger's can't be opened.
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # gone meanwhile, too: another process deletes as this one does
            continue
        with os.fdopen(lock, "rb"):
            if is_ours and _is_free(lock):
                shutil.rmtree(folder, ignore_errors=True)


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or on a file system without locks
        return False
    return True


def opened_url(travelled: str) -> str:
    """Return the URL that `Keeper.url` let travel.

    >>> opened_url("s3://bucket/snapshots")
    's3://bucket/snapshots'
    """
    if not travelled.startswith(_KEPT):
        return travelled
    reference = travelled.removeprefix(_KEPT)
    url: str = resolve_secrets({"url": reference}, "snapshot_location")["url"]
    return url


@contextlib.contextmanager
def portable_settings(
    settings: ClientSettings, *, same_machine: bool, encrypted: bool = False
) -> Generator[ClientSettings]:
    """Yield settings that other processes can be given, for as long as the body runs; see `Keeper`."""
    with Keeper(same_machine=same_machine, encrypted=encrypted) as keeper:
        yield keeper.settings(settings)


def clients_of(settings: ClientSettings) -> KafkaClients:
    """Return an application's way to its cluster, made of its settings: here, or where they have travelled to."""
    return KafkaClients(
        bootstrap_servers=settings.bootstrap_servers,
        application_id=settings.application_id,
        client_id=settings.client_id,
        consumer=settings.consumer,
        producer=settings.producer,
        admin=settings.admin,
    )
