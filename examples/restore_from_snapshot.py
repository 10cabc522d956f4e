"""Counts visits of pages, and has the counts back in seconds where the disk is empty.

    tidewheel broker --port 9092 --topics visits:4
    tidewheel run examples/restore_from_snapshot.py:topology
    tidewheel snapshot examples/restore_from_snapshot.py:topology

Now and then, say from cron, `snapshot` adds what is new to `snapshot_location`. A worker that finds no state of its own takes the
newest snapshot and reads only what came after it. To have the state on a new machine before its workers start:

    tidewheel restore examples/restore_from_snapshot.py:topology
    tidewheel run examples/restore_from_snapshot.py:topology

`snapshot` and `restore` need Spark: pip install 'tidewheel[spark]'.
"""

from tidewheel import StreamsBuilder

config = {
    "application_id": "restore-from-snapshot",
    "snapshot_location": "snapshots",  # of several machines: a place that all of them reach, such as s3://bucket/snapshots
}


def topology() -> StreamsBuilder:
    builder = StreamsBuilder()
    visits = builder.stream("visits", key_serde=str, value_serde=str)  # page -> who
    visits.group_by_key().count(store="visits-per-page")
    return builder
