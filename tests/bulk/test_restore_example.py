"""Test of `examples/restore_from_snapshot.py` and the commands it names."""

from collections import Counter
from pathlib import Path

import pytest

from tests.bulk.conftest import MakeConfig
from tests.integration.cluster import PATIENCE_S, Cluster
from tests.integration.outcome import wait_for_counts
from tidewheel import KafkaStreams
from tidewheel.streams.cli.app import main
from tidewheel.streams.processes.user_program import load_program
from tidewheel.streams.worker.application.run_options import RunOptions

_EXAMPLE = f"{Path(__file__).parents[2] / 'examples' / 'restore_from_snapshot.py'}:topology"
_STORE = "visits-per-page"
_VISITS = [(b"/page-%d" % (index % 40), b"somebody") for index in range(1_000)]


def _counts(cluster: Cluster, options: dict[str, str]) -> tuple[dict[str, int], int]:
    example = load_program(_EXAMPLE)
    config = example.config(options)
    restored: list[int] = []
    app = KafkaStreams(example.topology(config), config, options=RunOptions(fixed=True))
    app.set_restore_listener(lambda event: restored.append(event.restored))
    app.start()
    try:
        assert app.wait_until_running(PATIENCE_S), repr(app.error)
        cluster.wait_until_consumed(config.application_id, "visits")
        counts = wait_for_counts(app, _STORE, len(_VISITS))
        return {key: each.value for key, each in counts.items()}, sum(restored)
    finally:
        assert app.close(timeout=int(PATIENCE_S * 1000))


@pytest.mark.usefixtures("topics_of_the_demo", "spark")
def test_the_example_restores_its_counts(
    cluster: Cluster, make_config: MakeConfig, tmp_path: Path
) -> None:
    cluster.create({"visits": 4})
    cluster.send("visits", _VISITS)
    made = make_config()
    options = {
        "application_id": made.application_id,
        "bootstrap_servers": made.bootstrap_servers,
        "snapshot_location": str(tmp_path / "snapshots"),
        "state_dir": str(tmp_path / "old"),
    }
    before, _ = _counts(cluster, options)
    assert before == Counter(key.decode() for key, _ in _VISITS)

    def run(command: str, state_dir: str) -> int:
        given = {**options, "state_dir": str(tmp_path / state_dir)}
        assignments = [f"--set={name}={value}" for name, value in given.items()]
        return main([command, _EXAMPLE, *assignments])

    assert run("snapshot", "old") == 0
    assert run("restore", "new") == 0
    counts, restored = _counts(cluster, {**options, "state_dir": str(tmp_path / "new")})
    assert counts == before
    assert restored == 0
