"""Namespaces for workers: a network of their own behind a link, and names of their own."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

#: Names of links; the last digit of both addresses. 192.0.2.0/24 is reserved for examples.
_LINKS: Final = range(1, 10)
_COMMANDS: Final = ("ip", "unshare", "nsenter", "mount")


def missing() -> str:
    """Return the reason why this machine has no namespaces for us, or an empty text."""
    if os.geteuid() != 0:
        return "only root may make network and mount namespaces"
    absent = [command for command in _COMMANDS if shutil.which(command) is None]
    if absent:
        return f"namespaces need the commands {', '.join(absent)}"
    try:
        _run("unshare", "--net", "--mount", "true")
    except subprocess.CalledProcessError as error:
        return f"this machine allows no namespaces: {error.stderr.strip()}"
    return ""


class Network:
    """A network namespace, connected to this one by a virtual Ethernet link.

    Attributes:
        host: This machine's address, seen from inside.
        within: Command that runs another one inside.
    """

    def __init__(self, holder: int, number: int) -> None:
        self._inner = f"tw-in{number}"
        self.host = f"192.0.2.{number}"
        self.within = ("nsenter", f"--net=/proc/{holder}/ns/net")
        address = f"192.0.2.{100 + number}"
        _run("ip", "address", "add", self.host, "peer", address, "dev", f"tw-out{number}")
        _run("ip", "link", "set", f"tw-out{number}", "up")
        self._run("ip", "address", "add", address, "peer", self.host, "dev", self._inner)
        self._run("ip", "link", "set", "lo", "up")
        self.connect()

    def cut(self) -> None:
        self._run("ip", "link", "set", self._inner, "down")

    def connect(self) -> None:
        self._run("ip", "link", "set", self._inner, "up")

    def _run(self, *command: str) -> None:
        _run(*self.within, *command)


@contextmanager
def network() -> Iterator[Network]:
    # The namespace and the link end with this process, which ends with the test's pipe.
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; exec cat"],  # noqa: S607 - found by `missing`
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline(), "the namespace is made"
        yield Network(holder.pid, _link(holder.pid))


def _link(holder: int) -> int:
    for number in _LINKS:
        outer, inner = f"tw-out{number}", f"tw-in{number}"
        # Another test may use this number.
        with suppress(subprocess.CalledProcessError):
            peer = ("peer", "name", inner, "netns", str(holder))
            _run("ip", "link", "add", outer, "type", "veth", *peer)
            return number
    raise AssertionError("all links are in use: ip link show type veth")


class Names:
    """Host names that only processes run by `within` see; no name server answers them."""

    def __init__(self, folder: Path) -> None:
        self._hosts = folder / "hosts"
        servers = folder / "resolv.conf"
        self.forget()
        servers.write_text("nameserver 127.0.0.1\n")
        binds = (
            f"mount --bind {self._hosts} /etc/hosts",
            f"mount --bind {servers} /etc/resolv.conf",
        )
        self.within = ("unshare", "--mount", "sh", "-ec", f'{"; ".join(binds)}; exec "$@"', "sh")

    def know(self, name: str) -> None:
        # In place: the mounts are of this file.
        self._hosts.write_text(f"127.0.0.1 localhost {name}\n")

    def forget(self) -> None:
        self._hosts.write_text("127.0.0.1 localhost\n")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
