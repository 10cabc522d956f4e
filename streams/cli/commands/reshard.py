"""`tidewheel reshard`: changes the number of shards of an application."""

from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from tidewheel.streams.cli.application import application_of
from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.commands.reset import live_members
from tidewheel.streams.cli.output import print_json
from tidewheel.streams.cli.stopped_plan import exit_code_of_plan, print_steps
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.group.reset import gather_facts, scope_of
from tidewheel.streams.group.reshard import ReshardPlan, execute_reshard, plan_reshard
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.kafka.portable_settings import settings_of
from tidewheel.streams.worker.application.configured_plan import configured_plan
from tidewheel.streams.worker.application.wiring import make_clients

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
#: The transaction has no records, only offsets.
_TRANSACTION_TIMEOUT_MS = 60_000


def reshard(
    target: str | None = None,
    /,
    *,
    shards: int | None = None,
    execute: _Flag = False,
    json: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Change the number of shards (partition_shards) of an application that does not run.

    Each new shard begins where the old shards of its keys were. Without --execute nothing is
    changed and the plan is shown. Killed at any point, the command can run again.

    Args:
        target: The application's MODULE:TOPOLOGY; default: the setting topology.
        shards: New number of shards, a power of two from 1 to 64; default: the setting
            partition_shards.
        execute: Execute the plan.
        json: Print one JSON document instead of text.
        settings: Settings.
    """
    config, program = application_of(target, settings or SettingsOptions(), whole=True)
    if program is None:
        raise ConfigError(
            "which topology? Give its MODULE:TOPOLOGY: it tells which partitions can have shards"
        )
    if shards is not None:
        config = config.replace(partition_shards=shards)
    topology = program.topology(config)
    admin = KafkaResetAdmin(settings_of(config)).found()
    try:
        scope = scope_of(config.application_id, topology, config)
        facts = gather_facts(scope, admin, config.state_dir, "latest")
        plan = plan_reshard(
            config.application_id,
            configured_plan(topology.spec(config), config, facts.topics),
            replace(facts, live_members=live_members(config)),
        )
        may = not plan.refusals
        if execute and may:
            clients = make_clients(config)
            execute_reshard(
                plan,
                admin,
                config.state_dir,
                lambda name: clients.transactional_producer(name, _TRANSACTION_TIMEOUT_MS),
            )
    finally:
        admin.close()
    show = _print_line if json else _print_plan
    show(plan, config, done=execute and may)
    return exit_code_of_plan(plan)


def _print_plan(plan: ReshardPlan, config: StreamsConfig, *, done: bool) -> None:
    rows = [
        ("shards", str(change.partition), f"{change.before} → {change.after}, from {change.offset}")
        for change in plan.changes
    ]
    rows += [("topic", topic, "delete") for topic in plan.topics]
    rows += [("group", group, "delete") for group in plan.groups]
    print_steps(
        plan,
        f"Shards of {plan.application_id}",
        rows,
        nothing=f"{plan.application_id}: nothing to change for partition_shards={config.partition_shards}.",
        next_step=f"Start all workers with partition_shards={config.partition_shards}.",
        done=done,
    )


def _print_line(plan: ReshardPlan, config: StreamsConfig, *, done: bool) -> None:
    print_json(
        {
            "application_id": plan.application_id,
            "partition_shards": config.partition_shards,
            "partitions": [
                {
                    "topic": change.partition.topic,
                    "partition": change.partition.partition,
                    "before": change.before,
                    "after": change.after,
                    "offset": change.offset,
                }
                for change in plan.changes
            ],
            "topics": plan.topics,
            "groups": plan.groups,
            "state": [
                {"path": str(slot.path), "tasks": slot.tasks} for slot in plan.slots if slot.tasks
            ],
            "executed": done,
            "refusals": plan.refusals,
        }
    )
