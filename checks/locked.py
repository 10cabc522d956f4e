"""The lock file constraints.txt: reads it, writes it, and selects the pins of a group.

A hash for every file of a release makes it hold on every platform. It names no host: the installing
machine chooses the package source. This module runs before any installation and uses the standard
library only.
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
    """The lock file cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    name: str
    version: str
    marker: str | None
    hashes: tuple[str, ...]
    groups: frozenset[str]

    def requirement(self) -> str:
        marker = f" ; {self.marker}" if self.marker else ""
        lines = [f"{self.name}=={self.version}{marker}", *(f"    --hash={h}" for h in self.hashes)]
        return " \\\n".join(lines) + "\n"


def render(pins: Iterable[Pin]) -> str:
    parts = (
        f"{pin.requirement()}    # for: {', '.join(sorted(pin.groups))}\n"
        for pin in sorted(pins, key=lambda pin: (pin.name, pin.version))
    )
    return _HEADER + "".join(parts)


def parse(text: str) -> tuple[Pin, ...]:
    """Return the pins; raise `LockError` for a line that `render` would not write."""
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
    """Raise `LockError` for a group without a pin: a wrong name or an old lock."""
    pins, wanted = tuple(pins), frozenset(groups)
    known = frozenset[str]().union(*(pin.groups for pin in pins))
    if unknown := wanted - known:
        raise LockError(
            f"the lock has nothing for {', '.join(sorted(unknown))} "
            f"(it has {', '.join(sorted(known))}): name one of those or run `make lock`"
        )
    return tuple(pin for pin in pins if pin.groups & wanted)
