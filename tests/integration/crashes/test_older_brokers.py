"""Earlier broker versions: exactly-once counts through a worker kill and a broker restart.

`TIDEWHEEL_TEST_OLDER_BROKERS=1` runs it. Each version's jars (45 MB) are downloaded once.
"""

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.integration.cluster import Cluster, until
from tests.integration.conftest import StartWorker
from tests.integration.processes import WorkerProcess
from tidewheel.streams.broker import KafkaBroker

#: The oldest supported version, and one release of each later line before the default.
VERSIONS: Final = ("4.0.0", "4.1.1", "4.2.0", "4.3.1")

#: Brokers 4.0 need 30 s for a restart, and the machine may be busy.
_PATIENCE_S: Final = 240
_WORDS: Final = [(b"key-%d" % (index % 7), b"word-%d" % (index % 11)) for index in range(1_500)]

pytestmark = [pytest.mark.nightly("TIDEWHEEL_TEST_OLDER_BROKERS"), pytest.mark.timeout(1_200)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_group_counts_exactly_once_on_an_older_broker(
    version: str, start_worker: StartWorker, tmp_path: Path
) -> None:
    with KafkaBroker(
        version=version, data_dir=tmp_path / "broker", start_timeout_ms=300_000
    ) as broker:
        cluster = Cluster(broker.bootstrap_servers)
        cluster.create({"in": 2, "out": 2})
        config = {
            "application_id": "older",
            "bootstrap_servers": broker.bootstrap_servers,
            "commit_interval_ms": 50,
            "statestore_cache_max_bytes": 0,
        }

        def join_group(name: str) -> WorkerProcess:
            worker = start_worker(name)
            own = {"state_dir": str(tmp_path / name), "group_instance_id": name}
            worker.go("word_count", "in", "out", config | own, fixed=False)
            return worker

        join_group("first")
        killed = join_group("second")
        cluster.send("in", _WORDS[:500])
        until(lambda: cluster.folded("out"), "some words are counted", _PATIENCE_S)
        killed.kill()
        cluster.send("in", _WORDS[500:1_000])
        until(
            lambda: _total(cluster) == 1_000, "the other worker has counted the rest", _PATIENCE_S
        )
        broker.kill()
        broker.start()
        join_group("third")  # the first one may have ended during the outage
        cluster.send("in", _WORDS[1_000:])

        expected = Counter(word for _, word in _WORDS)
        until(
            lambda: _counts(cluster) == expected, "every word is counted exactly once", _PATIENCE_S
        )
        cluster.close()


def _counts(cluster: Cluster) -> dict[bytes, int]:
    return {
        word: int.from_bytes(value, "big") for word, (value, _) in cluster.folded("out").items()
    }


def _total(cluster: Cluster) -> int:
    return sum(_counts(cluster).values())
