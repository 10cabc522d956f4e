"""Distribution of tests over the processes of `make test`."""

from pathlib import Path

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped] # it has no types

from tests.conftest import scope_of

_BULK = Path(__file__).parents[1] / "bulk"


def test_modules_that_share_a_spark_run_in_one_process() -> None:
    scopes: dict[bool, set[str]] = {True: set(), False: set()}
    for path in _BULK.glob("test_*.py"):
        shares = "SparkSession" in path.read_text() or '"spark")' in path.read_text()
        scopes[shares].add(scope_of(f"tests/bulk/{path.name}::test_it[1]"))
    assert scopes == {True: {"tests/bulk/"}, False: {"tests/bulk/test_kills.py"}}


def test_other_modules_are_separate_scopes() -> None:
    assert (
        scope_of("tests/tasks/commit/test_committer.py::test_it[a::b]")
        == "tests/tasks/commit/test_committer.py"
    )
    assert (
        scope_of("tests/tasks/commit/test_committer.py::TestIt::test_it")
        == "tests/tasks/commit/test_committer.py"
    )
    assert callable(LoadScopeScheduling._split_scope)
