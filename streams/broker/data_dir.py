"""The folder of one broker: its data, its settings, its logs, and who holds it.

server.properties    what Kafka was started with; may hold secrets, so only the owner can read it
log4j2.properties    where Kafka logs
kafka/               Kafka's own files, topics and metadata
logs/broker.log      Kafka's log             logs/output.log    what Java printed besides
fencing/             the same files of the controller that fences the last run before a start
broker.json          version and ports of the last start
broker.lock          locked for as long as a broker runs here
"""

import contextlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tidewheel.state_stores.private_files import make_private_directory
from tidewheel.streams.broker.broker_errors import BrokerError, DataDirInUseError
from tidewheel.streams.broker.file_lock import FileLock
from tidewheel.streams.broker.server_config import format_properties, log4j_config

_TAIL_BYTES = 64 << 10
_CLUSTER_ID = re.compile(r"^cluster\.id=(\S+)$", re.MULTILINE)


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """What is noted about the last start."""

    version: str
    port: int
    controller_port: int


class DataDir:
    """See the module's description for what lies where."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.properties_file = path / "server.properties"
        self.log4j_file = path / "log4j2.properties"
        self.log_dir = path / "kafka"
        self.log_file = path / "logs" / "broker.log"
        self.output_file = path / "logs" / "output.log"
        self._record_file = path / "broker.json"
        self._lock = FileLock(path / "broker.lock")

    @property
    def lock_fd(self) -> int:
        """The locked descriptor, for the broker to keep."""
        return self._lock.fileno()

    def lock(self, version: str) -> None:
        """Take the folder for a broker of `version`.

        Raises:
            DataDirInUseError: A broker runs here.
            BrokerError: A newer Kafka wrote the data, or the folder can't be used.
        """
        try:
            # Only their user may read the records that the broker keeps here.
            make_private_directory(self.path)
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            locked = self._lock.try_acquire()
        except OSError as error:
            raise BrokerError(
                f"data folder {self.path} can't be used: {error.strerror}; choose another"
            ) from error
        if not locked:
            raise DataDirInUseError(
                f"data folder {self.path} is in use by another broker; stop that one, or choose "
                "another folder"
            )
        record = self._record()
        if record is not None and _numbers(record.version) > _numbers(version):
            self.unlock()
            raise BrokerError(
                f"data folder {self.path} was written by Kafka {record.version}, which {version} "
                f"can't read; use version {record.version}, or choose another folder"
            )

    def unlock(self) -> None:
        """Let go of the folder; a broker that still runs keeps it."""
        self._lock.release()

    def fencing(self) -> "DataDir":
        """The files of the controller that fences the last run, with no log yet."""
        files = DataDir(self.path / "fencing")
        shutil.rmtree(files.path, ignore_errors=True)
        files.log_file.parent.mkdir(parents=True)
        return files

    def write_config(self, properties: Mapping[str, str]) -> None:
        """Write the settings files."""
        self.properties_file.touch(mode=0o600)
        self.properties_file.write_text(format_properties(properties))
        self.log4j_file.write_text(log4j_config(self.log_file))

    def cluster_id(self, properties: Mapping[str, str]) -> str | None:
        """The id the folder was formatted with; None if it has not been."""
        first_log_dir = properties["log.dirs"].split(",")[0].strip()
        try:
            found = _CLUSTER_ID.search(Path(first_log_dir, "meta.properties").read_text())
        except FileNotFoundError:
            return None
        return None if found is None else found[1]

    def last_ports(self) -> tuple[int, int] | None:
        """The ports for clients and the controller of the last start here."""
        record = self._record()
        return None if record is None else (record.port, record.controller_port)

    def remember(self, version: str, port: int, controller_port: int) -> None:
        """Note what was started, for the next start."""
        record = _Record(version=version, port=port, controller_port=controller_port)
        self._record_file.write_bytes(msgspec.json.encode(record) + b"\n")

    def start_new_log(self) -> None:
        """Move the log of the last run aside: what is looked for in the log is about this run."""
        for file in (self.log_file, self.output_file):
            with contextlib.suppress(FileNotFoundError):
                file.replace(file.with_name(f"{file.name}.last"))

    def log_contains(self, text: str, *, after: str = "") -> bool:
        """Whether Kafka or Java said so near the end of its log, and not before it said `after`."""
        tails = (_tail(file) for file in (self.log_file, self.output_file))
        return any(text in (tail.rpartition(after)[2] if after else tail) for tail in tails)

    def last_log_lines(self, count: int) -> list[str]:
        """The end of what Java printed, then the end of Kafka's log."""
        printed = _tail(self.output_file).splitlines()
        logged = _tail(self.log_file).splitlines()
        return (printed[-count:] + logged)[-count:] if logged else printed[-count:]

    def _record(self) -> _Record | None:
        try:
            return msgspec.json.decode(self._record_file.read_bytes(), type=_Record)
        except (FileNotFoundError, msgspec.DecodeError):
            return None  # only a convenience: without it the broker gets new ports


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _tail(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            opened.seek(0, 2)
            opened.seek(max(0, opened.tell() - _TAIL_BYTES))
            return opened.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
