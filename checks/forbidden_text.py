"""Rejects text that must not be committed: `python -m checks.forbidden_text`.

Package hosts are rejected because each machine configures its own package source.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from checks.repository_files import ROOT, repository_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Forbidden:
    name: str
    pattern: re.Pattern[str]
    instead: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    path: str
    line: int
    text: str
    rule: Forbidden

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule.name}: {self.text!r}; {self.rule.instead}"


def _host(*labels: str) -> str:
    # Joined from parts: this file must not contain a forbidden text.
    return r"\.".join(labels)


_REGISTRIES = (
    _host("pypi", "org"),
    _host("pythonhosted", "org"),
    _host("npmjs", "(?:org|com)"),
    _host("yarnpkg", "com"),
    _host("repo1?", "maven", "(?:apache[.])?org"),
    _host("sonatype", "(?:org|com)"),
    _host("crates", "io"),
    _host("proxy", "golang", "org"),
    _host("deb", "debian", "org"),
)

RULES = (
    Forbidden(
        name="host of a package registry",
        pattern=re.compile("|".join(_REGISTRIES)),
        instead="name the package only",
    ),
    Forbidden(
        name="path of one machine",
        # `user` is a placeholder.
        pattern=re.compile(r"(?<![\w.}~/])/(?:work|root|home|Users)/(?!user\b)[\w.-]+"),
        instead="write it relative to the repository or to ~",
    ),
    Forbidden(
        name="merge marker",
        pattern=re.compile(r"^(?:<{7}|>{7}|\|{7})(?: |$)"),
        instead="finish the merge",
    ),
)


def findings_in(path: str, text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), start=1):
        for rule in RULES:
            if match := rule.pattern.search(line):
                yield Finding(path=path, line=number, text=match[0], rule=rule)


def findings(root: Path = ROOT) -> list[Finding]:
    found: list[Finding] = []
    for path in repository_files(root):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += findings_in(path.relative_to(root).as_posix(), text)
    return found


def main() -> int:
    found = findings()
    for finding in found:
        print(finding, file=sys.stderr)
    if not found:
        print("no forbidden text")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
