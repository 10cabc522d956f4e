"""A real PostgreSQL for tests: started in a folder of its own, stopped and started again by tests."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Self

import psycopg
import pytest

from checks.postgres import HELP, find_postgres
from tests.integration.security.secured_broker import free_ports

_PATIENCE_S: Final = 120.0


def programs() -> Path:
    """Return the folder of PostgreSQL's programs; without one, skip the test, or fail it in CI."""
    folder = find_postgres()
    if folder is None:
        if os.environ.get("CI"):
            pytest.fail(HELP)
        pytest.skip(HELP)
    return folder


class PostgresServer:
    """A server on a free port; a context manager. PostgreSQL refuses to run as root."""

    def __init__(self) -> None:
        self._programs = programs()
        self._folder = Path(tempfile.mkdtemp(prefix="tidewheel-postgres-"))
        self._folder.chmod(0o755)
        self._data = self._folder / "data"
        self._data.mkdir(mode=0o700)
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = next(name for name in ("postgres", "nobody") if _has_user(name))
            about = pwd.getpwnam(user)
            self._user = {"user": about.pw_uid, "group": about.pw_gid, "extra_groups": []}
            os.chown(self._data, about.pw_uid, about.pw_gid)
            os.chown(self._folder, about.pw_uid, about.pw_gid)
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        command = [self._programs / "initdb", "--pgdata", self._data, "--username", "tests"]
        subprocess.run(
            [*map(str, command), "--auth", "trust", "--no-sync", "--encoding", "UTF8"],
            check=True, stdout=subprocess.DEVNULL, cwd=self._folder, **self._user,
        )  # fmt: skip

    @property
    def conninfo(self) -> str:
        return f"host=127.0.0.1 port={self._port} user=tests dbname=postgres"

    def start(self) -> None:
        assert self._process is None
        command = [self._programs / "postgres", "-D", self._data, "-p", self._port]
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": "60",
        }
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*map(str, command), *(f"--{name}={value}" for name, value in settings.items())],
                stdout=log, stderr=log, cwd=self._folder, **self._user,
            )  # fmt: skip
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                psycopg.connect(self.conninfo, connect_timeout=5).close()
            except psycopg.OperationalError:
                log_text = (self._folder / "log").read_text()[-2_000:]
                assert self._process.poll() is None, f"PostgreSQL ended: {log_text}"
                assert time.monotonic() < deadline, f"PostgreSQL does not answer: {log_text}"
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """Stop the server at once; connections break."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(_PATIENCE_S)
            self._process = None

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
