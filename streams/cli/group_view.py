"""Views of a group for a terminal, and in one line."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tidewheel.rebalance.inspect.describe import GroupPhase, duration_text
from tidewheel.rebalance.model import MemberPhase, TaskPhase
from tidewheel.streams.group.range_map import InputRanges, KeyRange
from tidewheel.streams.group.status import GroupStatus, MemberStatus, MemberTask

_BAR_WIDTH: Final = 20
_PHASE_STYLES: Final = {
    GroupPhase.RUNNING.value: "bold green",
    GroupPhase.EMPTY.value: "dim",
    GroupPhase.NOT_READY.value: "bold red",
}
_UNKNOWN: Final = "-"
_STALE: Final = "dim"


def status_view(status: GroupStatus, *, tasks_first: int | None = None) -> RenderableType:
    """Return a group's status as tables for the terminal.

    `tasks_first` is for screens that cut off the rest. It limits the number of tasks: moving ones
    first, then those with most lag. Partitions whose key ranges differ most in progress come first
    too.
    """
    parts: list[RenderableType] = [_headline(status), _subline(status)]
    parts += [Text(f"! {alarm.text}", style="red") for alarm in status.alarms]
    if status.members:
        parts += [Text(), _members(status)]
    if status.tasks:
        parts += [Text(), _tasks(status, tasks_first)]
        parts += [Text(text, style="yellow") for text in slow_record_lines(status)]
    if status.learners or status.waiting:
        parts += [Text(), _copies("learners", status.learners, status.read_ms)]
        parts += _waiting(status)
    if status.standbys:
        parts += [Text(), _copies("standbys", status.standbys, status.read_ms)]
    if status.key_ranges is not None:
        inputs = status.key_ranges
        uneven = inputs if tasks_first is None else tuple(sorted(inputs, key=_evenness))
        parts += [Text(), _ranges(uneven)]
    return Lines(*parts)


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
        f"task {task.task} at {task.member or _UNKNOWN} blocks the event loop that key ranges share: {task.blocked}"
        for task in status.tasks
        if task.blocked is not None
    ]
    return blocked + [
        f"task {task.task} at {task.member or _UNKNOWN} processes a record: {key_range}"
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


def _live(status: GroupStatus) -> list[MemberStatus]:
    return [member for member in status.members if member.phase != MemberPhase.GONE]


def _headline(status: GroupStatus) -> Text:
    return Text.assemble(
        (status.application_id, "bold"),
        "  ",
        (status.phase, _PHASE_STYLES.get(status.phase, "bold yellow")),
        f"  {_counted(len(_live(status)), 'member')}, {_counted(len(status.tasks), 'task')}",
    )


def _subline(status: GroupStatus) -> Text:
    if not status.leader:
        return Text("this group has had no leader yet", style="dim")
    heard = (
        "not heard"
        if status.leader_heard_ms_ago is None
        else f"heard {duration_text(status.leader_heard_ms_ago)} ago"
    )
    program = f", topology {status.topology_epoch} {status.topology_hash}".rstrip()
    return Text(
        f"led by {status.leader} (epoch {status.leader_epoch}, {heard}), target {status.group_epoch}, step "
        f"{status.step_epoch}{program}, protocol {status.protocol}, assignor {status.assignor or _UNKNOWN}",
        style="dim",
    )


def _members(status: GroupStatus) -> Table:
    table = _table(
        "members", ("member", "host", "phase"), ("tasks", "learners", "standbys", "heard", "since")
    )
    for member in status.members:
        heard = (
            _UNKNOWN if member.heard_ms_ago is None else f"{duration_text(member.heard_ms_ago)} ago"
        )
        name = f"{member.member} *" if member.leads else member.member
        table.add_row(
            *_cells(
                name,
                member.host or _UNKNOWN,
                _member_phase(member),
                len(member.active),
                len(member.learner),
                len(member.standby),
                f"{heard} (stale)" if member.stale else heard,
                _since(member.since_ms, status.read_ms),
            ),
            style="red" if member.stale else "",
        )
    if any(member.leads for member in status.members):
        table.caption = "* its program leads"
        table.caption_justify = "left"
    return table


def _member_phase(member: MemberStatus) -> str:
    is_plain = member.phase == MemberPhase.ACTIVE or not member.reason
    return member.phase if is_plain else f"{member.phase}: {member.reason}"


def _tasks(status: GroupStatus, first: int | None) -> Table:
    right = ("epoch", "since", "lag", "records/s")
    cut = any(task.range_count > 1 for task in status.tasks)
    table = _table("tasks", ("task", "owner", "phase"), (*right, "ranges") if cut else right)
    rows = status.tasks
    if first is not None and len(rows) > first:
        rows = tuple(sorted(rows, key=_urgency)[:first])
        table.caption = f"{len(status.tasks) - first} more tasks are not shown"
        table.caption_justify = "left"
    for task in rows:
        phase = f"{task.phase} → {task.target}" if task.target else task.phase
        table.add_row(
            *_cells(
                task.task,
                task.member or _UNKNOWN,
                phase,
                task.epoch,
                _since(task.since_ms, status.read_ms, known=task.since_known),
                _count(task.lag, stale=task.stale),
                _rate(task),
                *((task.range_count,) if cut else ()),
            ),
            style=_STALE if task.stale else "",
        )
    return table


def _ranges(inputs: Sequence[InputRanges]) -> RenderableType:
    if not inputs:
        return Text("no key ranges: nothing has been committed yet", style="dim")
    table = _table("key ranges", ("task", "input", "key hashes"), ("offset", "ahead", "busy"))
    for partition in inputs:
        for index, key_range in enumerate(partition.ranges):
            # Leave cells that equal the row above empty.
            names = (
                ("", "")
                if index
                else (partition.task or _UNKNOWN, f"{partition.topic}-{partition.partition}")
            )
            table.add_row(
                *_cells(
                    *names,
                    f"{key_range.first}-{key_range.last}",
                    f"{key_range.offset:,}",
                    f"{key_range.ahead:,}",
                    _UNKNOWN if key_range.busy is None else f"{key_range.busy} %",
                )
            )
    return table


def _copies(title: str, copies: Sequence[MemberTask], read_ms: int) -> Table:
    table = _table(
        title, ("task", "at", "phase", "restored"), ("lag", "records/s", "ready in", "since")
    )
    for copy in copies:
        bar: RenderableType = (
            ProgressBar(total=copy.end, completed=min(copy.done, copy.end), width=_BAR_WIDTH)
            if copy.end
            else Text(_UNKNOWN)
        )
        eta = _UNKNOWN if copy.eta_s is None else duration_text(int(copy.eta_s * 1000))
        table.add_row(
            *_cells(copy.task, copy.member, copy.phase),
            bar,
            *_cells(
                _count(copy.lag, stale=copy.stale),
                _rate(copy),
                "now" if copy.phase == "READY" else eta,
                _since(copy.since_ms, read_ms, known=copy.since_known),
            ),
            style=_STALE if copy.stale else "",
        )
    return table


def _waiting(status: GroupStatus) -> list[RenderableType]:
    if not status.waiting:
        return []
    text = (
        f"waiting for a place among the learners (max_warmup_replicas): {', '.join(status.waiting)}"
    )
    return [Text(text, style="dim")]


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", expand=False)
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cells(*values: object) -> list[Text]:
    return [Text(str(value)) for value in values]


def _urgency(task: MemberTask) -> tuple[bool, int]:
    return task.phase == TaskPhase.RUNNING.value, -(task.lag or 0)


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
    return f"{number:,} (stale)" if stale else f"{number:,}"


def _rate(figures: MemberTask) -> str:
    return _UNKNOWN if figures.rate is None else f"{figures.rate:,.0f}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
