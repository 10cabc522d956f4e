"""`tidewheel topics`: the topics of a cluster, and those that an application needs."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from cyclopts import Parameter

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.names import check_topic_name
from tidewheel.streams.cli.application import application_of
from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.commands.records.application_topics import (
    AppTopic,
    Existence,
    application_topics,
)
from tidewheel.streams.cli.commands.records.cluster import (
    client_settings,
    cluster_admin,
    partitions_of,
)
from tidewheel.streams.cli.output import print_json, print_table, text_console
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.portable_settings import settings_of
from tidewheel.tasks.kafka.ports import Admin, NewTopic

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]

#: Settings that `describe` shows.
_SETTINGS: Final = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "max.message.bytes",
    "compression.type",
    "message.timestamp.type",
    "min.insync.replicas",
)

#: More partitions in one request would occupy any cluster.
_PARTITIONS_MAX: Final = 100_000
_REPLICAS_MAX: Final = 32_767


def topics(
    target: str | None = None,
    /,
    *,
    internal: _Flag = False,
    json: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """List the topics of a cluster, or show those that an application reads, writes and creates.

    With MODULE:TOPOLOGY each topic has its role, its partitions, and whether it exists, the
    application creates it at its start, or you must create it. Nothing is created.

    Exit codes: 0 done; 5 a source topic is missing; 10 an output topic is missing; 14 joined topics
    differ in partitions.

    Args:
        target: MODULE:TOPOLOGY, such as app.py:topology; default: list the cluster's topics.
        internal: Also list topics that Kafka keeps for itself, whose names begin with __.
        json: Print JSON lines.
        settings: Settings.
    """
    if target is not None:
        return _application(target, settings, as_json=json)
    with cluster_admin(client_settings(settings)) as admin:
        names = admin.list_topics()
    rows = [
        {"topic": name, "partitions": count}
        for name, count in sorted(names.items())
        if internal or not name.startswith("__")
    ]
    _print_rows("Topics", rows, as_json=json)
    return ExitCode.OK


def create(
    names: Sequence[str],
    /,
    *,
    partitions: int | None = None,
    replication_factor: int | None = None,
    topic_config: Annotated[
        Sequence[str], Parameter(name="--topic-config", negative=(), show_default=False)
    ] = (),
    json: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Create topics. One that exists with as many partitions is left as it is.

    Exit codes: 0 all exist now; 1 one exists with other partitions, or the brokers refuse.

    Args:
        names: The topics.
        partitions: Partitions of each; default: the cluster's.
        replication_factor: Copies of each partition; default: the cluster's.
        topic_config: A setting, name=value, such as cleanup.policy=compact. Repeatable.
        json: Print JSON lines.
        settings: Settings.
    """
    config = _parse_config(topic_config)
    for option, number, most in (
        ("partitions", partitions, _PARTITIONS_MAX),
        ("replication-factor", replication_factor, _REPLICAS_MAX),
    ):
        if number is not None and not 1 <= number <= most:
            raise ConfigError(f"--{option}: give a number from 1 to {most:,}")
    for name in names:
        try:
            check_topic_name(name)
        except ValueError as error:
            raise ConfigError(f"topic {name!r}: {error}") from None
    clients = client_settings(settings)
    with cluster_admin(clients) as admin:
        # Without the right to describe a topic nothing is created: its result would be unknown.
        existing = admin.describe_topics(names)
        for name in names:
            if partitions is None or name not in existing:
                continue
            if existing[name].partitions != partitions:
                raise StreamsError(
                    f"topic {name!r} exists with {existing[name].partitions} partitions, not {partitions}; nothing was created. "
                    "Choose another name, or leave it as it is"
                )
        wanted = [
            NewTopic(
                name=name,
                partitions=-1 if partitions is None else partitions,
                replication_factor=-1 if replication_factor is None else replication_factor,
                config=config,
            )
            for name in names
            if name not in existing
        ]
        admin.create_topics(wanted)
        counts = admin.describe_topics(names)
    rows: list[dict[str, Any]] = [
        {
            "topic": name,
            "partitions": counts[name].partitions if name in counts else 0,
            "created": name not in existing,
        }
        for name in names
    ]
    if json:
        _print_rows("", rows, as_json=True)
        return ExitCode.OK
    for row in rows:
        verb = "created" if row["created"] else "exists already"
        text_console().print(
            f"{row['topic']}: {verb}, {_counted(row['partitions'])}", highlight=False
        )
    return ExitCode.OK


def describe(
    names: Sequence[str],
    /,
    *,
    json: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Show topics: settings, and the first and next offset of each partition.

    Exit codes: 0 done; 5 no such topic.

    Args:
        names: The topics.
        json: Print a JSON object per topic.
        settings: Settings.
    """
    clients = client_settings(settings)
    with cluster_admin(clients) as admin:
        described = [_described(admin, clients, name) for name in names]
    for topic in described:
        if json:
            print_json(topic)
            continue
        rows = [tuple(map(str, row.values())) for row in topic["partitions"]]
        print_table(topic["topic"], ["partition", "first offset", "next offset"], rows)
        for name, value in topic["settings"].items():
            text_console().print(f"  {name} = {value}", markup=False, highlight=False)
    return ExitCode.OK


def _described(admin: Admin, clients: ClientSettings, name: str) -> dict[str, Any]:
    partitions: list[TopicPartition] = partitions_of(admin, name, clients.bootstrap_servers)
    starts, ends = admin.beginning_offsets(partitions), admin.end_offsets(partitions)
    found = admin.describe_topics([name], config=_SETTINGS)
    return {
        "topic": name,
        "partitions": [
            {
                "partition": partition.partition,
                "first_offset": starts[partition],
                "next_offset": ends[partition],
            }
            for partition in partitions
        ],
        "settings": dict(found[name].config) if name in found else {},
    }


def _application(target: str, settings: SettingsOptions | None, *, as_json: bool) -> int:
    if ":" not in target and not target.endswith(".py"):
        raise ConfigError(
            f"{target!r} is neither a command (create, describe) nor a program; write MODULE:TOPOLOGY, or "
            f"tidewheel topics describe {target}"
        )
    config, program = application_of(target, settings or SettingsOptions())
    assert program is not None, "a target with a colon is a program"
    topology = program.topology(config)
    with cluster_admin(settings_of(config)) as admin:
        needed = application_topics(topology, config, admin)
    rows = [
        {
            "topic": topic.name,
            "role": topic.role,
            "partitions": topic.partitions,
            "state": topic.existence.value,
        }
        for topic in needed
    ]
    _print_rows(f"Topics of {config.application_id}", rows, as_json=as_json)
    return _exit_code(needed)


def _exit_code(topics: Sequence[AppTopic]) -> ExitCode:
    missing = {topic.role for topic in topics if topic.existence is Existence.MISSING}
    if missing & {"source", "global table"}:
        return ExitCode.MISSING_SOURCE_TOPIC
    return ExitCode.MISSING_OUTPUT_TOPIC if missing else ExitCode.OK


def _print_rows(title: str, rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        text_console().print(
            "there is no topic yet; create one: tidewheel topics create NAME --partitions N"
        )
        return
    cells = [tuple("-" if cell is None else str(cell) for cell in row.values()) for row in rows]
    print_table(title, list(rows[0]), cells)


def _parse_config(settings: Sequence[str]) -> dict[str, str]:
    config: dict[str, str] = {}
    for text in settings:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise ConfigError(
                f"--topic-config {text!r}: write name=value, such as cleanup.policy=compact"
            )
        config[name.strip()] = value
    return config


def _counted(partitions: int) -> str:
    return f"{partitions} partition{'' if partitions == 1 else 's'}"
