"""`tidewheel run`: the workers of an application, under a supervisor."""

import secrets
from typing import Annotated, Any

from cyclopts import Parameter

from tidewheel.streams.cli.arguments import (
    LogLevels,
    SettingsOptions,
    check_http_port,
    check_workers,
    parse_http,
    parse_tasks,
)
from tidewheel.streams.console_log import LogFormat, configure_logging, parse_log_levels
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.processes.supervisor.restart_policy import RestartSettings
from tidewheel.streams.processes.supervisor.supervisor import Supervisor
from tidewheel.streams.processes.supervisor.worker_messages import StartWorker
from tidewheel.streams.processes.watchdog.watchdog_process import WatchdogProcess

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def run(
    target: str | None = None,
    /,
    *,
    workers: int = 1,
    fixed_assignment: _Flag = False,
    tasks: str | None = None,
    wait_for_topics: _Flag = False,
    create_topics: _Flag = False,
    accept_offsets: _Flag = False,
    restart: bool = True,
    http: str | None = None,
    log_level: LogLevels = ("info",),
    log_format: LogFormat | None = None,
    settings: SettingsOptions | None = None,
) -> int:
    """Run an application until Ctrl-C or SIGTERM.

    Crashed workers are restarted after 1 s, 2 s, ... 60 s; five crashes on one offset end the
    command with an error that names it. Ctrl-C moves the tasks to other members, commits and stops;
    a second Ctrl-C kills the workers.

    Args:
        target: MODULE:TOPOLOGY, such as app.py:topology or shop.orders:topology; default: the
            setting topology. The module may have settings in `config`.
        workers: Worker processes on this machine; each is a member of the application's group,
            which shares the tasks. A second command adds its workers, in the next free slots.
        fixed_assignment: No group: worker n of N runs every task whose index modulo N is n. Only if
            no other host runs the application.
        tasks: No group: run exactly these tasks, such as 0_1,0_2 (0_1/0of2: the first of two shards of
            a partition); needs group_instance_id.
        wait_for_topics: Wait for missing source topics.
        create_topics: Create missing source and output topics, with the cluster's default number
            of partitions.
        accept_offsets: Start even if another tool has changed the committed offsets, or they are
            gone.
        restart: Restart crashed workers, and wait for brokers without a limit. Otherwise the first crash ends the command with the exit
            code of its cause.
        http: [HOST:]PORT for metrics, health, state and queries (`http_host`, `http_port`); the
            worker of slot n adds n to the port. Needs the extra `web`; a host that others reach needs `http_token`.
        log_level: Lowest level to log, of Tidewheel and of the program: debug, info, warning or
            error. Other loggers stay at warning; NAME=LEVEL sets the level of one. Repeatable.
        log_format: text or json; default: text on a terminal, JSON lines elsewhere.
        settings: Settings.
    """
    level, levels = parse_log_levels(log_level)
    configure_logging(level, log_format, levels=levels)
    chosen = None if tasks is None else parse_tasks(tasks)
    check_workers(workers)
    if chosen is not None and len(chosen) < workers:
        raise ConfigError(
            f"--workers {workers}: there are fewer tasks in --tasks; correct the number"
        )
    settings = settings or SettingsOptions()
    program = target or _configured_target(settings)
    accepted: dict[str, Any] = {"accept_offsets": True} if accept_offsets else {}
    served = {} if http is None else parse_http(http)
    check_http_port(settings.overrides() | served, workers)
    is_grouped = not fixed_assignment and chosen is None
    process_id = secrets.token_hex(8)
    starts = [
        StartWorker(
            target=program,
            overrides=settings.overrides() | accepted | served,
            config_file=settings.config_file(),
            slot=slot,
            workers=workers,
            fixed=fixed_assignment,
            process_id=process_id,
            tasks=None if chosen is None else tuple(map(str, chosen[slot::workers])),
            wait_for_topics=wait_for_topics,
            create_topics=create_topics,
            next_free=is_grouped,
            log_level=level,
            log_levels=levels,
            wait_for_brokers=restart,
            log_format=log_format,
        )
        for slot in range(workers)
    ]
    return Supervisor(
        starts,
        restart=RestartSettings(enabled=restart),
        start_watchdog=WatchdogProcess if is_grouped else None,
    ).run()


def _configured_target(settings: SettingsOptions) -> str:
    from tidewheel.streams.processes.user_program import (  # noqa: PLC0415 - with pydantic, which else only workers import
        target_of,
    )

    return target_of(None, settings.overrides(), settings.config_file())
