"""What a process imports before it does anything: it starts beside tasks that run, and takes their processor meanwhile."""

import subprocess
import sys

#: Only commands, tests, single serialisation formats, restores with Spark, and leaders need these.
_HEAVY = (
    "cyclopts", "fastavro", "google.protobuf", "httpx", "jsonschema", "pyspark", "rebalance.assignors.sticky", "rich",
    "streams.broker", "streams.cli", "streams.demo", "streams.group.recovery", "streams.kafka.schema_registry",
    "streams.reset", "streams.testing",
)  # fmt: skip
#: A watchdog besides processes nothing, and its settings are checked already.
_WORKERS_OWN = ("pydantic", "rocksdict", "streams.builder", "tasks.stream_worker")


def test_watchdog_and_worker_import_what_they_need_and_no_more() -> None:
    """A module on these lists costs 10 to 150 ms of a core each time."""
    code = (
        "import sys\n"
        "import streams.watchdog.__main__\n"
        f"print([name for name in {_HEAVY + _WORKERS_OWN} if name in sys.modules])\n"
        "import streams.worker\n"
        f"print([name for name in {_HEAVY} if name in sys.modules])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout.splitlines() == ["[]", "[]"]
