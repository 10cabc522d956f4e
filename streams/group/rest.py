"""Rest: brings a running application to a clean cut between its committed input and the rest.

    order ─▶ wait until every task confirms ─▶ level, if needed ─▶ wait ─▶ fence ─▶ check ─▶ hold
    log: rest                                  log: rest, until                         log: held

The state is in the group log: a killed run can be repeated at any point, and every leader keeps it.
The check after the fences proves rest, whatever versions the members have: nothing can be committed
any more, and all internal topics are processed to their ends.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tidewheel.rebalance.leader.log_steps import Claimant
from tidewheel.rebalance.leader.resting import end_rest, hold_at_rest, order_rest
from tidewheel.rebalance.model import Shard, ShardInput, TaskId, TopicPartition, position_key
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.records import AnyRecord
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.group.group_log_writer import GroupLogWriter
from tidewheel.streams.group.inbox import InboxFold
from tidewheel.streams.group.recovery import transactional_ids
from tidewheel.streams.group.rest_plan import (
    RestFacts,
    RestPlan,
    RestStep,
    cut_of,
    inputs_of,
    plan_rest,
    unprocessed,
)
from tidewheel.tasks.kafka.internal_topics import is_internal, is_repartition, offsets_group
from tidewheel.tasks.kafka.ports import Admin, CommittedOffset
from tidewheel.tasks.kafka.shard_inputs import committed_by_shards
from tidewheel.tasks.key_ranges.progress_vector import Progress

_POLL_S: Final = 0.2


class NotAtRestError(StreamsError):
    """The application has not come to rest in time. The order to rest stays.

    Next step:
        Fix the reasons in the message and run `tidewheel group rest` again, or let the application
        continue: `tidewheel group resume`.
    """


class _UnprocessedError(StreamsError):
    """After the fences, records were left that the members have to process first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestCluster:
    """Access to an application's group and offsets."""

    application_id: str
    group_log: GroupLogWriter
    admin: Admin


def gather_rest_facts(cluster: RestCluster, group: Group, *, stable: bool = False) -> RestFacts:
    """Read the facts about a group; `stable` waits for pending offsets."""
    inbox = cluster.group_log.read_inbox()
    live_members = cluster.group_log.live_members()
    committed = _committed(cluster, group, stable=stable)
    internal = [
        at for at in inputs_of(group, committed) if is_internal(at.topic, cluster.application_id)
    ]
    return RestFacts(
        application_id=cluster.application_id,
        group=group,
        live_members=live_members,
        statuses=_statuses(inbox),
        committed=committed,
        ends=cluster.admin.end_offsets(internal),
    )


def gather_facts_without_group(
    application_id: str, admin: Admin, *, stable: bool = True
) -> RestFacts:
    """Read the facts about an application whose workers have, or had, a fixed assignment.

    No log lists its inputs: committed offsets, and topics with names of repartition topics, do.
    `stable` waits for pending offsets.
    """
    committed = admin.committed(application_id, None, stable=stable)
    shards = {
        shard
        for offset in committed.values()
        if (progress := Progress.decode(offset.metadata, committed_offset=offset.offset))
        for shard in Shard.all_of(progress.shards)
    }
    internal = [
        TopicPartition(topic, number)
        for topic, count in sorted(admin.list_topics().items())
        if is_repartition(topic, application_id)
        for number in range(count)
    ]
    ends = admin.end_offsets(internal)
    return RestFacts(
        application_id=application_id,
        group=Group(),
        committed={**committed, **committed_by_shards(admin, application_id, None, shards)},
        ends={at: end for at, end in ends.items() if end or at in committed},
    )


def _committed(
    cluster: RestCluster, group: Group, *, stable: bool
) -> dict[TopicPartition, CommittedOffset]:
    partitions = inputs_of(group, ()) or None
    committed: dict[TopicPartition, CommittedOffset] = {}
    for shard in sorted({Shard(), *(task.shard for task in group.tasks)}):
        group_id = offsets_group(cluster.application_id, shard)
        offsets = cluster.admin.committed(group_id, partitions, stable=stable)
        committed |= {ShardInput.of(at, shard): offset for at, offset in offsets.items()}
    return committed


def _statuses(inbox: InboxFold) -> dict[str, dict[TaskId, TaskStatus]]:
    return {
        incarnation: {
            TaskId.parse(task): status
            for (task, role), (_, status) in rows.items()
            if role == "active"
        }
        for incarnation, rows in inbox.tasks.items()
    }


class RestDriver:
    """One run of `tidewheel group rest`.

    Args:
        run_id: Unique id of the run, for its claims of the leadership.
        pause: Waits for some seconds.
        on_wait: Called with each plan that waits.
    """

    def __init__(
        self,
        cluster: RestCluster,
        run_id: str,
        *,
        pause: Callable[[float], None],
        on_wait: Callable[[RestPlan], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._run_id = run_id
        self._on_wait = on_wait
        self._pause = pause

    def run(self, timeout_s: float) -> dict[TopicPartition, int]:
        """Bring the application to rest; return the committed offset of each external input.

        Raises:
            NotAtRestError: It did not come to rest in time.
            StreamsError: The order to rest was ended meanwhile, or the cluster failed.
        """
        deadline_s = time.monotonic() + timeout_s
        was_ordered = False
        while (plan := plan_rest(self._facts())).step is not RestStep.DONE:
            if was_ordered and plan.step is RestStep.ORDER:
                raise StreamsError(
                    f"application {self._app} takes input again: `tidewheel group resume` has run, or a member of a version without "
                    "rest leads the group; stop such members, and run the command again"
                )
            was_ordered = True
            unfinished = self._carry_out(plan)
            if unfinished.step is RestStep.WAIT:
                self._on_wait(unfinished)
                if time.monotonic() >= deadline_s:
                    raise NotAtRestError(_late(self._app, unfinished.reasons))
                self._pause(_POLL_S)
        return self._checked_cut()

    @property
    def _app(self) -> str:
        return self._cluster.application_id

    def _facts(self) -> RestFacts:
        return gather_rest_facts(self._cluster, self._cluster.group_log.group(decided=True))

    def _carry_out(self, plan: RestPlan) -> RestPlan:
        """Carry out a step; return it, or the wait that it leads to."""
        match plan.step:
            case RestStep.ORDER | RestStep.LEVEL:
                until = {position_key(at): offset for at, offset in sorted(plan.until.items())}
                self._step(lambda group, by: order_rest(group, until, by))
            case RestStep.HOLD:
                try:
                    self._step(self._hold)
                except _UnprocessedError as left:
                    return RestPlan(step=RestStep.WAIT, reasons=(str(left),))
            case _:
                pass
        return plan

    def _hold(self, group: Group, by: Claimant) -> list[AnyRecord]:
        """Fence all producers, check that nothing is left to process, and hold the group."""
        if group.about.rest is None or group.about.held:
            raise _UnprocessedError("the group log has changed meanwhile")
        facts = gather_rest_facts(self._cluster, group)
        self._cluster.admin.fence(transactional_ids(self._app, facts.committed, group))
        left = unprocessed(gather_rest_facts(self._cluster, group, stable=True))
        if left:
            raise _UnprocessedError("; ".join(left))
        return hold_at_rest(group, self._app, by)

    def _step(self, make: Callable[[Group, Claimant], list[AnyRecord]]) -> None:
        self._cluster.group_log.claim_step("rest", self._run_id, make)

    def _checked_cut(self) -> dict[TopicPartition, int]:
        facts = self._facts()
        left = unprocessed(facts)
        if left:
            raise StreamsError(
                f"application {self._app} is held at rest, but its offsets or internal topics were changed since: {'; '.join(left)}; "
                f"run `tidewheel group resume {self._app}`, then this again"
            )
        return cut_of(facts)


def resume(cluster: RestCluster, run_id: str) -> None:
    """Let the members of an application take input again.

    Raises:
        StreamsError: It is not at rest, or held for another reason.
    """
    cluster.group_log.claim_step("resume", run_id, end_rest)


def _late(application_id: str, reasons: Sequence[str]) -> str:
    return (
        f"application {application_id} has not come to rest in time: {'; '.join(reasons)}. Its members still take no external input: "
        f"run the command again, or `tidewheel group resume {application_id}`. A task does not come to rest while its member is "
        "of a version without rest, its program pauses it (KafkaStreams.pause), a call does not return, or it waits "
        "max_task_idle_ms for records of an empty input; `tidewheel status` shows the members"
    )
