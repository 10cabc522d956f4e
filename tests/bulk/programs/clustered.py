"""A user's program on a Spark cluster, copied out of this repository before it runs.

    python clustered.py '{"frame": "/in", "marks": "/marks", "work": "/work", "results": "/out", "master": "spark://…"}'

It runs `topology` over a Parquet frame, and writes outputs and stores as Parquet.
"""

import json
import sys
from functools import partial
from pathlib import Path

import tidewheel
from tidewheel import StreamsBuilder, TimeWindows, Topology
from tidewheel.bulk import FrameSource, run_batch

SOURCE, SINK = "lines", "counts"


def topology(source: str, sink: str, marks: str) -> Topology:
    """Counts words behind a repartition; each executor leaves a file in the folder `marks`."""
    builder = StreamsBuilder()
    lines = builder.stream(source, key_serde=str, value_serde=str)
    words = lines.flat_map_values(partial(split, marks)).select_key(lambda _, word: word)
    grouped = words.group_by_key(key_serde=str, value_serde=str)
    grouped.count(store="words").to_stream().to(sink, key_serde=str, value_serde=int)
    grouped.windowed_by(TimeWindows(1_000, grace=60_000)).count(store="windows")
    return builder.build()


def split(marks: str, text: str) -> list[str]:
    """Split a line, and name this executor by its folder, which is of its worker and application."""
    name = "+".join(Path.cwd().parts[-3:])
    Path(marks, name).write_text(str(Path(tidewheel.__file__).parent), encoding="utf-8")
    return text.split()


def main() -> None:
    order: dict[str, str] = json.loads(sys.argv[1])
    frames = {SOURCE: FrameSource(source=order["frame"], file_format="parquet")}
    made = topology(SOURCE, SINK, order["marks"])
    with run_batch(
        made, frames, partitions=3, work=order["work"], master=order["master"]
    ) as result:
        result.outputs[SINK].write.parquet(f"{order['results']}/{SINK}")
        for name, store in result.stores.items():
            store.write.parquet(f"{order['results']}/{name}")


if __name__ == "__main__":
    main()
