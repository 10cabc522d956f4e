"""Imports at start-up: few, because a start competes with running tasks."""

import subprocess
import sys

#: Commands, tests, schema formats, Spark restores and leaders import these.
_HEAVY = (
    "cyclopts", "fastavro", "google.protobuf", "httpx", "jsonschema", "opentelemetry", "prometheus_client", "pyspark", "starlette", "tidewheel.rebalance.assignors.sticky", "rich",
    "tidewheel.state_stores.bulk_restore.location", "tidewheel.streams.broker", "tidewheel.streams.cli.app", "tidewheel.streams.demo", "tidewheel.streams.group.recovery", "tidewheel.streams.kafka.registry.schema_registry",
    "tidewheel.streams.group.reset", "tidewheel.streams.testing",
)  # fmt: skip
#: pytest imports `tidewheel` wherever it is installed.
_NOT_YET_USED = (
    "asyncio",
    "confluent_kafka",
    "dataclasses",
    "inspect",
    "logging",
    "msgspec",
    "orjson",
    "tidewheel.rebalance",
)
#: A watchdog processes no records, and its settings are already checked.
_WORKERS_OWN = (
    "pydantic",
    "rocksdict",
    "tidewheel.streams.dsl.builder",
    "tidewheel.tasks.loop.stream_worker",
)
_FOR_A_LINE = ("argparse", "tomllib")
#: A watchdog has no store.
_NO_STORE = (
    "secrets",
    "tidewheel.state_stores.layout.restore",
    "tidewheel.tasks.restore.run_ports",
    "tempfile",
)

#: A supervisor starts worker processes, which load the user's program.
_NO_PROGRAM = (
    *_WORKERS_OWN,
    "asyncio",
    "confluent_kafka",
    "tidewheel.streams.kafka_streams",
    "tidewheel.streams.kafka",
)


def found_after(*steps: tuple[str, tuple[str, ...]]) -> list[str]:
    lines = ["import sys"]
    for module, unwanted in steps:
        lines += [
            f"import {module}",
            f"print([name for name in {unwanted} if name in sys.modules])",
        ]
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return run.stdout.splitlines()


def test_watchdog_and_worker_import_only_the_modules_they_need() -> None:
    assert found_after(
        ("tidewheel", _HEAVY + _WORKERS_OWN + _NOT_YET_USED),
        (
            "tidewheel.streams.processes.watchdog.__main__",
            _HEAVY + _WORKERS_OWN + _FOR_A_LINE + _NO_STORE,
        ),
        ("tidewheel.streams.cli.worker_main", _HEAVY + _FOR_A_LINE),
    ) == ["[]", "[]", "[]"]


def test_the_supervisor_imports_no_modules_of_its_workers() -> None:
    assert found_after(("tidewheel.streams.cli.commands.run", _NO_PROGRAM)) == ["[]"]
