"""Run the topology of `flight_delays.py` over a year of flights with Spark, without Kafka.

    python examples/flights_in_batch.py

`tidewheel run examples/flights_in_batch.py:topology` runs the same topology on Kafka. Spark needs
`pip install 'tidewheel[spark]'` and Java 17 or newer ('tidewheel[java]' brings one).
"""

import json
import tempfile
from pathlib import Path

from flight_delays import topology

from tidewheel.bulk import FrameSource, run_batch
from tidewheel.streams.demo.dataset import ensure_archive
from tidewheel.streams.demo.tables import read_rows, table, to_batches

config = {"application_id": "flights-in-batch"}


def source(archive: Path, name: str, folder: str) -> FrameSource:
    """Write a table of the archive as JSON, a record a line; Spark reads any other format, too."""
    path = Path(folder, f"{name}.json")
    with path.open("w", encoding="utf-8") as file:
        for batch in to_batches(table(name), read_rows(archive, name)):
            for key, value, time in zip(batch.keys, batch.values, batch.timestamps, strict=True):
                fields = json.loads(value or b"{}")
                record = {"key": key and key.decode(), "timestamp": time, **fields}
                file.write(f"{json.dumps(record)}\n")
    return FrameSource(source=str(path))


def main(archive: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        frames = {name: source(archive, name, folder) for name in ("flights", "weather")}
        with run_batch(topology().build(), frames) as result:
            for row in result.stores["delays"].orderBy("key").collect():
                delays = json.loads(row.value)
                print(f"{row.key}: {delays['flights']} flights, {delays['minutes']} minutes")


if __name__ == "__main__":
    main(ensure_archive())
