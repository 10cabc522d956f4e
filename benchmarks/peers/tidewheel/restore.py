"""Tidewheel's side of the suite `restore`: an application that has lost its disk, and says how long it took to be back.

Arguments are NAME=VALUE pairs, the same for every peer, and `snapshot_location`. When it runs it adds up its store, prints
one line of JSON, and ends. With `spark=yes` Spark makes its directories ready first, on the cores that `master` says.
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
    """Keep the last value of each key."""
    builder = StreamsBuilder()
    stream = builder.stream(input_topic, key_serde=Serdes.bytes(), value_serde=Serdes.bytes())
    stream.group_by_key().reduce(lambda _, value: value, store="table")
    return builder.build()


def settings(parameters: dict[str, str]) -> StreamsConfig:
    """Return the application's settings; each task stays here, as with one instance of the peers."""
    return StreamsConfig(
        application_id=parameters["application_id"],
        bootstrap_servers=parameters["bootstrap_servers"],
        state_dir=parameters["state_dir"],
        task_assignor="fixed",
        snapshot_location=parameters.get("snapshot_location"),
    )


class Restoring:
    """Notes when the first restore began and the last one ended."""

    def __init__(self) -> None:
        self.begin_s = self.end_s = 0.0
        self.records = 0

    def on_restore(self, event: RestoreEvent) -> None:
        """Take an event."""
        if event.kind == "start" and not self.begin_s:
            self.begin_s = time.monotonic()
        if event.kind == "end":
            self.end_s = time.monotonic()
            self.records += event.restored


def by_spark(job: Topology, config: StreamsConfig, master: str | None) -> dict[str, float]:
    """Have Spark make the directories ready; how long that took, its own start apart."""
    from tidewheel.bulk import restore  # noqa: PLC0415 - only where Spark is
    from tidewheel.streams.bulk.driver import bulk_session  # noqa: PLC0415

    begin_s = time.monotonic()
    with bulk_session(None, what="benchmark", master=master) as spark:
        up_s = time.monotonic()
        restore(job, config, spark=spark)
        return {"spark_start_s": up_s - begin_s, "spark_s": time.monotonic() - up_s}


def content(app: KafkaStreams) -> dict[str, int]:
    """Return how many rows the store has, and the sum of their checksums."""
    rows, digest = 0, 0
    for key, found in app.store("table").all():
        rows += 1
        digest += zlib.crc32(key + found.value)
    return {"rows": rows, "digest": digest & DIGEST_MASK}


def main(parameters: dict[str, str]) -> None:
    """Restore, tell, end."""
    job, config = topology(parameters["input_topic"]), settings(parameters)
    told: dict[str, Any] = {}
    if parameters.get("spark") == "yes":
        told |= by_spark(job, config, parameters.get("master"))
    app, restoring = KafkaStreams(job, config), Restoring()
    app.set_restore_listener(restoring)
    begin_s = time.monotonic()
    app.start()
    if not app.wait_until_running(TIMEOUT_S):
        raise SystemExit(f"not restored within {TIMEOUT_S} s: {app.error}")
    told |= {
        "seconds": restoring.end_s - restoring.begin_s,
        "ready_s": time.monotonic() - begin_s,
        "restored": restoring.records,
        **content(app),
    }
    app.close(timeout=30_000)
    print(json.dumps(told))


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
