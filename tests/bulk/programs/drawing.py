"""Process that runs `batch_topologies.drawn` by an order on stdin, and writes its results as JSON.

{"master": "local-cluster[2,1,1024]", "folder": "/path", "records": 1000}
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.bulk.batch_topologies import drawn
from tidewheel.bulk import run_batch
from tidewheel.state_stores.bulk_restore.spark.job import spark_session
from tidewheel.streams.broker.java import find_java


def main() -> None:
    order: dict[str, Any] = json.load(sys.stdin)
    folder = Path(order["folder"])
    with spark_session(name="drawing", master=order["master"], java_home=find_java().home) as spark:
        rows = [(str(number % 7), number, number) for number in range(order["records"])]
        frame = spark.createDataFrame(rows, "key string, value bigint, timestamp bigint")
        topology = drawn(folder)
        with run_batch(topology, {"numbers": frame}, partitions=2, spark=spark) as result:
            found = {
                "counts": [[row.key, row.value] for row in result.stores["counts"].collect()],
                **{
                    topic: [[row.key, row.value] for row in result.outputs[topic].collect()]
                    for topic in ("drawn", "counted")
                },
            }
    (folder / "results.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
