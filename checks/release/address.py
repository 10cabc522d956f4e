"""The repository's address: one setting of pyproject.toml."""

import tomllib
from typing import Final

from checks.repository_files import ROOT

#: Hosts that are reserved for examples, so no project can live there.
_PLACEHOLDER: Final = "https://example.org/"


def repository() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    address: str = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
    return address


def is_placeholder(address: str) -> bool:
    return address.startswith(_PLACEHOLDER)


def report_addresses() -> str:
    """Return the table of SECURITY.md."""
    address = repository()
    lines = [
        "| for | address |",
        "|---|---|",
        f"| a private report of a vulnerability | <{address}/security/advisories/new> |",
        f"| published vulnerabilities | <{address}/security/advisories> |",
        f"| all other faults, in public | <{address}/issues> |",
    ]
    if is_placeholder(address):
        lines += ["", "These addresses are placeholders until the repository has a home."]
    return "\n".join(lines)
