"""The rights that docs/security.md lists, read from its tables."""

import re
from pathlib import Path
from typing import Final

from tests.integration.security.secured_broker import Right

_PAGE: Final = Path(__file__).parents[3] / "docs" / "security.md"
_EXAMPLE: Final = "shop"
_CLUSTER: Final = "kafka-cluster"


class Names:
    """Real names for those of the page."""

    def __init__(
        self, application_id: str, *, source: str, sink: str, dead: str, topic: str = "topic"
    ) -> None:
        self.application_id = application_id
        self._topics = {
            "each input": source,
            "each output": sink,
            "the dead-letter topic": dead,
            "the topic": topic,
        }

    def right(self, kind: str, name: str, operation: str) -> Right:
        if name in self._topics:
            return Right(kind, self._topics[name], operation)
        name = name.strip("`")
        if name == _CLUSTER:
            return Right(kind, name, operation)
        assert re.match(rf"{_EXAMPLE}\b", name), f"the page's example is named {_EXAMPLE}: {name}"
        name = self.application_id + name.removeprefix(_EXAMPLE)
        return Right(kind, name.rstrip("*"), operation, prefixed=name.endswith("*"))


def _rows(header: str) -> list[list[str]]:
    text = _PAGE.read_text(encoding="utf-8")
    _, _, rest = text.partition(f"{header}\n")
    assert rest, header
    lines = rest.split("\n\n", 1)[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def application_rights(names: Names) -> dict[Right, str]:
    """Return what the page says of a run without each right: an error, or a warning."""
    return {
        names.right(kind, name, operation): without
        for kind, name, operations, without in _rows("| resource | name | rights | without them |")
        for operation in operations.split(", ")
    }


def command_rights(names: Names) -> dict[str, dict[Right, str]]:
    """Return the rights of each command, with what the page says of a run without each."""
    commands: dict[str, dict[Right, str]] = {}
    for listed, kind, name, operations, without in _rows(
        "| command | resource | name | rights | without them |"
    ):
        for command in listed.split(", "):
            rights = commands.setdefault(command.strip("`"), {})
            for operation in operations.split(", "):
                rights[names.right(kind, name, operation)] = without
    return commands
