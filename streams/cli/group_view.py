"""Views of a group for a terminal, and in one line."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from tidewheel.rebalance.inspect.describe import GroupPhase, duration_text
from tidewheel.rebalance.model import MemberPhase, TaskId, TaskPhase
from tidewheel.streams.cli.text_table import Column, Row, shortened, table_lines
from tidewheel.streams.group.range_map import InputRanges, KeyRange
from tidewheel.streams.group.status import GroupStatus, MemberStatus, MemberTask

_PHASE_STYLES: Final = {
    GroupPhase.RUNNING.value: "bold green",
    GroupPhase.EMPTY.value: "dim",
    GroupPhase.NOT_READY.value: "bold red",
}
_UNKNOWN: Final = "-"
_STALE: Final = "dim"
_BAR: Final = 10
_LEADER_WIDTH: Final = 40
_SHORTEST_ID: Final = 8


def _number(task: MemberTask) -> tuple[Any, ...]:
    return TaskId.parse(task.task)


def _urgency(task: MemberTask) -> tuple[Any, ...]:
    is_settled = task.phase == TaskPhase.RUNNING.value and not task.target
    return is_settled, -(task.lag or 0), _number(task)


#: Orders of tasks, by name; the first puts moving tasks first, then those with most lag.
SORTS: Final[Mapping[str, Callable[[MemberTask], tuple[Any, ...]]]] = {
    "urgency": _urgency,
    "task": _number,
    "lag": lambda task: (-(task.lag or 0), _number(task)),
    "records/s": lambda task: (-(task.rate or 0.0), _number(task)),
    "owner": lambda task: (task.member_name or task.member, _number(task)),
}


def head_lines(status: GroupStatus, width: int) -> list[Text]:
    """Return the group's phase and leader."""
    lines = [_headline(status, width), *_leader_lines(status)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def alarm_lines(status: GroupStatus) -> list[Text]:
    return [Text(f"! {alarm.text}", style="red") for alarm in status.alarms]


def body_lines(
    status: GroupStatus, width: int, *, sort: str = "task", reverse: bool = False
) -> list[Text]:
    """Return the tables as lines of at most `width` cells: tasks, copies, members, key ranges.

    With `urgency`, partitions whose key ranges differ most in progress come first, too.
    """
    parts: list[list[Text]] = []
    if status.tasks:
        tasks = sorted(status.tasks, key=SORTS[sort], reverse=reverse)
        parts.append(_tasks(tasks, status.read_ms, width))
        if slow := [Text(text, style="yellow") for text in slow_record_lines(status)]:
            parts.append(slow)
    if status.learners:
        parts.append(_copies("learners", status.learners, status.read_ms, width))
    if status.waiting:
        waiting = ", ".join(status.waiting)
        text = f"waiting for a place among the learners (max_warmup_replicas): {waiting}"
        parts.append([Text(text, style="dim")])
    if status.standbys:
        parts.append(_copies("standbys", status.standbys, status.read_ms, width))
    if status.members:
        parts.append(_members(status, width))
    if status.key_ranges is not None:
        inputs = status.key_ranges
        uneven_first = inputs if sort != "urgency" else tuple(sorted(inputs, key=_evenness))
        parts.append(_ranges(uneven_first, width))
    lines: list[Text] = []
    for part in parts:
        lines += [Text(), *part]
    return lines


def status_line(status: GroupStatus) -> str:
    running = sum(task.phase in {TaskPhase.RUNNING.value, "WARMING"} for task in status.tasks)
    lags = [task.lag for task in status.tasks if task.lag is not None]
    rates = [task.rate for task in status.tasks if task.rate is not None]
    parts = [
        f"{status.application_id} {status.phase}",
        f"members {len(_live(status))}",
        f"tasks {running}/{len(status.tasks)}",
        f"learners {len(status.learners)}",
        f"lag {sum(lags):,}" if lags else f"lag {_UNKNOWN}",
        f"rate {sum(rates):,.0f}/s" if rates else f"rate {_UNKNOWN}",
        f"alarms {len(status.alarms)}",
    ]
    return "  ".join(parts)


def slow_record_lines(status: GroupStatus) -> list[str]:
    """Return warnings: blocked event loops, and records that a key range processes for long."""
    blocked = [
        f"task {task.task} at {_owner(task)} blocks the event loop that key ranges share: {task.blocked}"
        for task in status.tasks
        if task.blocked is not None
    ]
    return blocked + [
        f"task {task.task} at {_owner(task)} processes a record: {key_range}"
        for task in status.tasks
        for key_range in task.ranges
    ]


def range_lines(status: GroupStatus) -> list[str]:
    return [
        f"task {progress.task or _UNKNOWN} range {key_range.first}-{key_range.last} of {progress.topic}-{progress.partition}: "
        f"offset {key_range.offset}, {key_range.ahead} ahead{_busy(key_range)}"
        for progress in status.key_ranges or ()
        for key_range in progress.ranges
    ]


def _busy(key_range: KeyRange) -> str:
    return "" if key_range.busy is None else f", {key_range.busy} % busy"


def _owner(task: MemberTask) -> str:
    return task.member_name or task.member or _UNKNOWN


def _live(status: GroupStatus) -> list[MemberStatus]:
    return [member for member in status.members if member.phase != MemberPhase.GONE]


def _headline(status: GroupStatus, width: int) -> Text:
    alarms = len(status.alarms)
    facts = Text.assemble(
        "  ",
        (status.phase, _PHASE_STYLES.get(status.phase, "bold yellow")),
        f"  {_counted(len(_live(status)), 'member')}, {_counted(len(status.tasks), 'task')}",
        (f", {_counted(alarms, 'alarm')}", "red") if alarms else "",
    )
    name = shortened(status.application_id, max(width - facts.cell_len, _SHORTEST_ID))
    return Text.assemble((name, "bold"), facts)


def _leader_lines(status: GroupStatus) -> list[Text]:
    if not status.leader:
        return [Text("this group has had no leader yet", style="dim")]
    heard = (
        "not heard"
        if status.leader_heard_ms_ago is None
        else f"heard {duration_text(status.leader_heard_ms_ago)} ago"
    )
    name = shortened(status.leader_name or status.leader, _LEADER_WIDTH)
    program = f"topology {status.topology_epoch} {status.topology_hash}".rstrip()
    return [
        Text(f"led by {name}, epoch {status.leader_epoch}, {heard}", style="dim"),
        Text(
            f"target {status.group_epoch}, step {status.step_epoch}, {program}, protocol "
            f"{status.protocol}, {status.assignor or _UNKNOWN}",
            style="dim",
        ),
    ]


def _tasks(tasks: Sequence[MemberTask], read_ms: int, width: int) -> list[Text]:
    is_moving = any(task.target for task in tasks)
    is_cut = any(task.range_count > 1 for task in tasks)
    columns = [
        Column("task"),
        Column("owner", can_shrink=True),
        Column("phase"),
        *([Column("to", can_shrink=True)] if is_moving else []),
        Column("since", "right"),
        Column("lag", "right"),
        Column("rec/s", "right"),
        *([Column("ranges", "right")] if is_cut else []),
    ]
    rows = [
        Row(
            [
                task.task,
                _owner(task),
                task.phase,
                *([task.target_name or task.target or ""] if is_moving else []),
                _since(task.since_ms, read_ms, known=task.since_known),
                _count(task.lag, stale=task.stale),
                _rate(task),
                *([str(task.range_count)] if is_cut else []),
            ],
            _STALE if task.stale else "",
        )
        for task in tasks
    ]
    return table_lines("tasks", columns, rows, width)


def _members(status: GroupStatus, width: int) -> list[Text]:
    columns = [
        Column("member", can_shrink=True),
        Column("pid", "right"),
        Column("phase", can_shrink=True),
        Column("tasks", "right"),
        Column("learn", "right"),
        Column("stand", "right"),
        Column("heard", "right"),
        Column("since", "right"),
    ]
    rows = [_member_row(member, status.read_ms) for member in status.members]
    lines = table_lines("members", columns, rows, width)
    if any(member.leads for member in status.members):
        lines.append(Text("* its program leads", style="dim"))
    return lines


def _member_row(member: MemberStatus, read_ms: int) -> Row:
    name = member.name or member.member
    heard = _UNKNOWN if member.heard_ms_ago is None else f"{duration_text(member.heard_ms_ago)} ago"
    return Row(
        [
            f"{name} *" if member.leads else name,
            str(member.pid or _UNKNOWN),
            _member_phase(member),
            str(len(member.active)),
            str(len(member.learner)),
            str(len(member.standby)),
            f"{heard} !" if member.stale else heard,
            _since(member.since_ms, read_ms),
        ],
        "red" if member.stale else "",
    )


def _member_phase(member: MemberStatus) -> str:
    is_plain = member.phase == MemberPhase.ACTIVE or not member.reason
    return member.phase if is_plain else f"{member.phase}: {member.reason}"


def _copies(title: str, copies: Sequence[MemberTask], read_ms: int, width: int) -> list[Text]:
    columns = [
        Column("task"),
        Column("at", can_shrink=True),
        Column("phase"),
        Column("restored"),
        Column("lag", "right"),
        Column("rec/s", "right"),
        Column("ready in", "right"),
        Column("since", "right"),
    ]
    rows = [
        Row(
            [
                copy.task,
                _owner(copy),
                copy.phase,
                _progress(copy),
                _count(copy.lag, stale=copy.stale),
                _rate(copy),
                _ready_in(copy),
                _since(copy.since_ms, read_ms, known=copy.since_known),
            ],
            _STALE if copy.stale else "",
        )
        for copy in copies
    ]
    return table_lines(title, columns, rows, width)


def _progress(copy: MemberTask) -> str:
    if not copy.end:
        return _UNKNOWN
    part = min(copy.done, copy.end) / copy.end
    done = int(part * _BAR)
    return f"{'━' * done}{'╌' * (_BAR - done)} {int(part * 100)} %"


def _ready_in(copy: MemberTask) -> str:
    if copy.phase == "READY":
        return "now"
    return _UNKNOWN if copy.eta_s is None else duration_text(int(copy.eta_s * 1000))


def _ranges(inputs: Sequence[InputRanges], width: int) -> list[Text]:
    if not inputs:
        return [Text("no key ranges: nothing has been committed yet", style="dim")]
    columns = [
        Column("task"),
        Column("input", can_shrink=True),
        Column("key hashes"),
        Column("offset", "right"),
        Column("ahead", "right"),
        Column("busy", "right"),
    ]
    rows: list[Row] = []
    for partition in inputs:
        for index, key_range in enumerate(partition.ranges):
            # Leave cells that equal the row above empty.
            names = (
                ("", "")
                if index
                else (partition.task or _UNKNOWN, f"{partition.topic}-{partition.partition}")
            )
            busy = _UNKNOWN if key_range.busy is None else f"{key_range.busy} %"
            hashes = f"{key_range.first}-{key_range.last}"
            rows.append(
                Row([*names, hashes, f"{key_range.offset:,}", f"{key_range.ahead:,}", busy])
            )
    return table_lines("key ranges", columns, rows, width)


def _evenness(ranges: InputRanges) -> int:
    return -max(key_range.ahead for key_range in ranges.ranges)


def _since(since_ms: int | None, now_ms: int, *, known: bool = True) -> str:
    if since_ms is None:
        return _UNKNOWN
    text = duration_text(now_ms - since_ms)
    return text if known else f"≥ {text}"


def _count(number: int | None, *, stale: bool) -> str:
    if number is None:
        return _UNKNOWN
    return f"{number:,} !" if stale else f"{number:,}"


def _rate(figures: MemberTask) -> str:
    return _UNKNOWN if figures.rate is None else f"{figures.rate:,.0f}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
