"""What of a group a person should know: each alarm says what is so and what to do next. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidewheel.rebalance.group import Group
from tidewheel.rebalance.inspect.describe import LogFold, duration_text
from tidewheel.rebalance.model import MemberPhase, TaskId, TaskPhase, TaskRole, TopicPartition
from tidewheel.rebalance.protocol.records import MemberRecord
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.streams.group.inbox import SESSION_MS, InboxFold
from tidewheel.streams.kafka.admin.group_log import state_topic
from tidewheel.tasks.internal_topics import internal_prefix
from tidewheel.tasks.key_ranges.progress_vector import Progress, is_foreign
from tidewheel.tasks.open_transactions import OpenTransaction
from tidewheel.tasks.ports import CommittedOffset

#: What takes longer than this, though it should take a second, is worth a look.
_LONG_MS: Final = 10_000

#: A skipped record is an alarm for so long.
_REJECTED_MS: Final = 3_600_000

#: A member that begins so often, or a leadership that is claimed so often, within this time is in a loop.
_LOOP_MS: Final = 600_000
_LOOP_COUNT: Final = 4
_LOOP_CLAIMS: Final = 6

#: As many names are listed in one alarm.
_NAMED: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something a person should know: a stable name, what is so, and the next step."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What brokers say of a group beside its two topics.

    Attributes:
        subscribers: Consumers that are subscribed with the group's name (H19).
        foreign_offsets: Partitions whose committed offset was not written by this application (H18).
        topic_ids: Ids of the control topics as they are now, by name; None if not asked for.
        progress: What the committed offset of each input partition says of its key ranges; None if not asked for.
        open_transactions: Transactions that stay open in a topic of the application.
        problem: Why the brokers could not be asked, or "".
    """

    subscribers: int = 0
    open_transactions: tuple[OpenTransaction, ...] = ()
    foreign_offsets: tuple[TopicPartition, ...] = ()
    topic_ids: Mapping[str, str] | None = None
    progress: Mapping[TopicPartition, Progress] | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What alarms are judged by."""

    application_id: str
    log: LogFold
    inbox: InboxFold
    now_ms: int
    around: Surroundings = field(default_factory=Surroundings)

    @property
    def group(self) -> Group:
        """Return the group as the log has it."""
        return self.log.group


def foreign_offsets(
    application_id: str, committed: Mapping[TopicPartition, CommittedOffset]
) -> tuple[TopicPartition, ...]:
    """Return the partitions whose offset somebody else committed."""
    prefix = internal_prefix(application_id)
    return tuple(
        partition
        for partition, (offset, metadata) in sorted(committed.items())
        if is_foreign(metadata, offset, prefix)
    )


def alarms(sight: Sight) -> tuple[Alarm, ...]:
    """Return the alarms of a group, the gravest first."""
    return tuple(
        alarm
        for find in (
            _held,
            _topics,
            _skipped,
            _leader,
            _told,
            _silent,
            _fencing,
            _unowned,
            _open_transactions,
            _waiting,
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
        for alarm in find(sight)
    )


def _held(sight: Sight) -> Iterator[Alarm]:
    held = sight.group.about.held
    if held:
        yield Alarm(
            name="held",
            text=f"the leader decides nothing: {held}; tasks stay where they are until that is mended",
        )


def _topics(sight: Sight) -> Iterator[Alarm]:
    now = sight.around.topic_ids
    if now is None:
        return
    for name, known in sorted(sight.group.topic_ids.items()):
        if now.get(name) != known:
            what = "is another one than the group was led with" if name in now else "is gone"
            yield Alarm(
                name="control-topic-changed",
                text=f"topic {name} {what}: its epochs count for nothing, and members hold still; run `tidewheel group "
                "recover MODULE:TOPOLOGY`, which says what it would do and whom to stop first",
            )


def _skipped(sight: Sight) -> Iterator[Alarm]:
    """Yield what the readers of the two topics skip; an hour later it is history."""
    for rejected, count, verb in (
        (sight.log.rejected, sight.log.rejected_count, "skip"),
        (sight.inbox.rejected, sight.inbox.rejected_count, "drop"),
    ):
        recent = [each for each in rejected if sight.now_ms - each.timestamp_ms <= _REJECTED_MS]
        if recent:
            more = count - 1
            others = f" ({more} more before it)" if more else ""
            yield Alarm(
                name="unreadable-record",
                text=f"all readers {verb} {recent[-1]}{others}; no version of Tidewheel writes such a record: find out who "
                f"may write to topic {recent[-1].topic}, and permit that to the application alone",
            )


def _is_led(sight: Sight) -> bool:
    """Return whether a leader spoke within the session timeout."""
    beat = sight.inbox.leader_beat(sight.group)
    live = sight.group.live()
    patience_ms = max((each.session_timeout_ms for each in live.values()), default=SESSION_MS)
    return beat is not None and sight.now_ms - beat[0] <= patience_ms


def _being_fenced(group: Group) -> dict[str, MemberRecord]:
    return {
        incarnation: record
        for incarnation, record in sorted(group.members.items())
        if record.phase == MemberPhase.FENCING
    }


def _leader(sight: Sight) -> Iterator[Alarm]:
    if _is_led(sight):
        return
    if not sight.group.live():
        dead = _being_fenced(sight.group)
        if dead:
            yield Alarm(
                name="no-leader",
                text=f"nobody leads and no member is up since the last died: {_names(map(_who, dead.values()))} must be "
                "fenced before the tasks go on, which the next leader does; start a member",
            )
        return
    beat = sight.inbox.leader_beat(sight.group)
    since = (
        "not heard" if beat is None else f"last heard {duration_text(sight.now_ms - beat[0])} ago"
    )
    yield Alarm(
        name="no-leader",
        text=f"nobody leads ({sight.group.leader or 'no leader yet'}: {since}): nothing moves and the dead are not "
        "replaced until a member takes over; if none does within seconds, look at the members' logs and whether they "
        f"may write to {state_topic(sight.application_id)}",
    )


def _told(sight: Sight) -> Iterator[Alarm]:
    heard = sight.inbox.leader_beat(sight.group)
    if heard is not None:
        for text in heard[1].alarms:
            yield Alarm(name="leader", text=f"the leader says: {text}")


def _silent(sight: Sight) -> Iterator[Alarm]:
    for incarnation, record in sight.group.live().items():
        heard_ms = sight.inbox.heard_ms.get(incarnation)
        silent_ms = None if heard_ms is None else sight.now_ms - heard_ms
        if silent_ms is not None and silent_ms <= record.session_timeout_ms:
            continue
        how_long = "long" if silent_ms is None else duration_text(silent_ms)
        yield Alarm(
            name="silent-member",
            text=f"{_who(record)} has said nothing for {how_long} (session timeout "
            f"{duration_text(record.session_timeout_ms)}): the leader gives it up and its tasks move; look at that host",
        )


def _fencing(sight: Sight) -> Iterator[Alarm]:
    if not _is_led(sight):
        return  # nobody fences
    for incarnation, record in _being_fenced(sight.group).items():
        since = sight.log.member_since.get(incarnation)
        if since and sight.now_ms - since.at_ms > _LONG_MS:
            yield Alarm(
                name="fencing-takes-long",
                text=f"{_who(record)} is being fenced for {duration_text(sight.now_ms - since.at_ms)}, which takes a "
                "second: its tasks wait; look at the brokers' transaction coordinators",
            )


def _unowned(sight: Sight) -> Iterator[Alarm]:
    group = sight.group
    back = {each.member for each in group.members.values() if each.phase == MemberPhase.GONE}
    tasks = [
        task
        for task in sorted(group.tasks)
        if group.phase_of(task) in {TaskPhase.UNOWNED, TaskPhase.RELEASED}
        and group.target.owners.get(task) not in back
        and (not group.live() or _since(sight, task) > _LONG_MS)
    ]
    if not tasks:
        return
    step = (
        "start a member"
        if not group.live()
        else "look at the members' logs for what they lack (disk, memory, topics)"
    )
    yield Alarm(name="unowned-tasks", text=f"nobody runs {_names(tasks)}; {step}")


def _since(sight: Sight, task: TaskId) -> int:
    """Return for how long a task has its phase (ms); for long if nothing is known."""
    known = sight.log.task_since.get(task)
    return _LONG_MS + 1 if known is None else sight.now_ms - known.at_ms


def _offsets(sight: Sight) -> Iterator[Alarm]:
    if sight.around.foreign_offsets and sight.group.live():
        yield Alarm(
            name="offsets-moved",
            text=f"the committed offsets of {_names(sight.around.foreign_offsets)} were not written by this application: "
            "running tasks go on where they are, but the next owner would begin there; stop all members and run "
            "`tidewheel reset` if they are to begin elsewhere",
        )


def _open_transactions(sight: Sight) -> Iterator[Alarm]:
    for each in sight.around.open_transactions[:_NAMED]:
        yield Alarm(
            name="open-transaction",
            text=f"{each}; nothing behind it can be read, so tasks that read it wait, and lag grows",
        )
    more = len(sight.around.open_transactions) - _NAMED
    if more > 0:
        yield Alarm(
            name="open-transaction", text=f"transactions are open in {more} more partitions"
        )


def _waiting(sight: Sight) -> Iterator[Alarm]:
    """Yield restores without progress, of members that are heard."""
    live = sight.group.live()
    for incarnation, rows in sorted(sight.inbox.tasks.items()):
        record = live.get(incarnation)
        if record is None:
            continue
        held = {str(each) for each in sight.group.owned(incarnation)}
        for (task, role), (_, row) in sorted(rows.items()):
            if row.waits and (role != TaskRole.ACTIVE or task in held):
                what = "restoring" if role == TaskRole.ACTIVE else f"the {role}"
                yield Alarm(
                    name="restore-waits",
                    text=f"{task} at {record.member}: {what} has made {row.waits}",
                )


def _long_calls(sight: Sight) -> Iterator[Alarm]:
    """Yield calls of user code that have run for long, of members that are heard."""
    for incarnation, record in sorted(sight.group.live().items()):
        call = sight.inbox.calls.get(incarnation)
        if call is not None and call.is_long:
            yield Alarm(
                name="long-call",
                text=f"{_who(record)}: {call.text} has run for {duration_text(call.ms)}, and what waits for it does not "
                "go on; give what it calls a time-out, make the call shorter, or raise max_call_ms",
            )


def _restarting(sight: Sight) -> Iterator[Alarm]:
    """Yield members and leaders that begin again and again."""
    minutes = _LOOP_MS // 60_000
    for member, times in sorted(sight.log.begun.items()):
        count = sum(sight.now_ms - each <= _LOOP_MS for each in times)
        if count >= _LOOP_COUNT:
            yield Alarm(
                name="restarting-member",
                text=f"{member} has begun {count} times in the last {minutes} minutes: its worker dies, or is fenced, and starts "
                "again; look at the last error in its log",
            )
    claims = sum(sight.now_ms - each <= _LOOP_MS for each in sight.log.claims)
    if claims >= _LOOP_CLAIMS:
        yield Alarm(
            name="restarting-leader",
            text=f"the leadership was claimed {claims} times in the last {minutes} minutes: watchdogs die or are cut off one "
            "after the other; look at the last error in the members' logs, and at the brokers",
        )


def _subscribers(sight: Sight) -> Iterator[Alarm]:
    count = sight.around.subscribers
    if count:
        yield Alarm(
            name="foreign-subscribers",
            text=f"{count} consumer{'s are' if count > 1 else ' is'} subscribed with group id {sight.application_id}, "
            "which is this application's: give them another one; a member that starts meanwhile is refused",
        )


def _unfit(sight: Sight) -> Iterator[Alarm]:
    for _, record in sorted(sight.group.members.items()):
        if record.phase == MemberPhase.PARKED:
            yield Alarm(name="parked-member", text=f"{_who(record)} gets no tasks: {record.reason}")
    for incarnation, (_, refused) in sorted(sight.inbox.refused.items()):
        joined = sight.inbox.joins.get(incarnation)
        who = incarnation if joined is None else f"{joined[1].member} on {joined[1].host}"
        yield Alarm(
            name="refused-member", text=f"{who} was refused ({refused.code}): {refused.reason}"
        )


def _failed(sight: Sight) -> Iterator[Alarm]:
    tasks = {str(task) for task in sight.group.tasks}
    for (task, _), (_, failure) in sorted(sight.inbox.failed.items()):
        if task not in tasks:
            continue  # its topics are gone
        yield Alarm(
            name="task-failed",
            text=f"{task} could not be opened at {failure.member} as {failure.role}: {failure.detail}",
        )


def _left_out(sight: Sight) -> Iterator[Alarm]:
    """Yield an alarm for records that were dropped by rules, and one for those that handlers have skipped."""
    rows = _active_rows(sight)
    dropping = [row for row in rows if row.dropped]
    if dropping:
        most = max(dropping, key=lambda row: row.dropped)
        yield Alarm(
            name="dropped-records",
            text=f"{_names(row.task for row in dropping)} dropped {sum(row.dropped for row in dropping):,} records by a rule "
            f"since their owners began: {most.drop or 'puts with times that stores do not keep any more'}; give late records "
            "more grace, and records keys and times that are right",
        )
    skipping = [row for row in rows if row.skipped]
    if skipping:
        yield Alarm(
            name="skipped-records",
            text=f"exception handlers have skipped {sum(row.skipped for row in skipping):,} records of "
            f"{_names(row.task for row in skipping)} since their owners began; the log names each",
        )


def _active_rows(sight: Sight) -> list[TaskStatus]:
    """Return what live members last said of their active tasks."""
    return [
        row
        for incarnation in sight.group.live()
        for (_, role), (_, row) in sorted(sight.inbox.tasks.get(incarnation, {}).items())
        if role == TaskRole.ACTIVE
    ]


def _misplaced(sight: Sight) -> Iterator[Alarm]:
    for text in sorted({row.misplaced for row in _active_rows(sight) if row.misplaced}):
        yield Alarm(name="other-partitioner", text=text)


def _not_asked(sight: Sight) -> Iterator[Alarm]:
    if sight.around.problem:
        yield Alarm(
            name="not-checked",
            text=f"subscribers, committed offsets and topic ids could not be checked: {sight.around.problem}",
        )


def _who(record: MemberRecord) -> str:
    return f"{record.member} on {record.host}" if record.host else record.member


def _names(names: Iterable[object]) -> str:
    texts = [str(each) for each in names]
    more = len(texts) - _NAMED
    return ", ".join(texts[:_NAMED]) + (f" and {more} more" if more > 0 else "")
