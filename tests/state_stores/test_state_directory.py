"""Slots, locks and task directories, with real processes where needed."""

import contextlib
import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidewheel.state_stores.errors import StateStoreError, StoreLockedError
from tidewheel.state_stores.state_directory import StateDirectory

DAY_MS = 86_400_000


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    with StateDirectory.acquire(tmp_path, "app") as acquired:
        yield acquired


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextlib.contextmanager
def processes(
    state_dir: Path, count: int
) -> Iterator[list[tuple[subprocess.Popen[str], dict[str, object]]]]:
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.state_stores.slot_holder", str(state_dir)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(count)
        ]
        try:
            answers = [
                json.loads(process.stdout.readline()) for process in started if process.stdout
            ]
            yield list(zip(started, answers, strict=True))
        finally:
            for process in started:
                process.kill()


@pytest.mark.slow
def test_live_processes_never_share_a_slot(tmp_path: Path) -> None:
    with processes(tmp_path, 4) as held:
        assert sorted(int(str(answer["slot"])) for _, answer in held) == [0, 1, 2, 3]
        assert len({answer["member_id"] for _, answer in held}) == 4
        victim, answer = held[2]
        with pytest.raises(StoreLockedError, match=f"process {victim.pid} on "):
            StateDirectory.acquire(tmp_path, "app", slot=int(str(answer["slot"])))
        victim.kill()
        victim.wait(timeout=20)
        with StateDirectory.acquire(tmp_path, "app") as taken:
            assert taken.slot == answer["slot"]
            assert taken.member_id == answer["member_id"]
            assert [other.slot for other in taken.others] == list(range(taken.slot))


@pytest.mark.slow
def test_exclusive_refuses_another_process_and_names_it(tmp_path: Path) -> None:
    with processes(tmp_path, 1) as held:
        ((process, _),) = held
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(
            StoreLockedError, match=f"process {process.pid} on .*slot 0.*state_dir_exclusive"
        ):
            StateDirectory.acquire(tmp_path, "app", exclusive=True)
        assert sorted(tmp_path.rglob("*")) == before


def test_exclusive_checks_every_slot(tmp_path: Path) -> None:
    StateDirectory.acquire(tmp_path, "app", slot=0).close()
    with (
        StateDirectory.acquire(tmp_path, "app", slot=3),
        pytest.raises(StoreLockedError, match="slot 3"),
    ):
        StateDirectory.acquire(tmp_path, "app", exclusive=True)
    with StateDirectory.acquire(tmp_path, "app", exclusive=True) as alone:
        assert alone.slot == 0


def test_the_lowest_free_slot_is_used(tmp_path: Path) -> None:
    first = StateDirectory.acquire(tmp_path, "app")
    second = StateDirectory.acquire(tmp_path, "app")
    assert (first.slot, second.slot) == (0, 1)
    assert second.path == tmp_path / "app" / "1"
    assert str(os.getpid()) in str(second.others[0])
    first.close()
    first.close()
    with StateDirectory.acquire(tmp_path, "app") as third:
        assert third.slot == 0
    second.close()


def test_a_held_slot_is_replaced_by_the_next_free_one(tmp_path: Path) -> None:
    first = [StateDirectory.acquire(tmp_path, "app", slot=slot) for slot in range(2)]
    second = [
        StateDirectory.acquire(tmp_path, "app", slot=slot, next_free=True) for slot in range(2)
    ]
    assert [directory.slot for directory in second] == [2, 3]
    assert [other.slot for other in second[0].others] == [0, 1]
    assert [other.slot for other in second[1].others] == [1, 2]
    first[1].close()
    with StateDirectory.acquire(tmp_path, "app", slot=1, next_free=True) as again:
        assert again.slot == 1
    with pytest.raises(StoreLockedError, match="slot 2"):
        StateDirectory.acquire(tmp_path, "app", slot=2)
    for directory in (*first, *second):
        directory.close()


def test_each_application_has_its_own_slots(tmp_path: Path) -> None:
    with (
        StateDirectory.acquire(tmp_path, "one") as one,
        StateDirectory.acquire(tmp_path, "two") as two,
    ):
        assert (one.slot, two.slot) == (0, 0)
        assert one.path != two.path


def test_the_member_id_is_created_once(tmp_path: Path) -> None:
    with StateDirectory.acquire(tmp_path, "app") as first:
        made = first.member_id
    with StateDirectory.acquire(tmp_path, "app", member_id="mine") as again:
        assert again.member_id == made
        with StateDirectory.acquire(tmp_path, "app", member_id="mine") as other:
            assert other.member_id == "mine"


@pytest.mark.parametrize(
    "garbage", [b"", b"{", b"[]", b'{"member_id": 7}', b'{"member_id": "../x"}', b"\xff\x00"]
)
def test_an_invalid_member_file_is_replaced(tmp_path: Path, garbage: bytes) -> None:
    StateDirectory.acquire(tmp_path, "app").close()
    (tmp_path / "app" / "0" / "member.json").write_bytes(garbage)
    with StateDirectory.acquire(tmp_path, "app") as first:
        made = first.member_id
    with StateDirectory.acquire(tmp_path, "app") as again:
        assert again.member_id == made


def test_a_bad_member_id_leaves_no_lock(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'a/b'"):
        StateDirectory.acquire(tmp_path, "app", member_id="a/b")
    with StateDirectory.acquire(tmp_path, "app", member_id="ab") as acquired:
        assert acquired.slot == 0


def test_task_directories_are_private(tmp_path: Path) -> None:
    with StateDirectory.acquire(tmp_path / "deep" / "state", "app") as directory:
        task = directory.task_directory("0_1")
        assert directory.task_directory("0_1") == task
        assert task == directory.path / "0_1"
        for path in (task, directory.path, directory.path.parent):
            assert mode(path) == 0o700
        for name in (".lock", "member.json"):
            assert mode(directory.path / name) == 0o600


def test_tasks_are_listed_by_number(directory: StateDirectory) -> None:
    for task in ("10_0", "2_11", "2_9", "2_9/10of16", "2_9/9of16", "0_0"):
        directory.task_directory(task)
    (directory.path / "junk").mkdir()
    (directory.path / "00_1").mkdir()
    (directory.path / "3_3").write_text("a file")
    (directory.path / "4_4").symlink_to(directory.path / "0_0")
    assert directory.tasks() == ["0_0", "2_9", "2_9/9of16", "2_9/10of16", "2_11", "10_0"]
    directory.remove_task_directory("2_9/9of16")
    assert directory.tasks() == ["0_0", "2_9", "2_9/10of16", "2_11", "10_0"]


@pytest.mark.parametrize(
    "name", ["", "..", "0_1/..", "../0_1", "0_1\n", "-1_0", "01_0", "0_1x", "rocksdb"]
)
def test_only_task_ids_become_directories(directory: StateDirectory, name: str) -> None:
    for call in (directory.task_directory, directory.remove_task_directory):
        with pytest.raises(ValueError, match="not a task id"):
            call(name)


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    state = tmp_path / "state"
    with StateDirectory.acquire(state, "app") as directory:
        (directory.path / "0_0").symlink_to(elsewhere)
        with pytest.raises(StateStoreError, match="link"):
            directory.task_directory("0_0")
        with pytest.raises(StateStoreError, match="link"):
            directory.remove_task_directory("0_0")
        assert (directory.path / "0_0").is_symlink()
    (state / "other").symlink_to(elsewhere)
    with pytest.raises(StateStoreError, match="not a directory"):
        StateDirectory.acquire(state, "other")
    (state / "third" / "0").mkdir(parents=True)
    (state / "third" / "0" / ".lock").symlink_to(elsewhere / "precious")
    with pytest.raises(StateStoreError, match=r"\.lock is not a real"):
        StateDirectory.acquire(state, "third")
    assert [file.name for file in elsewhere.iterdir()] == ["precious"]
    assert (elsewhere / "precious").read_text() == "x"


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "disk")
    with StateDirectory.acquire(tmp_path / "state", "app") as directory:
        assert directory.task_directory("0_0").is_relative_to(tmp_path / "disk")


def test_removing_a_task_directory(directory: StateDirectory) -> None:
    task = directory.task_directory("0_1")
    (task / "sub").mkdir()
    (task / "sub" / "file").write_text("x")
    directory.remove_task_directory("0_1")
    directory.remove_task_directory("0_1")
    assert directory.tasks() == []
    assert sorted(path.name for path in directory.path.iterdir()) == [".lock", "member.json"]


def test_a_removal_cut_short_is_finished_by_the_next_process(tmp_path: Path) -> None:
    with StateDirectory.acquire(tmp_path, "app") as directory:
        half = directory.path / ".removing-0_1-abcd"
        half.mkdir()
        (half / "CURRENT").write_text("x")
        assert directory.tasks() == []
    StateDirectory.acquire(tmp_path, "app").close()
    assert not half.exists()


def test_obsolete_directories_are_deleted_after_a_delay(directory: StateDirectory) -> None:
    for task in ("0_0", "0_1", "0_2"):
        directory.task_directory(task)

    def clean(keep: set[str], now_ms: int) -> list[str]:
        return directory.clean_obsolete(keep, older_than_ms=600, now_ms=now_ms)

    assert clean({"0_0", "0_1"}, 1000) == []
    assert clean({"0_0"}, 1500) == []
    assert clean({"0_0"}, 1599) == []
    assert clean({"0_0", "0_1"}, 1600) == ["0_2"]
    assert clean({"0_0"}, 2000) == []
    assert clean({"0_0"}, 2599) == []
    assert clean({"0_0"}, 2600) == ["0_1"]
    assert clean(set(), 10 * DAY_MS) == []
    assert directory.tasks() == ["0_0"]
    assert clean(set(), 10 * DAY_MS + 600) == ["0_0"]


def test_the_global_directory_is_not_listed_as_a_task(tmp_path: Path) -> None:
    with StateDirectory.acquire(tmp_path, "app") as slot:
        place = slot.global_directory()
        (place / "file").touch()
        assert place == slot.path / "global"
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert slot.tasks() == []
        for now_ms in (0, 10_000_000):
            assert slot.clean_obsolete((), older_than_ms=1, now_ms=now_ms) == []
        assert (place / "file").exists()
        slot.remove_global_directory()
        slot.remove_global_directory()
        assert not place.exists()


def test_a_released_directory_refuses_operations(tmp_path: Path) -> None:
    directory = StateDirectory.acquire(tmp_path, "app")
    directory.task_directory("0_0")
    directory.close()
    for call in (directory.task_directory, directory.remove_task_directory):
        with pytest.raises(StateStoreError, match="released"):
            call("0_0")


def refuse_with(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/state/app")


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "disk of /state/app is full; free space"),
        (errno.EACCES, "not writable for user"),
        (errno.EROFS, "choose another state_dir"),
        (errno.EIO, "mounted and healthy"),
    ],
)
def test_refusals_of_the_system_have_a_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, says: str
) -> None:
    def mkdir(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        raise refuse_with(number)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(StateStoreError, match=says):
        StateDirectory.acquire(tmp_path, "app")


def test_missing_parents_are_private_too(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        directory = StateDirectory.acquire(tmp_path / "a" / "b" / "state", "app")
    finally:
        os.umask(before)
    directory.close()
    made = [path for path in (tmp_path / "a").rglob("*") if path.is_dir()]
    assert {mode(path) for path in (tmp_path / "a", *made)} == {0o700}


def test_a_file_system_without_flock_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StateStoreError, match=r"has no flock.*local disk"):
        StateDirectory.acquire(tmp_path, "app")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StateStoreError, match="not writable"):
            StateDirectory.acquire(tmp_path, "app")
    finally:
        tmp_path.chmod(0o700)


def test_the_file_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for state_dir in (tmp_path / "file", tmp_path / "file" / "below" / "further"):
        with pytest.raises(StateStoreError) as refused:
            StateDirectory.acquire(state_dir, "app")
        assert f"{tmp_path / 'file'} is not" in str(refused.value)


def test_a_held_slot_and_a_shared_directory_have_different_errors(tmp_path: Path) -> None:
    with StateDirectory.acquire(tmp_path, "app", slot=0):
        with pytest.raises(StoreLockedError) as held:
            StateDirectory.acquire(tmp_path, "app", slot=0)
        with pytest.raises(StoreLockedError) as shared:
            StateDirectory.acquire(tmp_path, "app", exclusive=True)
    assert "state_dir_exclusive" not in str(held.value)
    assert "state_dir_exclusive" in str(shared.value)
