"""A stream-stream join over records that lie on a broker before the application starts."""

from typing import Any

import pytest

from tests.integration.cluster import Cluster, until
from tests.integration.conftest import StartApp
from tidewheel import JoinWindows, Serdes, StreamsBuilder

BYTES: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.bytes()}
RECORDS = 1_000
KEYS = 50


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_every_pair_of_buffered_records_is_joined_once(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str, guarantee: str
) -> None:
    """Workers process such records of both sides in joint batches."""
    left, right, out = (f"{name}-{unique}" for name in ("left", "right", "out"))
    cluster.create({left: 2, right: 2, out: 2})
    rows = [(f"k{number % KEYS}".encode(), b"%d" % number) for number in range(RECORDS)]
    cluster.send(left, rows)
    cluster.send(right, rows)
    builder = StreamsBuilder()
    builder.stream(left, **BYTES).join(
        builder.stream(right, **BYTES),
        lambda one, other: b"%b %b" % (one, other),
        within=JoinWindows(3_600_000),
    ).to(out, **BYTES)
    config["processing_guarantee"] = guarantee
    start_app(builder, config)
    each = RECORDS // KEYS
    until(
        lambda: sum(map(len, cluster.values_by_key(out).values())) >= KEYS * each * each,
        "all pairs are joined",
    )
    joined = cluster.values_by_key(out)
    for key in range(KEYS):
        numbers = [b"%d" % number for number in range(key, RECORDS, KEYS)]
        pairs = sorted(b"%b %b" % (one, other) for one in numbers for other in numbers)
        assert sorted(value or b"" for value in joined[b"k%d" % key]) == pairs
