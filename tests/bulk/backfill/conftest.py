"""Fixtures of tests of backfills."""

import pytest

from tests.bulk.backfill.shops import PARTITIONS, Shop
from tests.bulk.conftest import MakeConfig
from tests.integration.cluster import Cluster


@pytest.fixture
def shop(cluster: Cluster, make_config: MakeConfig, unique: str) -> Shop:
    config = make_config(
        snapshot_location=None,
        commit_interval_ms=100,
        statestore_cache_max_bytes=0,
        emit_interval_ms=0,  # as in a batch run: no result waits
    )
    source, sink = f"lines-{unique}", f"counts-{unique}"
    cluster.create({source: PARTITIONS, sink: PARTITIONS})
    return Shop(cluster, config, source, sink)
