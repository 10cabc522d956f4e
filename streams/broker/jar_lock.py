"""List of a Kafka version's jars with their sizes and SHA-256.

This package has the list of the pinned versions. For others it is written after the first fetch,
so later damage is detected.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Self

from tidewheel.streams.broker.broker_errors import BrokerError

_CHUNK_BYTES = 1 << 20
_HEADER = "# sha256  bytes  jar"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedJar:
    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JarProblem:
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JarLock:
    jars: tuple[LockedJar, ...]

    @classmethod
    def pinned(cls, version: str) -> Self | None:
        """Return this package's list of the jars of a Kafka version; None if it has none."""
        file = resources.files("tidewheel.streams.broker").joinpath(f"kafka-{version}.sha256")
        return cls.parse(file.read_text(), origin=file.name) if file.is_file() else None

    @classmethod
    def parse(cls, text: str, *, origin: str) -> Self:
        jars: list[LockedJar] = []
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            parts = line.split()
            # A name with a slash could leave the folder.
            if len(parts) != 3 or not parts[1].isdigit() or "/" in parts[2]:  # noqa: PLR2004 - the three columns
                raise BrokerError(
                    f"{origin}, line {number}: expected `sha256  bytes  jar`; delete the file's "
                    "folder, then the jars are fetched again"
                )
            jars.append(LockedJar(sha256=parts[0], size_bytes=int(parts[1]), name=parts[2]))
        return cls(jars=tuple(jars))

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        return cls(
            jars=tuple(
                LockedJar(name=path.name, size_bytes=path.stat().st_size, sha256=sha256_of(path))
                for path in sorted(folder.glob("*.jar"))
            )
        )

    @property
    def total_bytes(self) -> int:
        return sum(jar.size_bytes for jar in self.jars)

    def format(self) -> str:
        lines = (f"{jar.sha256}  {jar.size_bytes}  {jar.name}" for jar in self.jars)
        return "\n".join([_HEADER, *lines]) + "\n"

    def paths(self, folder: Path) -> tuple[Path, ...]:
        """Return the listed files: no other file may get into the class path."""
        return tuple(folder / jar.name for jar in self.jars)

    def problems(self, folder: Path, *, read_all: bool) -> tuple[JarProblem, ...]:
        """Return missing and changed jars; without `read_all`, compare sizes only."""
        return tuple(_problems(self.jars, folder, read_all=read_all))


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _problems(jars: Iterable[LockedJar], folder: Path, *, read_all: bool) -> Iterable[JarProblem]:
    for jar in jars:
        path = folder / jar.name
        if not path.is_file():
            yield JarProblem(name=jar.name, reason="is missing")
            continue
        size_bytes = path.stat().st_size
        if size_bytes != jar.size_bytes:
            fault = "is truncated" if size_bytes < jar.size_bytes else "is too long"
            reason = f"{fault} ({size_bytes} bytes instead of {jar.size_bytes})"
            yield JarProblem(name=jar.name, reason=reason)
        elif read_all and (checksum := sha256_of(path)) != jar.sha256:
            reason = f"is corrupt (SHA-256 {checksum[:16]}… instead of {jar.sha256[:16]}…)"
            yield JarProblem(name=jar.name, reason=reason)
