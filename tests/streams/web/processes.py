"""Views of a process without a worker, for its HTTP server."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tidewheel import KafkaStreams, RunOptions, StreamsBuilder, StreamsConfig
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.streams.worker.figures import _OF_TASK
from tidewheel.tasks.loop.metrics import WorkerMetrics

TOKEN = "0123456789abcdef"  # noqa: S105 - of these tests


def streams(tmp_path: Path, options: RunOptions | None = None, **settings: Any) -> KafkaStreams:
    """Return an application that has not started."""
    builder = StreamsBuilder()
    builder.table("in", key_serde=str, value_serde=str, store="rows")
    settings = {"application_id": "shop", "state_dir": tmp_path, **settings}
    return KafkaStreams(builder.build(), StreamsConfig(**settings), options=options)


def task(**figures: float) -> Any:
    names = [name for name, _, _ in _OF_TASK]
    values = dict.fromkeys(names, 0.0) | {name.replace("_", "-"): n for name, n in figures.items()}
    return SimpleNamespace(
        figures=SimpleNamespace(
            metrics=lambda: values, dropped=0, skipped=0, sink=None, in_hand=lambda: 0
        ),
        counters=SimpleNamespace(drops={}, nodes={}),
        stores=SimpleNamespace(specs={}),
    )


def thread(slot: int | None, tasks: dict[TaskId, Any], lags: dict[TopicPartition, int]) -> Any:
    """Return a worker thread with these tasks."""
    worker = SimpleNamespace(
        metrics=WorkerMetrics(),
        updater=None,
        lags=lambda: lags,
        tasks=tasks,
        copies={},
        call_watch=None,
    )
    return SimpleNamespace(slot=slot, worker=worker, error=None, life=None)


def until(condition: Any, patience_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
