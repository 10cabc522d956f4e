"""The lock file, constraints.txt, as values: read, written and asked for the pins of a group.

The file is a pip requirements file with one hash for every file of a release, so it holds on every
platform. It names no registry and no host: where files come from is the installing side's choice.
Each pin says for which groups of pyproject.toml it is there, so that a demo need not install a type
checker. This module uses the standard library only: it runs before anything is installed.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "constraints.txt"

_HEADER = """\
# The lock: every package that the Makefile installs, pinned, with the hashes of all its files.
# Made by `make lock`; do not edit. Each line `for:` names groups of pyproject.toml.
"""
_PIN = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)(?: ; (?P<marker>[^\\]+?))? \\$"
)
_HASH = re.compile(r"^    --hash=(?P<hash>sha256:[0-9a-f]{64})(?P<more> \\)?$")
_GROUPS = re.compile(r"^    # for: (?P<groups>.+)$")


class LockError(Exception):
    """The lock file cannot be read; the text names the line and the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One package at one version."""

    name: str
    version: str
    marker: str | None
    hashes: tuple[str, ...]
    groups: frozenset[str]

    def requirement(self) -> str:
        """The pin as lines of a requirements file, without the groups."""
        marker = f" ; {self.marker}" if self.marker else ""
        lines = [f"{self.name}=={self.version}{marker}", *(f"    --hash={h}" for h in self.hashes)]
        return " \\\n".join(lines) + "\n"


def render(pins: Iterable[Pin]) -> str:
    """The text of the lock file."""
    parts = (
        f"{pin.requirement()}    # for: {', '.join(sorted(pin.groups))}\n"
        for pin in sorted(pins, key=lambda pin: (pin.name, pin.version))
    )
    return _HEADER + "".join(parts)


def parse(text: str) -> tuple[Pin, ...]:
    """The pins of a lock file's text.

    Raises:
        LockError: A line is not as `render` writes it.
    """
    pins: list[Pin] = []
    head: re.Match[str] | None = None
    hashes: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if head is None and line.startswith("#"):
            continue
        if head is None and (head := _PIN.match(line)):
            continue
        if head is not None and (hashed := _HASH.match(line)):
            hashes.append(hashed["hash"])
            continue
        groups = _GROUPS.match(line)
        if head is None or groups is None or not hashes:
            raise LockError(f"line {number} of the lock is not a pin with hashes: run `make lock`")
        pins.append(
            Pin(
                name=head["name"],
                version=head["version"],
                marker=head["marker"],
                hashes=tuple(hashes),
                groups=frozenset(groups["groups"].split(", ")),
            )
        )
        head, hashes = None, []
    if head is not None:
        raise LockError(f"the lock ends within the pin of {head['name']}: run `make lock`")
    return tuple(pins)


def of_groups(pins: Iterable[Pin], groups: Iterable[str]) -> tuple[Pin, ...]:
    """The pins that any of these groups needs.

    Raises:
        LockError: A group has no pin at all, so its name is wrong or the lock is old.
    """
    pins, wanted = tuple(pins), frozenset(groups)
    known = frozenset[str]().union(*(pin.groups for pin in pins))
    if unknown := wanted - known:
        raise LockError(
            f"the lock has nothing for {', '.join(sorted(unknown))} "
            f"(it has {', '.join(sorted(known))}): name one of those or run `make lock`"
        )
    return tuple(pin for pin in pins if pin.groups & wanted)
