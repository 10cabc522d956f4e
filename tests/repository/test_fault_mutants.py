"""The mutants of `tests/faults/mutants`: patches that apply, and a tool that notices survivors."""

import ast
from pathlib import Path

import pytest

from checks.repository_files import ROOT
from tests.faults.mutants.__main__ import run_mutants
from tests.faults.mutants.table import MUTANTS, Mutant, StaleMutantError


def test_mutants_have_names_of_their_own() -> None:
    assert len(MUTANTS) >= 12
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_and_names_its_test(mutant: Mutant) -> None:
    patched = mutant.patched(ROOT)
    assert patched != (ROOT / mutant.file).read_text(encoding="utf-8")
    if mutant.file.endswith(".py"):
        ast.parse(patched)
    path, _, name = mutant.test.partition("::")
    assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a repository of one guarded place and its test."""
    made = tmp_path / "unchanged"
    made.mkdir()
    (made / "product.py").write_text("LIMIT = 3\nNOTE = 'LIMIT'\n", encoding="utf-8")
    (made / "test_product.py").write_text(
        "import product\n\n\ndef test_limit():\n    assert product.LIMIT == 3\n", encoding="utf-8"
    )
    return made


def _mutant(old: str, new: str, test: str = "test_product.py::test_limit") -> Mutant:
    return Mutant(name="of-a-test", rule="", file="product.py", old=old, new=new, test=test)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "survivors"),
    [
        pytest.param(_mutant("= 3", "= 4"), 0, id="caught"),
        pytest.param(_mutant("NOTE", "TEXT"), 1, id="survives"),
        pytest.param(_mutant("= 3", "= "), 1, id="cannot be imported"),
        pytest.param(_mutant("= 3", "= 4", "test_product.py::test_else"), 1, id="no such test"),
    ],
)
def test_only_a_failed_test_catches_a_mutant(
    tree: Path, mutant: Mutant, survivors: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_mutants(tree, [mutant]) == survivors
    assert ("of-a-test  caught by" in capsys.readouterr().out) == (not survivors)


def test_a_patch_that_does_not_apply_once_is_refused(tree: Path) -> None:
    for old in ("LIMIT", "absent"):
        with pytest.raises(StaleMutantError, match=r"product\.py"):
            _mutant(old, "").patched(tree)
