"""Count page visits, and restore the counts from a snapshot within seconds.

    tidewheel broker --port 9092 --topics visits:4
    tidewheel run examples/restore_from_snapshot.py:topology
    tidewheel snapshot examples/restore_from_snapshot.py:topology

Run `snapshot` regularly, for example from cron: it adds new data to `snapshot_location`. A worker
without local state loads the newest snapshot and reads only later records. To prepare state on a
new machine before its workers start:

    tidewheel restore examples/restore_from_snapshot.py:topology
    tidewheel run examples/restore_from_snapshot.py:topology

`snapshot` and `restore` need Spark: pip install 'tidewheel[spark]'.
"""

from tidewheel import StreamsBuilder

config = {
    "application_id": "restore-from-snapshot",
    # for several machines: a shared location such as s3://bucket/snapshots
    "snapshot_location": "snapshots",
}


def topology() -> StreamsBuilder:
    builder = StreamsBuilder()
    visits = builder.stream("visits", key_serde=str, value_serde=str)  # page -> visitor
    visits.group_by_key().count(store="visits-per-page")
    return builder
