"""HTTP server of a worker: its address, its announcement in the group, its start."""

import errno
import logging
import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.config.secrets import is_token, resolve_secrets
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.group.key_metadata import HostInfo
from tidewheel.streams.web.address import Address
from tidewheel.streams.worker.process_view import ProcessView

if TYPE_CHECKING:
    from tidewheel.streams.web.http_server import HttpServer

_log = logging.getLogger("tidewheel")

#: Packages that the extra `web` installs.
_NEEDED: Final = ("starlette", "uvicorn", "prometheus_client")
_PORT_MAX: Final = 65_535


def check_extra(what: str) -> None:
    """Raise `ConfigError` if a package of the extra is missing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{what} needs {', '.join(missing)}: pip install 'tidewheel[web]'")


def serve_view(view: ProcessView, slot: int = 0) -> "HttpServer":
    """Listen on `http_host` and `http_port`, announce the address, and serve.

    The worker of slot n adds n to the port.

    Raises:
        ConfigError: A package, the address or the token is missing, or the port is taken.
    """
    check_extra("http_port")
    from tidewheel.streams.web.http_server import HttpServer  # noqa: PLC0415 - needs the extra
    from tidewheel.streams.web.worker_app import worker_app  # noqa: PLC0415 - needs the extra

    config = view.config
    token = http_token(config)
    address = _address(config, slot, with_token=token is not None)
    listening = _listen(address)
    port: int = listening.getsockname()[1]
    view.application.announced.endpoint = str(_announced(config, address, port, slot))
    names = (config.http_host, *_own_names(config))
    server = HttpServer(
        worker_app(view, token=token, names=names, is_announced=True),
        listening,
        address.url(port).rstrip("/"),
    )
    _log.info("metrics, health, state and queries: %s/", server.url)
    return server


def http_token(config: StreamsConfig) -> str | None:
    """Return the token with its reference resolved; raise `ConfigError` for a bad one."""
    if config.http_token is None:
        return None
    token = str(resolve_secrets({"http_token": config.http_token}, "settings")["http_token"])
    if not is_token(token):
        raise ConfigError(
            "http_token: the text that it refers to is no token; give 16 or more ASCII characters without blanks, as "
            "`openssl rand -hex 16` prints them"
        )
    return token


def _address(config: StreamsConfig, offset: int, *, with_token: bool) -> Address:
    assert config.http_port is not None
    port = config.http_port + offset if config.http_port else 0
    if port > _PORT_MAX:
        raise ConfigError(
            f"http_port={config.http_port}: worker {offset} would listen on port {port}, which does not exist; give a "
            "lower one"
        )
    address = Address.found(config.http_host, port, option="http_host=")
    if not address.is_loopback and not with_token:
        raise ConfigError(
            f"http_host={config.http_host}: other machines could read metrics and stores, so give http_token too, such as "
            "file:/run/secrets/tidewheel; or leave http_host out, and only this machine can connect"
        )
    return address


def _listen(address: Address) -> socket.socket:
    try:
        return address.listen()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"http_port: port {address.port} of {address.host} is taken by another program; give another one, or 0 "
                "for any that is free"
            ) from error
        raise ConfigError(
            f"http_port: can't listen on {address.host}, port {address.port} ({error.strerror}); give another http_host "
            "or http_port"
        ) from error


def _announced(config: StreamsConfig, address: Address, port: int, offset: int) -> HostInfo:
    """Return the address by which other members reach this server."""
    if config.application_server is not None:
        given = HostInfo.of(config.application_server)
        return given._replace(port=given.port + offset if config.http_port else port)
    return HostInfo(socket.gethostname() if address.is_unspecified else address.host, port)


def _own_names(config: StreamsConfig) -> tuple[str, ...]:
    server = config.application_server
    named = () if server is None else (HostInfo.of(server).host,)
    return (socket.gethostname(), *named)
