"""The checkers of fault tests find each kind of difference."""

import struct
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.faults.fault_run import incarnations
from tests.faults.group_trace import GroupTrace
from tests.faults.verification.local_state import local_differences
from tests.faults.verification.verdict import Verdict, verify
from tests.integration.cluster import Cluster
from tests.integration.programs.jobs import STORE
from tidewheel.rebalance.protocol.messages import GrantedOk, Revoked
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    LeaderClaim,
    MemberRecord,
    TaskRecord,
)
from tidewheel.state_stores.layout.envelope import wrap_value
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import position_name
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.state_stores.state_directory import StateDirectory


def _number(number: int) -> bytes:
    return struct.pack(">q", number)


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _verdict(
    output: dict[bytes, list[int]], changelog: dict[bytes, int], commits: list[int]
) -> Verdict:
    """Return the verdict of a job whose input is two records of key a and one of key b."""
    key = struct.pack(">h", 1) + _text("app") + _text("in") + struct.pack(">i", 0)
    topics: dict[str, list[Any]] = {
        "in": [SimpleNamespace(key=each) for each in (b"a", b"b", b"a")],
        "__consumer_offsets": [
            SimpleNamespace(key=key, value=value)
            for offset in commits
            for value in (
                struct.pack(">hqi", 3, offset, 0) + _text("ours"),
                struct.pack(">hqi", 3, 0, 0) + _text(""),  # of another program
                struct.pack(">hqiB", 4, offset, 0, 5) + b"ours",
                struct.pack(">hqiB", 4, 0, 0, 1),  # of another program
            )
        ],
    }
    cluster = SimpleNamespace(
        read=topics.__getitem__,
        values_by_key=lambda _: {key: list(map(_number, each)) for key, each in output.items()},
        folded=lambda _: {key: (_number(each), 0) for key, each in changelog.items()},
    )
    return verify(cast("Cluster", cluster), "app", "in", "out", Counter({b"a": 2, b"b": 1}))


_OUTPUT, _STATE = {b"a": [1, 2], b"b": [1]}, {b"a": 2, b"b": 1}


def test_exact_result_is_clean() -> None:
    verdict = _verdict(_OUTPUT, _STATE, [1, 2, 2, 3])
    assert verdict.is_clean
    assert (verdict.records, verdict.keys) == (3, 2)


@pytest.mark.parametrize(
    ("output", "changelog", "commits", "found"),
    [
        (_OUTPUT | {b"a": [2]}, _STATE, [3], {"lost", "wrong"}),
        (_OUTPUT | {b"a": [1, 2, 2]}, _STATE, [3], {"repeated", "wrong"}),
        (_OUTPUT | {b"a": [2, 1]}, _STATE, [3], {"wrong"}),
        (_OUTPUT | {b"c": [1]}, _STATE, [3], {"wrong"}),
        (_OUTPUT, _STATE | {b"b": 2}, [3], {"wrong_state"}),
        (_OUTPUT, {b"a": 2}, [3], {"wrong_state"}),
        (_OUTPUT, _STATE | {b"c": 1}, [3], {"wrong_state"}),
        (_OUTPUT, _STATE, [1, 3, 2], {"backwards"}),
        (_OUTPUT, _STATE, [], {"backwards"}),
    ],
)
def test_each_difference_is_found(
    output: dict[bytes, list[int]], changelog: dict[bytes, int], commits: list[int], found: set[str]
) -> None:
    verdict = _verdict(output, changelog, commits)
    assert not verdict.is_clean
    fields = ("missing_input", "lost", "repeated", "wrong", "wrong_state", "backwards")
    assert {name for name in fields if getattr(verdict, name)} == found


def test_acknowledged_input_that_is_gone_is_found() -> None:
    empty = SimpleNamespace(read=lambda _: [], values_by_key=lambda _: {}, folded=lambda _: {})
    verdict = verify(cast("Cluster", empty), "app", "in", "out", Counter({b"a": 2}))
    assert verdict.missing_input == 2
    assert not verdict.is_clean


def _member(name: str, phase: Any, epoch: int = 1) -> MemberRecord:
    return MemberRecord(leader_epoch=epoch, member=name, incarnation=f"{name}-1", phase=phase)


def _grant(owner: str, task_epoch: int, input_offset: int = 0, epoch: int = 1) -> TaskRecord:
    return TaskRecord(
        leader_epoch=epoch, task="0_0", phase="RUNNING", task_epoch=task_epoch, event="GRANT",
        owner=f"{owner}-1", member=owner, input={"in-0": input_offset},
    )  # fmt: skip


_CLAIM = LeaderClaim(leader_epoch=1, leader="p")
_ACTIVE: list[AnyRecord] = [_CLAIM, _member("a", "ACTIVE"), _member("b", "ACTIVE")]
_OF_A = {"app": "app", "member": "a", "incarnation": "a-1", "task": "0_0"}
_RELEASED = Revoked(**_OF_A, task_epoch=1, input={}, changelog_end={})  # type: ignore[arg-type]


def test_moves_by_release_and_by_fence_keep_the_invariants() -> None:
    GroupTrace([*_ACTIVE, _grant("a", 1), _grant("b", 2)], [_RELEASED]).check()
    fenced = GroupTrace([*_ACTIVE, _grant("a", 1), _member("a", "FENCED"), _grant("b", 2)], [])
    fenced.check()
    assert fenced.ended() == {"a-1"}


@pytest.mark.parametrize(
    ("number", "records"),
    [
        (1, [_CLAIM, _CLAIM]),
        (1, [_CLAIM, _member("a", "ACTIVE", epoch=2)]),
        (2, [*_ACTIVE, _grant("a", 2), _grant("a", 1)]),
        (2, [*_ACTIVE, _grant("a", 1), _grant("b", 1)]),
        (3, [*_ACTIVE, _grant("a", 1), _grant("b", 2)]),
        (4, [_CLAIM, _grant("a", 1)]),
        (4, [*_ACTIVE, _member("a", "FENCED"), _grant("a", 1)]),
        (6, [*_ACTIVE, _grant("a", 1, input_offset=5), _grant("a", 1, input_offset=4)]),
    ],
)
def test_each_broken_invariant_is_found(number: int, records: list[AnyRecord]) -> None:
    with pytest.raises(AssertionError, match=f"^{number}: "):
        GroupTrace(records, []).check()


def test_a_member_that_processes_the_task_of_another_is_found() -> None:
    wrong = GrantedOk(**_OF_A, task_epoch=1, input={})  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=r"^5: "):
        GroupTrace([*_ACTIVE, _grant("b", 1)], [wrong]).check()


def test_incarnations_are_found_in_the_log_of_a_worker() -> None:
    line = "2026-11-28 tidewheel: vm/0 (4b7471), process 7: joined the group as incarnation 626676d24b9c22f8\n"
    worker: Any = SimpleNamespace(log=line)
    assert incarnations(worker) == ["626676d24b9c22f8"]


# -- copies on disk -------------------------------------------------------------------------------

_TOPIC = f"app-{STORE}-changelog"


def _changelog(*values: int | None) -> Cluster:
    """Return a cluster whose changelog has these values of key a, at offsets 0, 2, 4 and so on."""
    log = [
        SimpleNamespace(
            partition=0, offset=2 * index, key=b"a", value=None if value is None else _number(value)
        )
        for index, value in enumerate(values)
    ]
    return cast("Cluster", SimpleNamespace(read=lambda _: log))


def _store(state_dir: Path, rows: dict[bytes, int], offset: int) -> None:
    """Write the database of task 0_0."""
    options = RocksDBOptions()
    with StateDirectory.acquire(state_dir, "app") as slot:
        path = slot.task_directory("0_0")
        database = TaskDatabase.open(path, [STORE], options, SharedResources.create(options))
        with closing(database):
            stored = {key: wrap_value(_number(value), 5) for key, value in rows.items()}
            position = Position(offset=offset, topic_id=bytes(16), written_at_ms=0)
            name = position_name(_TOPIC, 0)
            database.write({STORE: sorted(stored.items())}, {name: position.encode()})


@pytest.mark.parametrize(
    ("rows", "offset", "changelog", "found"),
    [
        pytest.param({b"a": 2}, 3, [1, 2], "", id="equal"),
        pytest.param({}, 3, [1, None], "", id="equal after a delete"),
        pytest.param({b"a": 1}, 3, [1, 2], "b'a' is", id="old"),
        pytest.param({b"a": 2, b"b": 1}, 3, [1, 2], "b'b' is", id="a key too many"),
        pytest.param({}, 3, [1, 2], "b'a' is None", id="a key too few"),
        pytest.param({b"a": 1}, 1, [1, 2], "no copy has offset 2", id="incomplete"),
    ],
)
def test_a_copy_on_disk_is_compared_up_to_its_position(
    tmp_path: Path, rows: dict[bytes, int], offset: int, changelog: list[int | None], found: str
) -> None:
    _store(tmp_path / "state-a", rows, offset)
    _store(tmp_path / "state-b", {b"a": 1}, 1)  # an older copy, which is right
    differences = list(
        local_differences(_changelog(*changelog), "app", sorted(tmp_path.glob("state-*")))
    )
    assert len(differences) == bool(found)
    assert found in "".join(differences)


@pytest.mark.parametrize(("value", "found"), [(1, ""), (2, ""), (3, "b'a' is")])
def test_a_copy_on_disk_may_have_later_rows_than_its_position(
    tmp_path: Path, value: int, found: str
) -> None:
    """A commit of unconfirmed records writes rows and keeps the position before them."""
    _store(tmp_path / "state-a", {b"a": 2}, 3)
    _store(tmp_path / "state-b", {b"a": value}, 0)
    states = sorted(tmp_path.glob("state-*"))
    differences = list(local_differences(_changelog(1, 2), "app", states))
    assert len(differences) == bool(found)
    assert found in "".join(differences)
