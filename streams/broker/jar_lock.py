"""The list of jars a Kafka version consists of, each with its size and SHA-256.

For the pinned version the list is part of this package (`kafka-<version>.sha256`); for any other it
is written when the jars are first fetched, so later damage is noticed all the same.
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
    """One jar as it has to be."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JarProblem:
    """What is wrong with one jar of a folder."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JarLock:
    """All jars of one Kafka version, in the order of their names."""

    jars: tuple[LockedJar, ...]

    @classmethod
    def pinned(cls, version: str) -> Self | None:
        """The list committed for `version`; None if this package has none."""
        file = resources.files("tidewheel.streams.broker").joinpath(f"kafka-{version}.sha256")
        return cls.parse(file.read_text(), origin=file.name) if file.is_file() else None

    @classmethod
    def parse(cls, text: str, *, origin: str) -> Self:
        """Read what `format` wrote.

        Raises:
            BrokerError: A line is not a checksum, a size and a jar's name.
        """
        jars: list[LockedJar] = []
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            parts = line.split()
            # A name with a slash could reach outside the folder it is looked up in.
            if len(parts) != 3 or not parts[1].isdigit() or "/" in parts[2]:  # noqa: PLR2004  # the three columns
                raise BrokerError(
                    f"{origin}, line {number}: expected `sha256  bytes  jar`; delete the file's "
                    "folder to have the jars fetched anew"
                )
            jars.append(LockedJar(sha256=parts[0], size_bytes=int(parts[1]), name=parts[2]))
        return cls(jars=tuple(jars))

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """What the jars in `folder` are now."""
        return cls(
            jars=tuple(
                LockedJar(name=path.name, size_bytes=path.stat().st_size, sha256=sha256_of(path))
                for path in sorted(folder.glob("*.jar"))
            )
        )

    @property
    def total_bytes(self) -> int:
        """The size of all jars together."""
        return sum(jar.size_bytes for jar in self.jars)

    def format(self) -> str:
        """One line a jar, under a header that names the columns."""
        lines = (f"{jar.sha256}  {jar.size_bytes}  {jar.name}" for jar in self.jars)
        return "\n".join([_HEADER, *lines]) + "\n"

    def paths(self, folder: Path) -> tuple[Path, ...]:
        """Where the jars lie: these and no other file of the folder may run."""
        return tuple(folder / jar.name for jar in self.jars)

    def problems(self, folder: Path, *, read_all: bool) -> tuple[JarProblem, ...]:
        """Every jar of `folder` that is not as it has to be.

        Args:
            folder: Where the jars are.
            read_all: Compare checksums too; otherwise only sizes, which costs next to nothing.
        """
        return tuple(_problems(self.jars, folder, read_all=read_all))


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal digits."""
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
            how = "is truncated" if size_bytes < jar.size_bytes else "is too long"
            reason = f"{how} ({size_bytes} bytes instead of {jar.size_bytes})"
            yield JarProblem(name=jar.name, reason=reason)
        elif read_all and (found := sha256_of(path)) != jar.sha256:
            reason = f"is corrupt (SHA-256 {found[:16]}… instead of {jar.sha256[:16]}…)"
            yield JarProblem(name=jar.name, reason=reason)
