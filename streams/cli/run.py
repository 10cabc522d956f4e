"""`tidewheel run`: an application's workers, under a supervisor."""

from typing import Annotated

from cyclopts import Parameter

from streams.cli.settings import SettingsOptions
from streams.console_log import LogFormat, LogLevel, configure_logging
from streams.errors import ConfigError
from streams.program import parse_tasks
from streams.supervisor.messages import StartWorker
from streams.supervisor.restart_policy import RestartSettings
from streams.supervisor.supervisor import Supervisor

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def run(
    target: str,
    /,
    *,
    workers: int = 1,
    tasks: str | None = None,
    wait_for_topics: _Flag = False,
    create_topics: _Flag = False,
    restart: bool = True,
    log_level: LogLevel = "info",
    log_format: LogFormat | None = None,
    settings: SettingsOptions | None = None,
) -> int:
    """Run an application until Ctrl-C or SIGTERM.

    Workers that crash are started again after 1 s, 2 s, ... 60 s; five crashes on one offset end the command and name
    it. Ctrl-C commits and stops; once more stops at once.

    Args:
        target: MODULE:TOPOLOGY, such as app.py:topology or shop.orders:topology. The module may have `config`, its own
            settings.
        workers: Worker processes on this machine; each runs its share of the tasks.
        tasks: Run exactly these tasks, such as 0_1,0_2; needs group_instance_id.
        wait_for_topics: Wait for missing source topics.
        create_topics: Create missing source topics.
        restart: Start crashed workers again. Without it the first crash ends the command with the code of its cause.
        log_level: The least level that is logged.
        log_format: text or json; by default text on a terminal, JSON lines elsewhere.
        settings: Settings.
    """
    configure_logging(log_level, log_format)
    chosen = None if tasks is None else parse_tasks(tasks)
    if workers < 1 or (chosen is not None and len(chosen) < workers):
        least = (
            "there are fewer tasks in --tasks" if chosen is not None else "at least one has to run"
        )
        raise ConfigError(f"--workers {workers}: {least}; correct the number")
    settings = settings or SettingsOptions()
    starts = [
        StartWorker(
            target=target,
            overrides=settings.overrides(),
            config_file=settings.config_file(),
            slot=slot,
            workers=workers,
            tasks=None if chosen is None else tuple(map(str, chosen[slot::workers])),
            wait_for_topics=wait_for_topics,
            create_topics=create_topics,
            log_level=log_level,
            log_format=log_format,
        )
        for slot in range(workers)
    ]
    return Supervisor(starts, restart=RestartSettings(enabled=restart)).run()
