"""All that processes show and leave: command lines, environments, connections, files and topics."""

import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import psutil

from tests.integration.cluster import Cluster


class ProcessWatch(threading.Thread):
    """Reads the command lines, environments and connections of all children of this process.

    Attributes:
        seen: Texts by process id.
        plain: Command lines of processes with a connection to the forbidden port.
    """

    def __init__(self, forbidden_port: int) -> None:
        super().__init__(name="process watch", daemon=True)
        self._port = forbidden_port
        self._broker = {child.pid for child in psutil.Process().children(recursive=True)}
        self._ended = threading.Event()
        self.seen: dict[int, str] = {}
        self.plain: dict[int, str] = {}

    def run(self) -> None:
        me = psutil.Process()
        while not self._ended.wait(0.05):
            for child in me.children(recursive=True):
                if child.pid not in self._broker:
                    self._look(child)

    def _look(self, process: psutil.Process) -> None:
        try:
            command = " ".join(process.cmdline())
            # A shell or Java may replace its command line and environment.
            variables = [f"{name}={value}" for name, value in process.environ().items()]
            text = "\n".join([command, *variables])
            if text not in self.seen.get(process.pid, ""):
                self.seen[process.pid] = self.seen.get(process.pid, "") + text
            for connection in process.net_connections(kind="tcp"):
                if getattr(connection.raddr, "port", 0) == self._port:
                    self.plain[process.pid] = command
        except psutil.Error:
            return

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(30)


def files_below(*roots: Path) -> Iterator[Path]:
    for root in roots:
        yield from (path for path in root.rglob("*") if not path.is_symlink())


def too_open(*roots: Path, bits: int = 0o077) -> dict[str, str]:
    """Return the paths that another user may use, and files that can be executed."""
    return {
        str(path): stat.filemode(mode)
        for path in files_below(*roots)
        if (mode := path.stat().st_mode) & bits or (stat.S_ISREG(mode) and mode & 0o100)
    }


def files_with(words: list[bytes], *roots: Path) -> list[str]:
    return [
        str(path)
        for path in files_below(*roots)
        if path.is_file() and any(word in path.read_bytes() for word in words)
    ]


def texts_of_topics(cluster: Cluster, application_id: str) -> dict[str, bytes]:
    """Return all keys, values and headers of each topic of an application, also of its users."""
    return {
        topic: b"\n".join(
            record.key + (record.value or b"") + repr(record.headers).encode()
            for record in cluster.read(topic)
        )
        for topic in cluster.admin.list_topics()
        if application_id in topic
    }
