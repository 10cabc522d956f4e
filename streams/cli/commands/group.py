"""`tidewheel group`: a group's history, its recovery, and its rest."""

import secrets
import time
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from typing import Annotated, Any, cast

from cyclopts import Parameter

from tidewheel.rebalance.inspect.history import Episode, account, episode_text
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.field_types import ShardCount
from tidewheel.rebalance.protocol.group import Group
from tidewheel.streams.cli.application import application_of
from tidewheel.streams.cli.arguments import SettingsOptions, parse_timeout_ms
from tidewheel.streams.cli.group_access import GroupAccess, access_to, group_access, moment_text
from tidewheel.streams.cli.output import print_error, print_json, print_table, text_console
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.group.inbox import with_hosts
from tidewheel.streams.group.recovery import (
    GroupProgram,
    RecoveryFacts,
    RecoveryPlan,
    execute_recovery,
    plan_recovery,
)
from tidewheel.streams.group.rest import NotAtRestError, RestCluster, RestDriver
from tidewheel.streams.group.rest import resume as resume_application
from tidewheel.streams.group.rest_plan import RestPlan
from tidewheel.streams.kafka.admin.group_log import state_topic
from tidewheel.streams.worker.application.configured_plan import configured_plan
from tidewheel.streams.worker.group_membership import partition_counts, task_shapes
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan
from tidewheel.tasks.kafka.shard_inputs import committed_inputs

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def history(
    target: str | None = None,
    /,
    *,
    last: int = 10,
    json: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Show a group's history: members that came and left, assignments with reasons, moved tasks.

    An episode lasts from a disturbance until every task is at its target. The only source is the
    group's log. It is compacted: the last hour is complete, older times become incomplete.

    Args:
        target: The application's MODULE:TOPOLOGY or id; or give --application-id.
        last: Number of episodes, the newest last; 0 for all in the log.
        json: Print each episode as a line of JSON.
        settings: Settings.
    """
    if last < 0:
        raise ConfigError(f"--last {last}: give the number of episodes to show, or 0 for all")
    with group_access(target, settings) as access:
        access.check_exists()
        episodes = account(access.read())
    shown = episodes[-last:] if last else episodes
    if json:
        for episode in shown:
            print_json(_as_dict(episode))
    else:
        _print_episodes(shown, left_out=len(episodes) - len(shown))
    return ExitCode.OK


def recover(
    target: str | None = None,
    /,
    *,
    execute: _Flag = False,
    json: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Restore a group after one of its two topics was deleted.

    Members pause then, because the owners of tasks are unknown. This command fences every producer
    named in the committed offsets' metadata and in the remaining topics. It starts a new group log
    with epochs above all found there. No record is lost or processed twice. Paused members resume
    by themselves afterwards. Without --execute nothing is changed.

    A group that has not started yet looks like one that lost its topics before its first commit, so
    it gets a group log too. Its first member must have this program and this task_assignor; others
    are rejected until then.

    Exit codes: 0 done, or nothing to do; 9 refused, because live members send messages.

    Args:
        target: The application's MODULE:TOPOLOGY, the source of its tasks (default: the setting
            topology); the group waits for members of this program.
        execute: Execute the plan.
        json: Print one JSON object instead of text.
        settings: Settings.
    """
    config, program = application_of(target, settings or SettingsOptions(), whole=True)
    if program is None:
        raise ConfigError(
            f"{target or config.application_id!r} names no program; recovery needs MODULE:TOPOLOGY, such as app.py:topology, to know the tasks"
        )
    topology = program.topology(config)
    with access_to(config) as access:
        topics = access.connection.admin.list_topics()
        ran = configured_plan(topology.spec(config), config, topics)
        runs = GroupProgram(
            topology_hash=topology.hash(),
            assignor=config.task_assignor,
            shards=cast("ShardCount", config.partition_shards),
        )
        facts = _facts(access, ran, runs, topics)
        plan = plan_recovery(facts)
        done = execute and bool(plan.needed) and not plan.refusals
        if done:
            epoch = execute_recovery(
                plan,
                facts,
                access.connection.admin,
                access.connection.leader(),
                read_group=lambda: _read_again(access),
                replication_factor=config.replication_factor,
            )
            plan = replace(plan, epoch=epoch)
    if json:
        print_json({**_plan_dict(plan), "executed": done})
    else:
        _print_plan(plan, done=done)
    for refusal in plan.refusals:
        print_error(refusal)
    return ExitCode.REFUSED if plan.refusals else ExitCode.OK


def rest(
    target: str | None = None,
    /,
    *,
    timeout: str = "5m",
    json: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Bring a running application to rest: all input that it has taken is processed, and it takes no more.

    Its members stop taking external input, process what is in repartition topics, flush caches and
    commit. Then their producers are fenced, and the group is held: no member processes anything
    until `tidewheel group resume`. The command prints the committed offset of each external input.
    All outputs of records below it are committed; no record from it on has had an effect. Members
    may be stopped then, or stay.

    Killed at any point, or after --timeout, run it again, or resume.

    Exit codes: 0 at rest; 8 not at rest in time; 1 refused.

    Args:
        target: The application's MODULE:TOPOLOGY or id; or give --application-id.
        timeout: Limit for coming to rest, such as 30s or 5m.
        json: Print one JSON object instead of text.
        settings: Settings.
    """
    timeout_ms = parse_timeout_ms(timeout, 1, ": give how long to wait, such as 30s")
    with _rest_cluster(target, settings) as cluster:
        try:
            with _waiting(silent=json) as show:
                driver = RestDriver(cluster, secrets.token_hex(8), pause=time.sleep, on_wait=show)
                cut = driver.run(timeout_ms / 1000)
        except NotAtRestError as late:
            print_error(str(late))
            return ExitCode.NOT_STOPPED_IN_TIME
        application_id = cluster.application_id
    if json:
        rows = [
            {"topic": at.topic, "partition": at.partition, "offset": offset}
            for at, offset in cut.items()
        ]
        print_json({"application_id": application_id, "at_rest": True, "cut": rows})
    else:
        _print_cut(application_id, cut)
    return ExitCode.OK


def resume(
    target: str | None = None,
    /,
    *,
    json: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Let an application continue after `tidewheel group rest`, or while that still waits.

    Its members take external input again, from the committed offsets on.

    Exit codes: 0 it continues; 1 it is not at rest, or held for another reason.

    Args:
        target: The application's MODULE:TOPOLOGY or id; or give --application-id.
        json: Print one JSON object instead of text.
        settings: Settings.
    """
    with _rest_cluster(target, settings) as cluster:
        resume_application(cluster, secrets.token_hex(8))
        application_id = cluster.application_id
    if json:
        print_json({"application_id": application_id, "at_rest": False})
    else:
        text_console().print(f"{application_id} continues.", markup=False)
    return ExitCode.OK


@contextmanager
def _rest_cluster(target: str | None, settings: SettingsOptions | None) -> Generator[RestCluster]:
    with group_access(target, settings, live=True) as access:
        fixed = access.connection.admin.fixed_workers(access.application_id)
        if fixed:
            raise StreamsError(
                f"the workers of {access.application_id} have fixed assignment (--tasks, --fixed-assignment) and take no orders: "
                f"{with_hosts(fixed)}; stop them: without a group, a stopped application is at rest if nothing is left in its repartition topics"
            )
        access.check_exists()
        with closing(access.connection.group_log()) as group_log:
            yield RestCluster(
                application_id=access.application_id,
                group_log=group_log,
                admin=access.connection.admin,
            )


@contextmanager
def _waiting(*, silent: bool) -> Generator[Callable[[RestPlan], None]]:
    """Yield a function that shows the first reasons of a wait on standard error."""
    if silent:
        yield lambda _: None
        return
    with text_console(stderr=True).status("coming to rest") as status:
        yield lambda plan: status.update(_waiting_text(plan).replace("[", r"\["))


def _waiting_text(plan: RestPlan) -> str:
    first, *others = plan.reasons
    return f"coming to rest: {first}{f'; {len(others)} more' if others else ''}"


def _print_cut(application_id: str, cut: Mapping[TopicPartition, int]) -> None:
    rows = [(at.topic, str(at.partition), f"{offset:,}") for at, offset in sorted(cut.items())]
    print_table(f"{application_id} is at rest", ["topic", "partition", "committed offset"], rows)
    text_console().print(
        f"`tidewheel group resume {application_id}` lets its members continue. They may be stopped.",
        markup=False,
    )


def _facts(
    access: GroupAccess, ran: ApplicationPlan, program: GroupProgram, topics: Container[str]
) -> RecoveryFacts:
    ids = access.read_existing_topics(whole=True)
    inputs = {at: task for task in ran.tasks for at in ran.inputs(task)}
    committed = committed_inputs(
        access.connection.admin, access.application_id, sorted(inputs), stable=False
    )
    return RecoveryFacts(
        application_id=access.application_id,
        tasks=task_shapes(ran, access.application_id),
        inputs=inputs,
        committed=committed,
        group=access.group,
        topic_ids=ids,
        live_members=access.inbox.live_members(access.group, access.now_ms()),
        named=frozenset(access.inbox.transactional_ids),
        partitions=partition_counts(ran),
        ends=access.connection.admin.end_offsets(
            sorted({at.whole for at in inputs if at.topic in topics})
        ),
        program=program,
    )


def _read_again(access: GroupAccess) -> Group:
    access.read_log()
    return access.group


def _as_dict(episode: Episode) -> dict[str, Any]:
    moves = [{**asdict(move), "pause_ms": move.pause_ms} for move in episode.moves]
    return {**asdict(episode), "moves": moves}


def _print_episodes(episodes: Sequence[Episode], *, left_out: int) -> None:
    console = text_console()
    if not episodes:
        console.print("The log has no events yet.")
    if left_out:
        console.print(
            f"{_counted(left_out, 'earlier episode')} left out; --last 0 shows all.", style="dim"
        )
    for episode in episodes:
        console.print(
            episode_text(episode, moment_text), markup=False, highlight=False, soft_wrap=True
        )


def _plan_dict(plan: RecoveryPlan) -> dict[str, Any]:
    return {
        "application_id": plan.application_id,
        "needed": list(plan.needed),
        "create_topics": list(plan.create),
        "fence": list(plan.transactional_ids),
        "epoch": plan.epoch,
        "tasks": list(map(str, plan.tasks)),
        "refusals": list(plan.refusals),
    }


def _print_plan(plan: RecoveryPlan, *, done: bool) -> None:
    console = text_console()
    if not plan.needed:
        console.print(
            f"Nothing to recover: the group of {plan.application_id} has its log.", markup=False
        )
        return
    for reason in plan.needed:
        console.print(f"• {reason}", markup=False, highlight=False, soft_wrap=True)
    rows = [("topic", name, "create") for name in plan.create]
    rows += [("producer", name, "fence") for name in plan.transactional_ids]
    rows.append(
        (
            "log",
            state_topic(plan.application_id),
            f"claim epoch {plan.epoch}; {_counted(len(plan.tasks), 'task')} without an owner",
        )
    )
    verb = "done" if done else "would do"
    print_table(f"Recovery of {plan.application_id}: {verb}", ["what", "where", "change"], rows)
    if done:
        console.print("Paused members resume by themselves; start those that were stopped.")
    elif not plan.refusals:
        console.print("Nothing was touched. Add --execute to do it.")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
