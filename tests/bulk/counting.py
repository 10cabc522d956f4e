"""Application for tests of bulk functions: counts by key, and by key and second."""

from collections.abc import Mapping
from typing import Final

from tidewheel import Materialized, Serdes, StreamsBuilder, StreamsConfig, TimeWindows, Topology

COUNTS: Final = "counts"
PER_SECOND: Final = "per-second"

#: Keeps windows of 1970.
_RETENTION_MS: Final = 86_400_000


def counting(source: str) -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream(
        source, key_serde=Serdes.string(), value_serde=Serdes.bytes()
    ).group_by_key()
    grouped.count(store=COUNTS)
    grouped.windowed_by(TimeWindows(1_000, grace=_RETENTION_MS // 2)).count(
        store=Materialized(PER_SECOND, retention=_RETENTION_MS)
    )
    return builder.build()


def program(source: str, config: StreamsConfig, **options: object) -> str:
    given: Mapping[str, object] = {
        "application_id": config.application_id,
        "bootstrap_servers": config.bootstrap_servers,
        "state_dir": str(config.state_dir),
        "snapshot_location": str(config.snapshot_location),
        **options,
    }
    return (
        f"from tests.bulk.counting import counting\n\nconfig = {given!r}\n\n\n"
        f"def topology():\n    return counting({source!r})\n"
    )
