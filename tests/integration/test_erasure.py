"""Erasure of a key: it is removed from owner, standby, changelog and restores; others stay."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import Cluster, until
from tests.integration.conftest import StartApp
from tests.integration.programs.jobs import JOBS, STORE
from tidewheel import InvalidStateStoreError, KafkaStreams, RunOptions
from tidewheel.streams.cli.app import main
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.tasks.kafka.internal_topics import changelog_topic

PROGRAM = """
from tests.integration.programs.jobs import JOBS

topology = JOBS["count_by_key"]({source!r}, {sink!r}).build()
config = {{"application_id": {application_id!r}, "bootstrap_servers": {servers!r}}}
"""
ALICE = "alice"


def counts(app: KafkaStreams) -> dict[str, int]:
    try:
        return {key: row.value for key, row in app.store(STORE, stale=True).all()}
    except InvalidStateStoreError:  # it has no task yet
        return {}


def test_a_key_is_erased_from_owner_standby_and_changelog(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, sink = f"in-{unique}", f"out-{unique}"
    cluster.create({source: 2, sink: 2})
    keys = [f"key-{number % 20:02}" for number in range(60)] + [ALICE] * 5
    cluster.send(source, [(key.encode(), b"x") for key in keys])
    settings = config | {
        "settling_ms": 0,
        "num_standby_replicas": 1,
        "statestore_cache_max_bytes": 1_000_000,
    }
    program = tmp_path / f"counting_{unique}.py"
    program.write_text(
        PROGRAM.format(
            source=source,
            sink=sink,
            application_id=config["application_id"],
            servers=cluster.bootstrap_servers,
        ),
        encoding="utf-8",
    )

    def delete(store: str = STORE, key: str = ALICE) -> int:
        return main(["state", "delete", f"{program}:topology", store, key, "--execute", "--json"])

    topology = JOBS["count_by_key"](source, sink)
    apps = [start_app(topology, settings, options=RunOptions()) for _ in (1, 2)]
    cluster.wait_until_consumed(config["application_id"], source)
    expected = dict(Counter(keys))
    for app in apps:
        until(lambda app=app: counts(app) == expected, "every key is here in some role")  # type: ignore[misc]
    assert delete("count") == ExitCode.USAGE
    assert STORE in capsys.readouterr().err
    assert delete() == ExitCode.OK
    answer = json.loads(capsys.readouterr().out)
    changelog = changelog_topic(config["application_id"], STORE)
    assert (answer["topic"], answer["rows"]) == (changelog, 1)
    assert answer["first_offset"] == answer["last_offset"]
    (tombstone,) = [
        record
        for record in cluster.read(changelog)
        if (record.partition, record.offset) == (answer["partition"], answer["last_offset"])
    ]
    assert (tombstone.key, tombstone.value) == (ALICE.encode(), None)
    del expected[ALICE]
    for app in apps:
        until(lambda app=app: counts(app) == expected, "the copy follows")  # type: ignore[misc]
    # The cache forwards the deletion.
    assert cluster.values_by_key(sink)[ALICE.encode()][-1] is None
    assert delete() == ExitCode.FAILED
    assert "no key" in capsys.readouterr().err
    for app in apps:
        assert app.close(timeout=60_000)
    assert delete() == ExitCode.FAILED
    assert "no worker" in capsys.readouterr().err
    shutil.rmtree(config["state_dir"])
    fresh = start_app(topology, settings, options=RunOptions())
    until(lambda: counts(fresh) == expected, "restored from nothing")
    cluster.send(source, [(ALICE.encode(), b"x")])
    cluster.wait_until_consumed(config["application_id"], source)
    until(lambda: counts(fresh) == expected | {ALICE: 1}, "the next record counts from 1")
