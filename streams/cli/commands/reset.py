"""`tidewheel reset`: resets an application."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import Parameter

from tidewheel.streams.cli.application import application_of
from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.group_access import access_to
from tidewheel.streams.cli.output import print_json
from tidewheel.streams.cli.stopped_plan import exit_code_of_plan, print_steps
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.group.reset import (
    ResetPlan,
    ResetPosition,
    ResetScope,
    execute_reset,
    gather_facts,
    plan_reset,
    scope_of,
)
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.kafka.portable_settings import settings_of

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def reset(
    target: str | None = None,
    /,
    *,
    execute: _Flag = False,
    force: _Flag = False,
    to: str = "earliest",
    json: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Reset an application: its offsets, its internal topics, its local state on this machine.

    Without --execute nothing is changed and the plan is shown. Stop the application first; output
    topics are not changed. Local state on other machines must be reset there.

    With MODULE:TOPOLOGY, partition_shards may be another number than before.

    Args:
        target: The application's id, or its MODULE:TOPOLOGY, which names its topics exactly;
            default: the setting topology.
        execute: Execute the plan.
        force: Reset even while workers with a fixed assignment (run --tasks, --fixed-assignment)
            are alive; they end with FencedError.
        to: Next input position: earliest, latest, or a time (ISO 8601, default zone UTC, or ms
            since the epoch).
        json: Print JSON lines instead of text.
        settings: Settings.
    """
    position = parse_position(to)
    config, scope = _application(target, settings or SettingsOptions())
    as_json = json
    admin = KafkaResetAdmin(settings_of(config)).found()
    try:
        facts = gather_facts(scope, admin, config.state_dir, position)
        plan = plan_reset(scope, replace(facts, live_members=live_members(config)), force=force)
        may = not plan.refusals
        if execute and may:
            execute_reset(plan, admin, config.state_dir)
    finally:
        admin.close()
    _print_lines(plan, done=execute and may) if as_json else _print_plan(plan, done=execute and may)
    return exit_code_of_plan(plan)


def parse_position(text: str) -> ResetPosition:
    """Parse an input position.

    >>> parse_position("latest"), parse_position("2026-01-01")
    ('latest', 1767225600000)
    """
    match text:
        case "earliest" | "latest":
            return text
        case _ if text.isdecimal() and int(text) < 1 << 63:
            return int(text)
        case _:
            return _moment_ms(text)


def _moment_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"--to {text!r}: write earliest, latest, a time such as 2026-01-31T12:00, or ms since the epoch"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _application(target: str | None, settings: SettingsOptions) -> tuple[StreamsConfig, ResetScope]:
    config, program = application_of(target, settings, whole=True)
    if program is None:
        return config, scope_of(config.application_id)
    return config, scope_of(config.application_id, program.topology(config), config)


def live_members(config: StreamsConfig) -> tuple[str, ...]:
    """Return members of the application's group, on any host, that still send messages."""
    with access_to(config) as access:
        access.read_existing_topics()
        return access.inbox.live_members(access.group, access.now_ms())


def _print_plan(plan: ResetPlan, *, done: bool) -> None:
    rows = [
        (
            "offset",
            str(move.partition),
            f"{'none' if move.before is None else move.before} → {move.after}",
        )
        for move in plan.offsets
    ]
    rows += [("topic", topic, "delete") for topic in plan.topics]
    if plan.outputs_group:
        rows.append(("group", plan.outputs_group, "delete"))
    rows += [("sink", sink.target, "delete positions") for sink in plan.sinks]
    print_steps(
        plan,
        f"Reset of {plan.application_id}",
        rows,
        nothing=f"Nothing of {plan.application_id} is there to be reset.",
        notes=plan.notes,
        done=done,
    )


def _print_lines(plan: ResetPlan, *, done: bool) -> None:
    lines: list[dict[str, Any]] = [
        {
            "action": "set offset",
            "topic": move.partition.topic,
            "partition": move.partition.partition,
            **({} if move.partition.shard.is_whole else {"shard": str(move.partition.shard)}),
            "before": move.before,
            "after": move.after,
        }
        for move in plan.offsets
    ]
    lines += [{"action": "delete topic", "topic": topic} for topic in plan.topics]
    if plan.outputs_group:
        lines.append({"action": "delete group", "group": plan.outputs_group})
    lines += [{"action": "delete positions", "sink": sink.target} for sink in plan.sinks]
    lines += [
        {"action": "delete state", "path": str(slot.path), "tasks": slot.tasks}
        for slot in plan.slots
        if slot.tasks
    ]
    lines += [{"note": note} for note in plan.notes]
    for line in lines:
        print_json(line)
    print_json({"application_id": plan.application_id, "executed": done, "refusals": plan.refusals})
