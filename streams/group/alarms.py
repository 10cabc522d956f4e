"""Alarms of a group, for operators; no I/O."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidewheel.rebalance.inspect.describe import LogFold, duration_text, program_name
from tidewheel.rebalance.leader.resting import is_held_at_rest
from tidewheel.rebalance.model import (
    MemberPhase,
    Shard,
    TaskId,
    TaskPhase,
    TaskRole,
    TopicPartition,
)
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.naming import display_name
from tidewheel.rebalance.protocol.plain_text import plain_text
from tidewheel.rebalance.protocol.records import MemberRecord
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.streams.group.inbox import SESSION_MS, InboxFold
from tidewheel.streams.kafka.admin.group_log import state_topic
from tidewheel.tasks.kafka.internal_topics import internal_prefix
from tidewheel.tasks.kafka.open_transactions import OpenTransaction
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress, is_foreign

#: Milliseconds after which a running fence, or a task without an owner, is an alarm; one second is
#: normal.
_LONG_MS: Final = 10_000

_REJECTED_MS: Final = 3_600_000

#: Milliseconds within which alarms count starts of a member and claims of leadership.
_LOOP_MS: Final = 600_000
#: Starts of one member that are an alarm.
_LOOP_COUNT: Final = 4
#: Claims of leadership, by all members together, that are an alarm.
_LOOP_CLAIMS: Final = 6

_NAMED: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Problem of a group: a stable name, and a text with the next step."""

    name: str
    text: str

    def __post_init__(self) -> None:
        """Replace unprintable characters, which a client may have chosen."""
        object.__setattr__(self, "text", plain_text(self.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """Facts that brokers report about a group.

    Attributes:
        subscribers: Other programs' consumers that use the application id as group id.
        foreign_offsets: Partitions whose offset another application committed.
        topic_ids: Ids of the topics of group log and inbox; None if not requested.
        open_transactions: Transactions that block readers of the application's topics for 5 s.
        progress: Committed position of each key range, by shard; None if not requested.
        problem: Reason why the brokers could not be asked.
    """

    subscribers: tuple[str, ...] = ()
    open_transactions: tuple[OpenTransaction, ...] = ()
    foreign_offsets: tuple[TopicPartition, ...] = ()
    topic_ids: Mapping[str, str] | None = None
    progress: Mapping[Shard, Mapping[TopicPartition, Progress]] | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    application_id: str
    log: LogFold
    inbox: InboxFold
    now_ms: int
    around: BrokerFacts = field(default_factory=BrokerFacts)

    @property
    def group(self) -> Group:
        return self.log.group


def foreign_offsets(
    application_id: str, committed: Mapping[TopicPartition, CommittedOffset]
) -> tuple[TopicPartition, ...]:
    prefix = internal_prefix(application_id)
    return tuple(
        partition
        for partition, (offset, metadata) in sorted(committed.items())
        if is_foreign(metadata, offset, prefix)
    )


def alarms(view: GroupView) -> tuple[Alarm, ...]:
    """Return the alarms, the most severe first."""
    return tuple(
        alarm
        for find in (
            _paused_leader,
            _topics,
            _rejected_records,
            _leader,
            _leader_alarms,
            _silent,
            _fencing,
            _unowned,
            _open_transactions,
            _waiting,
            _sinks,
            _long_calls,
            _restarting,
            _offsets,
            _subscribers,
            _unfit,
            _failed,
            _left_out,
            _misplaced,
            _not_asked,
        )
        for alarm in find(view)
    )


def _paused_leader(view: GroupView) -> Iterator[Alarm]:
    pause_reason = view.group.about.held
    next_step = f"`tidewheel group resume {view.application_id}` lets its members continue"
    if is_held_at_rest(view.group):
        yield Alarm(name="at-rest", text=f"the application is at rest; {next_step}")
    elif pause_reason:
        yield Alarm(
            name="held",
            text=f"the leader decides nothing: {pause_reason}; tasks stay where they are until that is fixed",
        )
    elif view.group.about.rest is not None:
        yield Alarm(
            name="at-rest",
            text=f"the application comes to rest: it takes no external input; {next_step}",
        )


def _topics(view: GroupView) -> Iterator[Alarm]:
    now = view.around.topic_ids
    if now is None:
        return
    for name, topic_id in sorted(view.group.topic_ids.items()):
        if now.get(name) != topic_id:
            what = "is another one than the group was led with" if name in now else "is gone"
            yield Alarm(
                name="control-topic-changed",
                text=f"topic {name} {what}: its epochs are invalid, and members pause; run `tidewheel group "
                "recover MODULE:TOPOLOGY`, which lists its steps and the members to stop first",
            )


def _rejected_records(view: GroupView) -> Iterator[Alarm]:
    for rejected, count, verb in (
        (view.log.rejected, view.log.rejected_count, "skip"),
        (view.inbox.rejected, view.inbox.rejected_count, "drop"),
    ):
        recent = [
            record for record in rejected if view.now_ms - record.timestamp_ms <= _REJECTED_MS
        ]
        if recent:
            more = count - 1
            earlier = f" ({more} more before it)" if more else ""
            yield Alarm(
                name="unreadable-record",
                text=f"all readers {verb} {recent[-1]}{earlier}; no version of Tidewheel writes such a record: find out who "
                f"may write to topic {recent[-1].topic}, and permit that to the application alone",
            )


def _is_led(view: GroupView) -> bool:
    beat = view.inbox.leader_beat(view.group)
    live = view.group.live()
    timeout_ms = max((record.session_timeout_ms for record in live.values()), default=SESSION_MS)
    return beat is not None and view.now_ms - beat[0] <= timeout_ms


def _being_fenced(group: Group) -> dict[str, MemberRecord]:
    return {
        incarnation: record
        for incarnation, record in sorted(group.members.items())
        if record.phase == MemberPhase.FENCING
    }


def _leader(view: GroupView) -> Iterator[Alarm]:
    if _is_led(view):
        return
    if not view.group.live():
        dead = _being_fenced(view.group)
        if dead:
            yield Alarm(
                name="no-leader",
                text=f"there is neither a leader nor a live member; the next leader must fence {_names(map(display_name, dead.values()))} "
                "before their tasks continue; start a member",
            )
        return
    beat = view.inbox.leader_beat(view.group)
    since = (
        "not heard" if beat is None else f"last heard {duration_text(view.now_ms - beat[0])} ago"
    )
    yield Alarm(
        name="no-leader",
        text=f"there is no leader ({program_name(view.group, view.group.leader) or 'no leader yet'}: {since}): no task moves and dead members are not "
        "replaced until a member takes over; if none does within seconds, check the members' logs and that they "
        f"may write to {state_topic(view.application_id)}",
    )


def _leader_alarms(view: GroupView) -> Iterator[Alarm]:
    beat = view.inbox.leader_beat(view.group)
    if beat is not None:
        for text in beat[1].alarms:
            yield Alarm(name="leader", text=f"the leader reports: {text}")


def _silent(view: GroupView) -> Iterator[Alarm]:
    for incarnation, record in view.group.live().items():
        heard_ms = view.inbox.heard_ms.get(incarnation)
        silent_ms = None if heard_ms is None else view.now_ms - heard_ms
        if silent_ms is not None and silent_ms <= record.session_timeout_ms:
            continue
        how_long = "long" if silent_ms is None else duration_text(silent_ms)
        yield Alarm(
            name="silent-member",
            text=f"{display_name(record)} has sent nothing for {how_long} (session timeout "
            f"{duration_text(record.session_timeout_ms)}): the leader removes it and its tasks move; check that host",
        )


def _fencing(view: GroupView) -> Iterator[Alarm]:
    if not _is_led(view):
        return  # without a leader no fence starts
    for incarnation, record in _being_fenced(view.group).items():
        since = view.log.member_since.get(incarnation)
        if since and view.now_ms - since.at_ms > _LONG_MS:
            yield Alarm(
                name="fencing-takes-long",
                text=f"{display_name(record)} is being fenced for {duration_text(view.now_ms - since.at_ms)}, which takes a "
                "second: its tasks wait; check the brokers' transaction coordinators",
            )


def _unowned(view: GroupView) -> Iterator[Alarm]:
    group = view.group
    back = {record.member for record in group.members.values() if record.phase == MemberPhase.GONE}
    tasks = [
        task
        for task in sorted(group.tasks)
        if group.phase_of(task) in {TaskPhase.UNOWNED, TaskPhase.RELEASED}
        and group.target.owners.get(task) not in back
        and (not group.live() or _since(view, task) > _LONG_MS)
    ]
    if not tasks or is_held_at_rest(group):
        return
    step = (
        "start a member"
        if not group.live()
        else "check the members' logs for missing disk, memory or topics"
    )
    yield Alarm(name="unowned-tasks", text=f"no member runs {_names(tasks)}; {step}")


def _since(view: GroupView, task: TaskId) -> int:
    since = view.log.task_since.get(task)
    return _LONG_MS + 1 if since is None else view.now_ms - since.at_ms


def _offsets(view: GroupView) -> Iterator[Alarm]:
    if view.around.foreign_offsets and view.group.live():
        yield Alarm(
            name="offsets-moved",
            text=f"the committed offsets of {_names(view.around.foreign_offsets)} were not written by this application: "
            "running tasks are not affected, but the next owner would start there; stop all members and run "
            "`tidewheel reset` to start elsewhere",
        )


def _open_transactions(view: GroupView) -> Iterator[Alarm]:
    for transaction in view.around.open_transactions[:_NAMED]:
        yield Alarm(
            name="open-transaction",
            text=f"{transaction}; nothing behind it can be read, so tasks that read it wait, and lag grows",
        )
    more = len(view.around.open_transactions) - _NAMED
    if more > 0:
        yield Alarm(
            name="open-transaction", text=f"transactions are open in {more} more partitions"
        )


def _waiting(view: GroupView) -> Iterator[Alarm]:
    live = view.group.live()
    owners = {str(task): state.owner for task, state in view.group.states.items()}
    for incarnation, rows in sorted(view.inbox.tasks.items()):
        record = live.get(incarnation)
        if record is None:
            continue
        for (task, role), (_, row) in sorted(rows.items()):
            if row.waits and (role != TaskRole.ACTIVE or owners.get(task) == incarnation):
                what = "restoring" if role == TaskRole.ACTIVE else f"the {role}"
                yield Alarm(
                    name="restore-waits",
                    text=f"{task} at {display_name(record)}: {what} has made {row.waits}",
                )


def _sinks(view: GroupView) -> Iterator[Alarm]:
    live = view.group.live()
    owners = {str(task): state.owner for task, state in view.group.states.items()}
    for incarnation, rows in sorted(view.inbox.tasks.items()):
        record = live.get(incarnation)
        for (task, _), (_, row) in sorted(rows.items()):
            if record is not None and row.sink and owners.get(task) == incarnation:
                yield Alarm(
                    name="sink-fails",
                    text=f"{task} at {display_name(record)}: its sink has made {row.sink}; its rows wait in Kafka",
                )


def _long_calls(view: GroupView) -> Iterator[Alarm]:
    for incarnation, record in sorted(view.group.live().items()):
        call = view.inbox.calls.get(incarnation)
        if call is not None and call.is_long:
            yield Alarm(
                name="long-call",
                text=f"{display_name(record)}: {call.text} has run for {duration_text(call.ms)}, and everything that waits for it is "
                "blocked; set a time-out for its requests, make the call shorter, or raise max_call_ms",
            )


def _restarting(view: GroupView) -> Iterator[Alarm]:
    minutes = _LOOP_MS // 60_000
    names = _display_names(view)
    for member, times in sorted(view.log.begun.items()):
        count = sum(view.now_ms - start_ms <= _LOOP_MS for start_ms in times)
        if count >= _LOOP_COUNT:
            yield Alarm(
                name="restarting-member",
                text=f"{names.get(member, member)} has started {count} times in the last {minutes} minutes: its worker dies, or is fenced, and starts "
                "again; check the last error in its log",
            )
    claims = sum(view.now_ms - claim_ms <= _LOOP_MS for claim_ms in view.log.claims)
    if claims >= _LOOP_CLAIMS:
        yield Alarm(
            name="restarting-leader",
            text=f"the leadership was claimed {claims} times in the last {minutes} minutes: watchdogs die or are cut off one "
            "after the other; check the last error in the members' logs, and at the brokers",
        )


def _subscribers(view: GroupView) -> Iterator[Alarm]:
    names = view.around.subscribers
    if names:
        yield Alarm(
            name="foreign-subscribers",
            text=f"{len(names)} consumer{'s are' if len(names) > 1 else ' is'} subscribed with group id "
            f"{view.application_id} ({', '.join(names)}), "
            "which is this application's: give them another one; a member that starts meanwhile is refused",
        )


def _unfit(view: GroupView) -> Iterator[Alarm]:
    for _, record in sorted(view.group.members.items()):
        if record.phase == MemberPhase.PARKED:
            yield Alarm(
                name="parked-member", text=f"{display_name(record)} gets no tasks: {record.reason}"
            )
    for incarnation, (_, refused) in sorted(view.inbox.refused.items()):
        joined = view.inbox.joins.get(incarnation)
        who = incarnation if joined is None else display_name(joined[1])
        yield Alarm(
            name="refused-member", text=f"{who} was refused ({refused.code}): {refused.reason}"
        )


def _failed(view: GroupView) -> Iterator[Alarm]:
    tasks = {str(task) for task in view.group.tasks}
    names = _display_names(view)
    for (task, _), (_, failure) in sorted(view.inbox.failed.items()):
        if task not in tasks:
            continue  # the task's topics are gone
        yield Alarm(
            name="task-failed",
            text=f"{task} could not be opened at {names.get(failure.member, failure.member)} as {failure.role}: {failure.detail}",
        )


def _left_out(view: GroupView) -> Iterator[Alarm]:
    rows = _active_rows(view)
    dropping = [row for row in rows if row.dropped]
    if dropping:
        most = max(dropping, key=lambda row: row.dropped)
        yield Alarm(
            name="dropped-records",
            text=f"{_names(row.task for row in dropping)} dropped {sum(row.dropped for row in dropping):,} records by a rule "
            f"since their owners started: {most.drop or 'puts with times that stores do not keep any more'}; "
            + (
                "more grace accepts late records. While history is read (after a reset, or a first start on old topics), "
                "partitions are read at different speeds: give at least that skew"
                if "late" in most.drop
                else "give late records more grace, and records keys and times that are right"
            ),
        )
    skipping = [row for row in rows if row.skipped]
    if skipping:
        yield Alarm(
            name="skipped-records",
            text=f"exception handlers have skipped {sum(row.skipped for row in skipping):,} records of "
            f"{_names(row.task for row in skipping)} since their owners started; the log names each",
        )


def _active_rows(view: GroupView) -> list[TaskStatus]:
    return [
        row
        for incarnation in view.group.live()
        for (_, role), (_, row) in sorted(view.inbox.tasks.get(incarnation, {}).items())
        if role == TaskRole.ACTIVE
    ]


def _misplaced(view: GroupView) -> Iterator[Alarm]:
    for text in sorted({row.misplaced for row in _active_rows(view) if row.misplaced}):
        yield Alarm(name="other-partitioner", text=text)


def _not_asked(view: GroupView) -> Iterator[Alarm]:
    if view.around.problem:
        yield Alarm(
            name="not-checked",
            text=f"subscribers, committed offsets and topic ids could not be checked: {view.around.problem}",
        )


def _display_names(view: GroupView) -> dict[str, str]:
    return {record.member: display_name(record) for record in view.group.members.values()}


def _names(names: Iterable[object]) -> str:
    texts = [str(name) for name in names]
    more = len(texts) - _NAMED
    return ", ".join(texts[:_NAMED]) + (f" and {more} more" if more > 0 else "")
