"""Users' assignors in a child process can't block or crash the watchdog."""

from pathlib import Path

import pytest

from tidewheel.rebalance.assignors.task_assignor import (
    Assignment,
    AssignmentMember,
    AssignmentRequest,
)
from tidewheel.rebalance.model import TaskId, TaskShape
from tidewheel.streams.processes.watchdog.assignor_process import AssignorFailedError, Assignors

_ROOT = Path(__file__).parents[4]
_TASKS = {
    TaskId(0, 0): TaskShape(stateful=True, changelogs=("c",)),
    TaskId(1, 11): TaskShape(stateful=False),
}


def _request(assignor: str) -> AssignmentRequest:
    return AssignmentRequest(
        number=7,
        members=(
            AssignmentMember(
                name="a",
                owned=frozenset({TaskId(0, 0)}),
                lags={TaskId(0, 0): 0},
                tags={"zone": "z"},
            ),
            AssignmentMember(name="b", rack="r", on_disk=frozenset({TaskId(1, 11)})),
        ),
        tasks=_TASKS,
        assignor=assignor,
    )


def _assign(name: str, timeout_s: float = 30.0) -> Assignment:
    assignor = f"tests.streams.processes.watchdog.assignors:{name}"
    return Assignors(assignor, timeout_s, [str(_ROOT)]).assign(_request(assignor))


@pytest.mark.slow
def test_N6_a_class_and_a_function_are_assignors() -> None:
    assert _assign("EverythingToTheLast") == Assignment(owners=dict.fromkeys(_TASKS, "b"))
    assert _assign("to_the_first") == Assignment(
        owners=dict.fromkeys(_TASKS, "a"), standbys={TaskId(0, 0): ("b",)}
    )


def test_N6_built_in_assignors_are_found_by_name() -> None:
    answer = Assignors("sticky", 0.001, []).assign(_request("sticky"))
    assert answer.owners[TaskId(0, 0)] == "a"
    with pytest.raises(ValueError, match="there is no assignor 'random'"):
        Assignors("random", 0.001, []).assign(_request("random"))


def test_no_assignor_is_imported_by_a_name_from_the_group_log(tmp_path: Path) -> None:
    marker = tmp_path / "imported"
    (tmp_path / "evilmod.py").write_text(f"open({str(marker)!r}, 'w')\n", encoding="utf-8")
    for own, named in (
        ("sticky", "evilmod:x"),
        ("evilmod2:x", "evilmod:x"),
        ("sticky", "round_robin"),
    ):
        with pytest.raises(AssignorFailedError, match="not the one that this process was started"):
            Assignors(own, 30.0, [str(tmp_path)]).assign(_request(named))
    assert not marker.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("broken", "ZeroDivisionError: 2 members"),
        ("to_a_stranger", "'nobody', which is not in the group"),
        ("crash", "ended with code 3 and no answer"),
        ("missing", "has no 'missing'"),
        ("Unmade", r"Unmade: KeyError: 'RACKS', in Unmade\.__init__\(\) \(tests/\S+\)$"),
        ("nothing", "nothing: it returned None; return an Assignment$"),
        (
            "colourful",
            r"colourful: ValueError: 2 members, no rack ?, in colourful\(\) \(tests/\S+\)$",
        ),
    ],
)
def test_N6_an_assignor_that_fails_is_named_with_its_reason(name: str, told: str) -> None:
    with pytest.raises(AssignorFailedError, match=told) as failure:
        _assign(name)
    assert f"assignors:{name}" in str(failure.value)


@pytest.mark.slow
def test_N6_a_module_that_fails_during_its_import_is_named(tmp_path: Path) -> None:
    (tmp_path / "failing_assignors.py").write_text("RACKS = {}['racks']\n", encoding="utf-8")
    with pytest.raises(
        AssignorFailedError,
        match=r"failing_assignors:spread: KeyError: 'racks' \(\S+failing_assignors\.py:1\)$",
    ):
        Assignors("failing_assignors:spread", 30.0, [str(tmp_path)]).assign(
            _request("failing_assignors:spread")
        )


@pytest.mark.slow
def test_N6_an_assignor_that_does_not_return_is_ended() -> None:
    with pytest.raises(AssignorFailedError, match="took more than 1 s and was ended"):
        _assign("never", 1.0)
