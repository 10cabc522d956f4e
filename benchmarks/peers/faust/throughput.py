"""Faust's programs of the suite throughput, in the style of its documentation.

Settings without an argument keep Faust's defaults. Its worker commits once more at SIGTERM.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Not installed in the type checker's environment.
import faust  # type: ignore[import-not-found]

#: As in the input: a table's changelog must have them too.
PARTITIONS = 4


def stateless_json(app: faust.App, parameters: Mapping[str, str]) -> None:
    events = app.topic(parameters["input_topic"], key_type=str, value_serializer="json")
    sales = app.topic(parameters["output_topic"], key_type=str, value_serializer="json")

    @app.agent(events)
    async def tax(stream: Any) -> None:
        async for event in stream:
            if event["cents"] >= 5_000:
                sale = {
                    "id": event["id"],
                    "user": event["user"],
                    "kind": event["kind"],
                    "cents": event["cents"] * 119 // 100,
                }
                await sales.send(key=sale["user"], value=sale)


def count_by_key(app: faust.App, parameters: Mapping[str, str]) -> None:
    records = app.topic(parameters["input_topic"], key_type=str, value_serializer="raw")
    counted = app.topic(parameters["output_topic"], key_type=str, value_type=int)
    counts = app.Table("counts", default=int, key_type=str, value_type=int)

    @app.agent(records)
    async def count(stream: Any) -> None:
        async for key, _ in stream.items():  # noqa: PERF102 - a stream has no keys()
            counts[key] += 1
            await counted.send(key=key, value=counts[key])


JOBS: Mapping[str, Callable[[faust.App, Mapping[str, str]], None]] = {
    "stateless_json": stateless_json,
    "count_by_key": count_by_key,
    "count_by_key_hot": count_by_key,
    "count_by_key_large": count_by_key,
}


def main(parameters: Mapping[str, str]) -> None:
    app = faust.App(
        parameters["application_id"],
        broker=f"kafka://{parameters['bootstrap_servers']}",
        store="rocksdb://",
        datadir=Path(parameters["state_dir"]),
        processing_guarantee=parameters["guarantee"],
        broker_commit_interval=int(parameters["commit_interval_ms"]) / 1000,
        consumer_auto_offset_reset="earliest",
        topic_partitions=PARTITIONS,
        web_enabled=False,
    )
    JOBS[parameters["job"]](app, parameters)
    # Not WARN: there Faust shows a spinner, for which it formats every DEBUG line.
    faust.Worker(app, loglevel="INFO").execute_from_commandline()


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
