"""Pure modules have property tests (requirement R3)."""

import ast
from pathlib import Path

import pytest

from checks.repository_files import ROOT

TESTS = ROOT / "tests"

PURE = {
    "tasks/processing/engine/graph.py": "batch and record-at-a-time execution agree",
    "tasks/key_ranges/progress_vector.py": "metadata comes back as written",
    "state_stores/layout/key_schema.py": "bytes sort as keys do",
    "state_stores/layout/envelope.py": "values come back as written",
    "state_stores/buffers/commit_buffer.py": "buffer and disk together read as one map",
    "state_stores/layout/restore.py": "last per key equals replay",
    "streams/serdes": "values come back as written",
    "streams/topology/topology.py": "sub-topologies cut every graph in parts",
    "rebalance/assignors/fixed.py": "every task runs exactly once",
    "rebalance/assignors/sticky.py": "nothing moves that makes no load smaller",
    "rebalance/assignors/standby_placement.py": "copies that are spread evenly stay",
    "rebalance/refine/refine.py": "a running task is handed to nobody but a ready copy",
    "rebalance/leader/reconcile.py": "nothing is granted while something is to be given up",
    "rebalance/protocol/group.py": "compaction and snapshots leave the same group",
}
"""Each pure part with its law in words."""

PROTOCOL = "tests/rebalance/leader/test_coordinator_machine.py"
"""The protocol has a history: it is tested as a state machine."""

ELSEWHERE = {"tasks/processing/engine/graph.py": "tests/tasks/processing/test_executors.py"}
"""Laws about several parts have a file of their own."""


def has_property_test(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(
        isinstance(node, ast.Name) and node.id == "given" and isinstance(node.ctx, ast.Load)
        for node in ast.walk(tree)
    )


def mirrors(part: str) -> list[Path]:
    if part in ELSEWHERE:
        return [ROOT / ELSEWHERE[part]]
    folder = TESTS / part
    if (ROOT / part).is_dir():
        return sorted(folder.rglob("test_*.py"))
    stem = Path(part).stem
    return sorted(folder.parent.glob(f"test_{stem}*.py"))


@pytest.mark.parametrize("part", PURE, ids=str)
def test_R3_pure_parts_have_property_tests(part: str) -> None:
    assert (ROOT / part).exists()
    tests = mirrors(part)
    assert tests, f"no test file mirrors {part} (its law: {PURE[part]})"
    assert any(map(has_property_test, tests)), f"no law of {part} is tested: {PURE[part]}"


def test_R3_the_protocol_has_a_stateful_test() -> None:
    tree = ast.parse((ROOT / PROTOCOL).read_text(encoding="utf-8"))
    machines = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base) == "RuleBasedStateMachine" for base in node.bases)
    }
    run = {
        ast.unparse(node.value).removesuffix(".TestCase")
        for node in tree.body
        if isinstance(node, ast.Assign)
    }
    decorators = {
        ast.unparse(decorator).partition("(")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
    }
    assert machines & run
    assert {"rule", "invariant"} <= decorators
