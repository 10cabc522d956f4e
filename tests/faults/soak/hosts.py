"""Hosts of workers in a soak: each has a disk and a network of its own, which the nemesis breaks."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.faults.disks import SmallDisk
from tests.faults.network import namespaces
from tests.faults.network.namespaces import network
from tests.faults.soak.schedule import WORKERS

_DISK_MB: Final = 64


class Host:
    """Attributes:
    disk: A worker's state directory.
    within: Command that runs another one on this host.
    """

    def __init__(
        self, disk: SmallDisk, relay: "subprocess.Popen[bytes]", within: Sequence[str]
    ) -> None:
        self.disk = disk
        self.within = within
        self._relay = relay

    def cut(self) -> None:
        self._relay.send_signal(signal.SIGSTOP)

    def connect(self) -> None:
        self._relay.send_signal(signal.SIGCONT)


def missing() -> str:
    """Return the reason why this machine can't have such hosts, or an empty text."""
    return namespaces.missing()


@contextmanager
def hosts(folder: Path, bootstrap_servers: str) -> Generator[dict[str, Host]]:
    ports = [each.rpartition(":")[2] for each in bootstrap_servers.split(",")]
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(_host(folder / f"state-{name}", ports)) for name in WORKERS
        }


@contextmanager
def _host(state_dir: Path, ports: Sequence[str]) -> Generator[Host]:
    outside = f"/proc/{os.getpid()}/ns/net"
    with network() as net:
        relay = subprocess.Popen(
            [*net.within, sys.executable, "-m", "tests.faults.soak.relay", outside, *ports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        disk = SmallDisk(state_dir, megabytes=_DISK_MB)
        try:
            assert relay.stdout is not None
            assert relay.stdout.readline(), "the relay listens"
            yield Host(disk, relay, net.within)
        finally:
            disk.unmount()
            relay.kill()
            relay.communicate()
