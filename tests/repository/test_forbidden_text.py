"""Forbidden text is reported; similar harmless text is not."""

import pytest

from checks.forbidden_text import findings, findings_in


def test_the_repository_is_clean() -> None:
    assert list(map(str, findings())) == []


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("see https://{}/simple".format("pypi." + "org"), "host of a package registry"),
        ("https://files.{}/x.whl".format("pythonhosted." + "org"), "host of a package registry"),
        ("https://repo1.{}/maven2".format("maven." + "org"), "host of a package registry"),
        ("https://repo.{}".format("maven.apache." + "org"), "host of a package registry"),
        ("cd /{}/somebody/code".format("home"), "path of one machine"),
        ('open("/{}/main/x")'.format("work"), "path of one machine"),
        ("<" * 7 + " HEAD", "merge marker"),
        (">" * 7 + " branch", "merge marker"),
    ],
)
def test_forbidden_text_is_found(line: str, name: str) -> None:
    (finding,) = findings_in("a.txt", f"fine\n{line}\n")
    assert finding.rule.name == name
    assert str(finding).startswith(f"a.txt:2: {name}: ")


@pytest.mark.parametrize(
    "line",
    [
        "the package index",
        "org.apache.kafka:kafka_2.13",
        "a/work/tree and ~/work/main",
        "/home/user/.tidewheel",
        "https://example.org/home/page",
        "=" * 7,
        "a << 7 >> b",
    ],
)
def test_similar_text_is_allowed(line: str) -> None:
    assert list(findings_in("a.txt", line)) == []
