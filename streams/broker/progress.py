"""A progress bar for the one long wait of the development broker: fetching Kafka's jars."""

import contextlib
import sys
from collections.abc import Callable, Generator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


@contextlib.contextmanager
def fetch_progress(
    label: str, total_bytes: int | None, *, show: bool | None = None
) -> Generator[Callable[[int], None]]:
    """A bar on standard error while the block runs; yields how to say how many bytes are there.

    Args:
        label: What is fetched.
        total_bytes: How much it is; None if nobody knows, then the bar only moves.
        show: Draw it; by default if standard error is a terminal.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda _done_bytes: None
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as progress:
        task = progress.add_task(label, total=total_bytes)
        yield lambda done_bytes: progress.update(task, completed=done_bytes)
        if total_bytes is not None:
            progress.update(task, completed=total_bytes)
