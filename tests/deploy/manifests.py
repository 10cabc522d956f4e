"""Files of `deploy/` as tests read them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml  # type: ignore[import-untyped]

from checks.repository_files import ROOT

DEPLOY: Final = ROOT / "deploy"
KUBERNETES: Final = DEPLOY / "kubernetes"


class Instruction(NamedTuple):
    """Instruction of a Dockerfile."""

    name: str
    text: str


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def stages(dockerfile: Path = DEPLOY / "docker" / "Dockerfile") -> dict[str, list[Instruction]]:
    """Return the instructions of each stage, without their FROM; a stage may have no name."""
    made: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for instruction in _instructions(dockerfile.read_text(encoding="utf-8")):
        if instruction.name == "FROM":
            _, _, stage = instruction.text.partition(" AS ")
            current = made.setdefault(stage, [])
        else:
            current.append(instruction)
    return made


def _instructions(text: str) -> Iterator[Instruction]:
    text = re.sub(r"(?m)^#.*\n", "", text).replace("\\\n", "")
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        yield Instruction(name, rest.strip())


def stateful_set() -> Any:
    return read_yaml(KUBERNETES / "statefulset.yaml")


def pod() -> Any:
    """Return the specification of the StatefulSet's pods."""
    return stateful_set()["spec"]["template"]["spec"]


def container() -> Any:
    (only,) = pod()["containers"]
    return only


def seconds_of(probe: Any) -> int:
    """Return the seconds until a probe has failed."""
    total: int = probe["periodSeconds"] * probe["failureThreshold"]
    return total
