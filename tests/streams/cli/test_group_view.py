"""`status` and `top` on a terminal of 80 columns and 24 rows."""

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tidewheel.rebalance.inspect.describe import GroupPhase
from tidewheel.streams.cli.group_view import SORTS, body_lines, head_lines
from tidewheel.streams.cli.live_view import LiveView, keys_of, wait_with_keys
from tidewheel.streams.cli.text_table import Column, Row, table_lines
from tidewheel.streams.group.alarms import Alarm
from tidewheel.streams.group.status import GroupStatus, MemberStatus, MemberTask

WIDTH, HEIGHT = 80, 24
NOW = 1_795_262_400_000
#: As in Kubernetes; the lasting names are 32 characters.
HOSTS = ["order-totals-7d9c6b5f4-abcde", "order-totals-7d9c6b5f4-vwxyz"]


def name_of(index: int) -> str:
    return f"{HOSTS[index]}/0 ({'7e65c5' if index == 0 else '09ab12'})"


def member(index: int) -> MemberStatus:
    return MemberStatus(
        member=("7e65c5" if index == 0 else "09ab12") + 26 * "0",
        name=name_of(index),
        slot=0,
        pid=4_194_000 + index,
        incarnation=f"{index}" * 32,
        phase="ACTIVE",
        reason="",
        static=False,
        host=HOSTS[index],
        rack=None,
        process_id=f"p{index}",
        threads=1,
        leads=index == 0,
        active=tuple(f"0_{number}" for number in range(20)),
        standby=(),
        learner=(),
        since_ms=NOW - 93_784_000,
        heard_ms_ago=123,
        stale=False,
    )


def task(number: int, **changes: object) -> MemberTask:
    index = number % 2
    plain = MemberTask(
        task=f"{number // 20}_{number % 20}",
        role="active",
        member=member(index).member,
        member_name=name_of(index),
        incarnation=f"{index}" * 32,
        phase="RUNNING",
        epoch=3,
        since_ms=NOW - 93_784_000,
        lag=number * 1_000,
        rate=1_234_567.0 - number,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def status(tasks: int = 40, **changes: object) -> GroupStatus:
    plain = GroupStatus(
        application_id="order-totals",
        read_ms=NOW,
        phase=GroupPhase.RUNNING.value,
        leader="p0",
        leader_name=name_of(0),
        leader_epoch=12,
        leader_heard_ms_ago=400,
        group_epoch=17,
        step_epoch=123,
        protocol=1,
        topology_epoch=0,
        topology_hash="0123456789abcdef",
        assignor="sticky",
        members=(member(0), member(1)),
        tasks=tuple(map(task, range(tasks))),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture
def moving() -> GroupStatus:
    learner = task(1, role="learner", phase="FOLLOWING", done=750_000, end=1_000_000, eta_s=75.0)
    going = task(1, phase="WARMING", target="x", target_name=name_of(1))
    return replace(
        status(tasks=3),
        tasks=(task(0), going, task(2)),
        learners=(learner,),
        standbys=(learner,),
        waiting=("0_2",),
    )


def printed(lines: list[object]) -> list[str]:
    """Return what a terminal of 80 columns shows."""
    console = Console(file=io.StringIO(), width=WIDTH, height=HEIGHT, force_terminal=True,
                      color_system=None)  # fmt: skip
    for line in lines:
        console.print(line)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_no_line_of_the_tables_is_folded_at_80_columns(moving: GroupStatus) -> None:
    for shown in (status(), moving):
        lines = [*head_lines(shown, WIDTH), *body_lines(shown, WIDTH)]
        rows = printed(list(lines))
        assert len(rows) == len(lines)
        assert max(map(cell_len, rows)) <= WIDTH


def test_tasks_come_first_with_the_names_of_their_owners(moving: GroupStatus) -> None:
    rows = printed(list(body_lines(moving, WIDTH)))
    assert rows[1].startswith("tasks")
    titles = [row for row in rows if row in ("tasks", "learners", "standbys", "members")]
    assert titles == ["tasks", "learners", "standbys", "members"]
    row = next(row for row in rows if row.startswith("0_1"))
    assert row.count("(") == 2 or "…" in row
    assert "WARMING" in row
    assert " 75 %" in "\n".join(rows)
    assert str(member(0).pid) in "\n".join(rows)


def test_a_short_name_is_whole() -> None:
    named = replace(task(0), member_name="kafka-1/0 (7e65c5)")
    rows = printed(list(body_lines(replace(status(1), tasks=(named,)), WIDTH)))
    assert any("kafka-1/0 (7e65c5)  RUNNING" in row for row in rows)


def screen_of(view: LiveView, width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True,
                      color_system=None)  # fmt: skip
    console.print(view.screen(width, height), end="")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().split("\n")[:height]


def tasks_in(screen: list[str]) -> list[str]:
    return [row.split()[0] for row in screen if row[:1].isdigit() and "RUNNING" in row]


def test_top_fills_24_rows_and_no_more() -> None:
    view = LiveView()
    view.status = status(alarms=tuple(Alarm(name="a", text=40 * "long ") for _ in range(9)))
    screen = screen_of(view)
    assert len(screen) == HEIGHT
    assert max(map(cell_len, screen)) <= WIDTH
    assert screen[0].startswith("order-totals  RUNNING  2 members, 40 tasks, 9 alarms")
    assert "6 more" in "\n".join(screen)
    assert screen[-1].startswith("q quit")
    assert tasks_in(screen)[0] == "1_19"  # most lag


def test_top_scrolls_to_every_line() -> None:
    view = LiveView()
    view.status = status()
    seen: set[str] = set()
    for _ in range(10):
        seen |= set(tasks_in(screen_of(view)))
        view.press("page down")
    assert seen == {one.task for one in status().tasks}
    assert any("its program leads" in row for row in screen_of(view))
    view.press("down")
    last = screen_of(view)
    view.press("up")
    assert screen_of(view) != last
    view.press("home")
    assert screen_of(view)[3] == "tasks"
    view.press("end")
    assert screen_of(view) == last


@pytest.mark.parametrize(
    ("sort", "key"),
    [
        ("task", lambda one: tuple(map(int, one.task.split("_")))),
        ("lag", lambda one: -(one.lag or 0)),
        ("records/s", lambda one: -(one.rate or 0)),
        ("owner", lambda one: (one.member_name, tuple(map(int, one.task.split("_"))))),
    ],
)
def test_top_sorts_by_a_key_and_back(sort: str, key: Callable[[MemberTask], object]) -> None:
    view = LiveView()
    view.status = status()
    while view.sort != sort:
        view.press("sort")
    expected = [one.task for one in sorted(view.status.tasks, key=key)]  # type: ignore[arg-type]
    first = tasks_in(screen_of(view))
    assert first == expected[: len(first)]
    assert f"s sort: {sort}" in screen_of(view)[-1]
    view.press("reverse")
    assert tasks_in(screen_of(view)) == expected[::-1][: len(first)]
    for _ in SORTS:
        view.press("sort")
    assert view.sort == sort


def test_moving_tasks_are_urgent(moving: GroupStatus) -> None:
    view = LiveView()
    view.status = moving
    assert "0_1" in screen_of(view)[5]


def test_top_without_a_first_status_shows_the_problem() -> None:
    view = LiveView()
    view.problem = "list topics: no broker answers"
    screen = screen_of(view)
    assert screen[0] == "! can't be read: list topics: no broker answers"
    assert len(screen) == HEIGHT


@given(st.integers(20, 200), st.integers(3, 60), st.integers(0, 60))
def test_any_terminal_shows_a_screen_of_its_size(width: int, height: int, tasks: int) -> None:
    view = LiveView()
    view.status = status(tasks)
    for key in ("end", "up", "page up", "sort"):
        screen = screen_of(view, width, height)
        assert len(screen) == height
        assert max(map(cell_len, screen)) <= width
        view.press(key)


def test_keys_are_read_until_quit() -> None:
    assert keys_of("\x1b[A\x1b[Bx\x1b[6~s") == ["up", "down", "page down", "sort"]
    keys = iter(["down", "", "sort", "quit", "up"])
    pressed: list[str] = []
    assert wait_with_keys(lambda _: next(keys), 60.0, pressed.append)
    assert pressed == ["down", "sort"]
    assert not wait_with_keys(lambda _: "", 0.0, pressed.append)


def test_a_table_shrinks_only_columns_that_may() -> None:
    columns = [Column("name", can_shrink=True), Column("n", "right")]
    lines = table_lines("t", columns, [Row(["x" * 50, "12345"])], 30)
    assert [cell_len(line.plain) for line in lines[1:]] == [30, 30]
    assert lines[2].plain.endswith("  12345")
