"""Tidewheel's program of the suite `restore`: restores after a lost disk and prints the time.

Once RUNNING it sums its store and prints one line of JSON. With `spark=yes` Spark first fills its
directories, on the cores of `master`.
"""

import json
import sys
import time
import zlib
from typing import Any

from tidewheel import KafkaStreams, RestoreEvent, Serdes, StreamsBuilder, StreamsConfig, Topology

TIMEOUT_S = 600
DIGEST_MASK = (1 << 64) - 1


def topology(input_topic: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(input_topic, key_serde=Serdes.bytes(), value_serde=Serdes.bytes())
    stream.group_by_key().reduce(lambda _, value: value, store="table")
    return builder.build()


def settings(parameters: dict[str, str]) -> StreamsConfig:
    """Return the settings; no task moves, as with one instance of the peers."""
    return StreamsConfig(
        application_id=parameters["application_id"],
        bootstrap_servers=parameters["bootstrap_servers"],
        state_dir=parameters["state_dir"],
        task_assignor="fixed",
        snapshot_location=parameters.get("snapshot_location"),
    )


class Restoring:
    def __init__(self) -> None:
        self.begin_s = self.end_s = 0.0
        self.records = 0

    def on_restore(self, event: RestoreEvent) -> None:
        if event.kind == "start" and not self.begin_s:
            self.begin_s = time.monotonic()
        if event.kind == "end":
            self.end_s = time.monotonic()
            self.records += event.restored


def by_spark(job: Topology, config: StreamsConfig, master: str | None) -> dict[str, float]:
    """Fill the directories by Spark; return the seconds without Spark's own start."""
    from tidewheel.bulk import restore  # noqa: PLC0415 - only where Spark is
    from tidewheel.streams.bulk.driver import bulk_session  # noqa: PLC0415

    begin_s = time.monotonic()
    with bulk_session(None, what="benchmark", master=master) as spark:
        up_s = time.monotonic()
        restore(job, config, spark=spark)
        return {"spark_start_s": up_s - begin_s, "spark_s": time.monotonic() - up_s}


def content(app: KafkaStreams) -> dict[str, int]:
    rows, digest = 0, 0
    for key, found in app.store("table").all():
        rows += 1
        digest += zlib.crc32(key + found.value)
    return {"rows": rows, "digest": digest & DIGEST_MASK}


def main(parameters: dict[str, str]) -> None:
    job, config = topology(parameters["input_topic"]), settings(parameters)
    result: dict[str, Any] = {}
    if parameters.get("spark") == "yes":
        result |= by_spark(job, config, parameters.get("master"))
    app, restoring = KafkaStreams(job, config), Restoring()
    app.set_restore_listener(restoring)
    begin_s = time.monotonic()
    app.start()
    if not app.wait_until_running(TIMEOUT_S):
        raise SystemExit(f"not restored within {TIMEOUT_S} s: {app.error}")
    result |= {
        "seconds": restoring.end_s - restoring.begin_s,
        "ready_s": time.monotonic() - begin_s,
        "restored": restoring.records,
        **content(app),
    }
    app.close(timeout=30_000)
    print(json.dumps(result))


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
