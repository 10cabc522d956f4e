"""`tidewheel drain`: makes a member hand over its tasks and leave."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tidewheel.rebalance.inspect.describe import duration_text
from tidewheel.rebalance.model import MemberPhase
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.messages import DrainMember
from tidewheel.rebalance.protocol.naming import display_name
from tidewheel.rebalance.protocol.records import MemberRecord
from tidewheel.streams.cli.arguments import SettingsOptions, parse_timeout_ms
from tidewheel.streams.cli.group_access import GroupAccess, group_access
from tidewheel.streams.cli.output import print_error, print_json, text_console
from tidewheel.streams.config.suggestions import did_you_mean
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.streams.exit_codes import ExitCode

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]

_POLL_S: Final = 0.2
#: Interval of drain orders, until the group log shows that a leader has received one.
_REMIND_S: Final = 1.0
#: Extra wait after the drain limit: the member still commits, closes its stores and reports.
_GRACE_MS: Final = 15_000


def drain(
    member: str,
    target: str | None = None,
    /,
    *,
    timeout: str | None = None,
    json: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Make a member leave: its tasks move to others while it keeps working, then it ends.

    The tasks restore at other members first, so each one pauses only for its own hand-over. After
    --timeout the remaining tasks are released immediately and restored at their new owners. Ctrl-C
    ends the wait, not the draining.

    Exit codes: 0 the member is gone; 1 no such member, or it died instead; 8 it is still there.

    Args:
        member: The member in `tidewheel status`, as host/slot, as the name in brackets, or as an
            unambiguous beginning of either.
        target: The application's MODULE:TOPOLOGY or id; or give --application-id.
        timeout: Limit for moving its tasks, such as 30s or 5m; default: drain_timeout_ms.
        json: Print JSON lines instead of text.
        settings: Settings.
    """
    if not member.strip():
        raise ConfigError(
            "MEMBER is empty, which would be the beginning of any name; give the member's name as `tidewheel status` shows it"
        )
    with group_access(target, settings) as access:
        access.check_exists()
        drain_ms = (
            access.config.drain_timeout_ms
            if timeout is None
            else parse_timeout_ms(timeout, 0, " is negative; 0 releases all tasks immediately")
        )
        access.read()
        record = find_member(access.group, member)
        drained = _Draining(access, record, drain_ms)
        if json:
            outcome = drained.follow(
                lambda step: print_json(
                    {
                        "member": step.member,
                        "name": step.name,
                        "phase": step.phase,
                        "tasks": list(step.tasks),
                    }
                )
            )
        else:
            outcome = _with_bar(drained, drain_ms)
    if outcome.problem:
        print_error(outcome.problem)
    return outcome.code


def find_member(group: Group, name: str) -> MemberRecord:
    """Return the live member with this name or unique prefix, else raise `StreamsError`."""
    live = list(group.live().values())
    matches = [record for record in live if name in _names_of(record)] or [
        record for record in live if any(each.startswith(name) for each in _names_of(record))
    ]
    if len(matches) == 1:
        return matches[0]
    names = [display_name(record) for record in live]
    if matches:
        several = ", ".join(map(display_name, matches))
        raise StreamsError(
            f"{name!r} is the beginning of several members: {several}; give more of it"
        )
    members_text = f"there are {', '.join(names)}" if names else "there are none"
    hint = did_you_mean(name, [*names, *(record.member for record in live)])
    raise StreamsError(
        f"no live member is called {name!r}; {f'{hint} ' if hint else ''}{members_text} (`tidewheel status` shows them)"
    )


def _names_of(record: MemberRecord) -> tuple[str, ...]:
    """Return the names of a member: its own, `host/slot (id)`, and `host/slot`."""
    name = display_name(record)
    return record.member, name, name.partition(" (")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainStep:
    """Progress of a drain: the member's phase in the group log, and its remaining tasks."""

    member: str
    name: str
    phase: str
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    code: ExitCode
    problem: str = ""


class _Draining:
    """Sends the drain order to a member and follows its phase until it is gone."""

    def __init__(self, access: GroupAccess, record: MemberRecord, drain_ms: int) -> None:
        self._access = access
        self._record = record
        self._drain_ms = drain_ms

    def step(self) -> DrainStep:
        group, incarnation = self._access.group, self._record.incarnation
        record = group.members.get(incarnation)
        return DrainStep(
            member=self._record.member,
            name=display_name(self._record),
            phase=MemberPhase.GONE.value if record is None else record.phase,
            tasks=tuple(map(str, group.owned(incarnation))),
        )

    def follow(self, show: Callable[[DrainStep], None]) -> _Outcome:
        """Show each step; return when the member is gone, or after the limit."""
        deadline_s = time.monotonic() + (self._drain_ms + _GRACE_MS) / 1000
        remind_s = time.monotonic()
        was_fenced = False
        shown: DrainStep | None = None
        while True:
            now = self.step()
            if now != shown:
                show(now)
                shown = now
            was_fenced |= now.phase in {MemberPhase.FENCING, MemberPhase.FENCED}
            if now.phase == MemberPhase.GONE:
                return _fenced(now) if was_fenced else _Outcome(code=ExitCode.OK)
            if time.monotonic() >= deadline_s:
                return _late(now)
            if (
                now.phase in {MemberPhase.ACTIVE, MemberPhase.PARKED}
                and time.monotonic() >= remind_s
            ):
                self._request_drain()
                remind_s = time.monotonic() + _REMIND_S
            time.sleep(_POLL_S)
            self._access.read()

    def _request_drain(self) -> None:
        self._access.send(
            DrainMember(
                app=self._access.application_id,
                member="operator",
                incarnation=self._access.operator,
                target=self._record.member,
                drain_ms=self._drain_ms,
            )
        )


def _with_bar(drained: _Draining, drain_ms: int) -> _Outcome:
    console = text_console()
    first = drained.step()
    total = len(first.tasks)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks moved"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(f"{first.name}: asked to leave", total=total)

        def show(step: DrainStep) -> None:
            progress.update(
                bar,
                description=f"{step.name}: {step.phase}",
                total=max(total, len(step.tasks)),
                completed=max(total - len(step.tasks), 0),
            )

        try:
            outcome = drained.follow(show)
        except KeyboardInterrupt:
            console.print(
                f"Not waiting any more; {first.name} continues to leave, for at most {duration_text(drain_ms)}.",
                markup=False,
            )
            raise
    if outcome.code is ExitCode.OK:
        console.print(f"{first.name} is gone.", markup=False, style="green")
    return outcome


def _fenced(step: DrainStep) -> _Outcome:
    return _Outcome(
        code=ExitCode.FAILED,
        problem=f"{step.name} died before it had left: it was fenced, and its tasks moved without their learners' help; "
        "`tidewheel group history --last 1` has the details",
    )


def _late(step: DrainStep) -> _Outcome:
    if step.phase == MemberPhase.LEAVING:
        text = f"it still has {', '.join(step.tasks) or 'no task'}; check its log"
    else:
        text = "no leader has answered; `tidewheel status` shows the leader"
    return _Outcome(
        code=ExitCode.NOT_STOPPED_IN_TIME, problem=f"{step.name} is still {step.phase}: {text}"
    )
