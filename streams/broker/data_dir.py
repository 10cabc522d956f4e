"""The folder of one broker: data, settings, logs and lock.

server.properties    Kafka's settings; may have secrets, so only the owner can read it
log4j2.properties    log settings
kafka/               Kafka's own files: topics and metadata
logs/broker.log      Kafka's log
logs/output.log      output of Java
fencing/             the same files of the controller that runs first (`fencing_properties`)
broker.json          version and ports of the last start
broker.lock          locked while a broker runs here
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
    version: str
    port: int
    controller_port: int


class DataDir:
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
        return self._lock.fileno()

    def lock(self, version: str) -> None:
        try:
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
        self._lock.release()

    def fencing(self) -> "DataDir":
        """Return an emptied folder for the controller that runs alone to fence the last broker."""
        files = DataDir(self.path / "fencing")
        shutil.rmtree(files.path, ignore_errors=True)
        files.log_file.parent.mkdir(parents=True)
        return files

    def write_config(self, properties: Mapping[str, str]) -> None:
        self.properties_file.touch(mode=0o600)
        self.properties_file.write_text(format_properties(properties))
        self.log4j_file.write_text(log4j_config(self.log_file))

    def cluster_id(self, properties: Mapping[str, str]) -> str | None:
        first_log_dir = properties["log.dirs"].split(",")[0].strip()
        try:
            match = _CLUSTER_ID.search(Path(first_log_dir, "meta.properties").read_text())
        except FileNotFoundError:
            return None
        return None if match is None else match[1]

    def last_ports(self) -> tuple[int, int] | None:
        """Return the client port and controller port of the last start."""
        record = self._record()
        return None if record is None else (record.port, record.controller_port)

    def remember(self, version: str, port: int, controller_port: int) -> None:
        record = _Record(version=version, port=port, controller_port=controller_port)
        self._record_file.write_bytes(msgspec.json.encode(record) + b"\n")

    def start_new_log(self) -> None:
        """Rename the log of the last run: `log_contains` must search only this run's lines."""
        for file in (self.log_file, self.output_file):
            with contextlib.suppress(FileNotFoundError):
                file.replace(file.with_name(f"{file.name}.last"))

    def log_contains(self, text: str, *, after: str = "") -> bool:
        tails = (_tail(file) for file in (self.log_file, self.output_file))
        return any(text in (tail.rpartition(after)[2] if after else tail) for tail in tails)

    def last_log_lines(self, count: int) -> list[str]:
        printed = _tail(self.output_file).splitlines()
        logged = _tail(self.log_file).splitlines()
        return (printed[-count:] + logged)[-count:] if logged else printed[-count:]

    def _record(self) -> _Record | None:
        try:
            return msgspec.json.decode(self._record_file.read_bytes(), type=_Record)
        except (FileNotFoundError, msgspec.DecodeError):
            return None  # without it the broker gets new ports


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
