"""`tidewheel dashboard`: a group as a live page for browsers."""

import errno
import socket
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Annotated, Final

from cyclopts import Parameter

from tidewheel.rebalance.inspect.history import Chronicle
from tidewheel.streams.cli.application import application_of
from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.aside import exit_immediately
from tidewheel.streams.cli.group_access import GroupAccess, access_to, moment_text
from tidewheel.streams.cli.output import print_error, print_json, text_console
from tidewheel.streams.cli.status_reader import StatusReader, check_interval
from tidewheel.streams.config.secrets import (
    TOKEN_CHARACTERS_MIN,
    is_reference,
    is_token,
    resolve_secrets,
)
from tidewheel.streams.dashboard.graph import GroupGraph, TopologyGraph, program_graph
from tidewheel.streams.dashboard.poller import GroupPoller, PolledGroup
from tidewheel.streams.dashboard.timeline import AlarmHistory, HistoryTexts
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.web.address import Address

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]

#: Packages that the extra `web` installs.
_NEEDED: Final = ("starlette", "uvicorn", "prometheus_client")
_EPISODES: Final = 30
_PORT_MAX: Final = 65_535


def dashboard(
    target: str | None = None,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    token: str | None = None,
    allowed_hosts: Annotated[
        Sequence[str], Parameter(name="--allowed-host", negative=(), show_default=False)
    ] = (),
    interval: float = 1.0,
    json: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Show a group as a live page for browsers, until Ctrl-C (or SIGTERM).

    It has the figures of `status`, read from the group's two topics, the topology and a time line:
    no member is asked, and the page can't change anything. The nodes of the topology are drawn if
    the target is MODULE:TOPOLOGY. Other paths: /api/status (the JSON of `status`), /metrics (for
    Prometheus) and /healthz. It needs `pip install 'tidewheel[web]'`.

    Only this machine can connect unless --host is given, which needs a token. It serves plain HTTP:
    over a network use a proxy with TLS, or `ssh -L`.

    Exit codes: 0 ended by Ctrl-C or a signal; 1 no such group; 2 wrong command line; 7 Kafka could
    not be reached; 9 the port is in use.

    Args:
        target: The application's MODULE:TOPOLOGY or id; or give --application-id.
        host: The address to listen on.
        port: The port to listen on; 0 for a free one.
        token: Secret for viewers, as env:NAME or file:/path; never the token itself, because other
            users can read it.
        allowed_hosts: Another host name by which viewers reach the page, such as a proxy's;
            repeatable.
        interval: Seconds between two reads.
        json: Print each event (ready, stopped) as a line of JSON.
        settings: Settings.
    """
    check_interval(interval)
    _check_extra()
    if not 0 <= port <= _PORT_MAX:
        raise ConfigError(
            f"--port {port}: a port is a number from 1 to {_PORT_MAX}, or 0 for a free one"
        )
    secret = None if token is None else _secret(token)
    address = Address.found(host, port)
    if not address.is_loopback and secret is None:
        raise ConfigError(
            f"--host {host}: other machines could read the group, so give a token too, such as --token "
            "file:/run/secrets/dashboard; or leave out --host and come through `ssh -L`"
        )
    config, program = application_of(target, settings or SettingsOptions())
    graph = None if program is None else program_graph(program.topology(config))
    with access_to(config, live=True) as access:
        access.check_exists()
        try:
            listening = address.listen()
        except OSError as error:
            return _no_place(host, port, error)
        with listening:
            report = _DashboardOutput(access.application_id, json=json)
            report.ready(address.url(listening.getsockname()[1]), with_token=secret is not None)
            poller = GroupPoller(_fetch_status(access, graph), interval)
            _serve(
                listening,
                access.application_id,
                poller,
                names=(*allowed_hosts, host),
                token=secret,
            )
            report.stopped()
            if poller.hangs:
                # A read that waits for a broker still uses the clients: closing them would block.
                exit_immediately(ExitCode.OK)
    return ExitCode.OK


def _serve(
    listening: socket.socket,
    application_id: str,
    poller: GroupPoller,
    *,
    names: Sequence[str],
    token: str | None,
) -> None:
    from tidewheel.streams.dashboard.server import serve  # noqa: PLC0415 - needs the extra

    serve(listening, application_id, poller, names=names, token=token)


def _fetch_status(access: GroupAccess, graph: TopologyGraph | None) -> Callable[[], PolledGroup]:
    status_reader = StatusReader(access)
    chronicle = access.chronicle = Chronicle(keep=_EPISODES, fold=access.log)
    history, alarms = HistoryTexts(moment_text), AlarmHistory()
    group_graph = GroupGraph(access.application_id)

    def fetch_status() -> PolledGroup:
        status = status_reader.read_status()
        return PolledGroup(
            status=status,
            history=history.read(chronicle.episodes()[-_EPISODES:]),
            alarms=alarms.add(status.alarms, status.read_ms),
            graph=graph or group_graph.read(access.group, access.inbox),
        )

    return fetch_status


def _check_extra() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"the dashboard needs {', '.join(missing)}: pip install 'tidewheel[web]'")


def _secret(reference: str) -> str:
    if not is_reference(reference):
        raise ConfigError(
            "--token: give env:NAME or file:/path, not the token itself: everybody on this machine can read command lines"
        )
    token = str(resolve_secrets({"token": reference}, "dashboard")["token"])
    if not is_token(token):
        raise ConfigError(
            f"--token {reference}: a token is at least {TOKEN_CHARACTERS_MIN} characters of ASCII without blanks, as "
            "`openssl rand -hex 16` makes one"
        )
    return token


def _no_place(host: str, port: int, error: OSError) -> int:
    if error.errno == errno.EADDRINUSE:
        print_error(
            f"port {port} of {host} is taken by another program; give another one with --port, or 0 for any that is free"
        )
        return ExitCode.REFUSED
    print_error(
        f"can't listen on {host}, port {port}: {error.strerror}; give another --host or --port"
    )
    return ExitCode.USAGE


class _DashboardOutput:
    def __init__(self, application_id: str, *, json: bool) -> None:
        self._application_id = application_id
        self._json = json
        self._out = text_console()

    def ready(self, url: str, *, with_token: bool) -> None:
        if self._json:
            print_json({"event": "ready", "application_id": self._application_id, "url": url})
            return
        asks = ", which asks for the token" if with_token else ""
        self._print(f"{self._application_id}: {url}{asks}  (Ctrl-C ends it)")

    def stopped(self) -> None:
        if self._json:
            print_json({"event": "stopped"})
        else:
            self._print("stopped")

    def _print(self, text: str) -> None:
        self._out.print(text, markup=False, highlight=False, soft_wrap=True)
