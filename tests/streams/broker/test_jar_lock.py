"""The list of jars, and the check of a folder."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.streams.broker.broker_errors import BrokerError
from tidewheel.streams.broker.jar_lock import JarLock, LockedJar
from tidewheel.streams.broker.jars import DEFAULT_VERSION

_JARS = st.builds(
    LockedJar,
    name=st.from_regex(r"[a-z0-9_.-]{1,20}\.jar", fullmatch=True),
    size_bytes=st.integers(min_value=0, max_value=1 << 40),
    sha256=st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
)


@given(st.lists(_JARS))
def test_a_list_is_read_back_as_it_was_written(jars: list[LockedJar]) -> None:
    lock = JarLock(jars=tuple(jars))
    assert JarLock.parse(lock.format(), origin="test") == lock


@pytest.mark.parametrize("line", ["abc 12", "abc twelve x.jar", "abc 1 ../x.jar"])
def test_a_line_that_is_no_jar_is_refused(line: str) -> None:
    with pytest.raises(BrokerError, match="the-list, line 2: expected"):
        JarLock.parse(f"# head\n{line}\n", origin="the-list")


def test_every_kind_of_damage_is_named(tmp_path: Path) -> None:
    for name in ("changed", "good", "long", "missing", "short"):
        (tmp_path / f"{name}.jar").write_bytes(b"0123456789")
    lock = JarLock.of_folder(tmp_path)
    assert lock.problems(tmp_path, read_all=True) == ()
    (tmp_path / "changed.jar").write_bytes(b"012345678X")
    (tmp_path / "long.jar").write_bytes(b"0123456789+")
    (tmp_path / "missing.jar").unlink()
    (tmp_path / "short.jar").write_bytes(b"01234")
    cheap = [str(problem) for problem in lock.problems(tmp_path, read_all=False)]
    assert cheap == [
        "long.jar is too long (11 bytes instead of 10)",
        "missing.jar is missing",
        "short.jar is truncated (5 bytes instead of 10)",
    ]
    full = lock.problems(tmp_path, read_all=True)
    assert [problem.name for problem in full] == [
        "changed.jar",
        "long.jar",
        "missing.jar",
        "short.jar",
    ]
    assert full[0].reason.startswith("is corrupt (SHA-256 ")


def test_the_default_version_is_pinned() -> None:
    lock = JarLock.pinned(DEFAULT_VERSION)
    assert lock is not None
    names = {jar.name for jar in lock.jars}
    assert {f"kafka_2.13-{DEFAULT_VERSION}.jar", "log4j-slf4j-impl-2.25.4.jar"} <= names
    assert len(names) == 45
    assert 40 << 20 < lock.total_bytes < 50 << 20
    assert JarLock.pinned("4.99.0") is None
