"""`tidewheel group`: a group's history, and its recovery."""

from collections.abc import Container, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, cast

from cyclopts import Parameter

from tidewheel.rebalance.inspect.history import Episode, account, episode_text
from tidewheel.rebalance.protocol.field_types import ShardCount
from tidewheel.rebalance.protocol.group import Group
from tidewheel.streams.cli.application import application_of
from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.group_access import GroupAccess, access_to, group_access, moment_text
from tidewheel.streams.cli.output import print_error, print_json, print_table, text_console
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.group.recovery import (
    GroupProgram,
    RecoveryFacts,
    RecoveryPlan,
    execute_recovery,
    plan_recovery,
)
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
