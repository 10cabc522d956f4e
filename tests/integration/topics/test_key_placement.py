"""Topics of another partitioner: reported by name, and joined correctly once configured."""

import logging
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.integration.cluster import Cluster, until
from tests.integration.conftest import StartApp
from tidewheel import RunOptions, StreamsBuilder, StreamsConfig
from tidewheel.rebalance.protocol.messages import Beat, decode_message
from tidewheel.streams.cli.app import main
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.kafka.admin.group_log import inbox_topic
from tidewheel.streams.worker.input_sample import sampled_inputs
from tidewheel.streams.worker.topic_setup import spec_of

KEYS = [f"key-{number}" for number in range(40)]


def _builder(unique: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    users = builder.table(f"users-{unique}", key_serde=str, value_serde=str)
    stream = builder.stream(f"orders-{unique}", key_serde=str, value_serde=str)
    stream.select_key(lambda _key, value: value).join(
        users, lambda left, right: left + right, key_serde=str, value_serde=str
    ).to(f"out-{unique}", key_serde=str, value_serde=str)
    return builder


def _misplaced(cluster: Cluster, application_id: str) -> set[str]:
    messages = [
        decode_message(record.value)
        for record in cluster.read(inbox_topic(application_id))
        if record.value
    ]
    return {
        row.misplaced
        for message in messages
        if isinstance(message, Beat)
        for row in message.tasks
        if row.misplaced
    }


@pytest.mark.fault("57")
def test_a_topic_of_another_partitioner_is_detected_and_its_partitioner_is_used(
    cluster: Cluster,
    config: dict[str, Any],
    unique: str,
    start_app: StartApp,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    caplog.set_level(logging.WARNING)
    users, orders, out = f"users-{unique}", f"orders-{unique}", f"out-{unique}"
    cluster.create({users: 4, orders: 4, out: 1})
    settings = StreamsConfig(**config)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for key in KEYS:
        producer.produce(users, b"user", key, timestamp=1_000)
    assert producer.flush(60) == 0

    check, topics = sampled_inputs(spec_of(_builder(unique).build(), settings), settings)
    assert topics == [users]
    assert f'{{"{users}": "crc32"}}' in check.finding(users)
    program = tmp_path / f"program_{unique}.py"
    program.write_text(
        f"from {__name__} import _builder\n\n\ndef topology():\n    return _builder('{unique}')\n",
        encoding="utf-8",
    )
    said = ["--bootstrap-servers", cluster.bootstrap_servers]
    assert main(["describe", f"{program}:topology", "--check", *said]) == ExitCode.FAILED
    assert f'{{"{users}": "crc32"}}' in capsys.readouterr().out

    app = start_app(_builder(unique), config | {"settling_ms": 0}, options=RunOptions())
    until(lambda: f"topic {users}: " in caplog.text, "the topic is named")
    until(lambda: _misplaced(cluster, config["application_id"]), "status knows")
    # A second beat may have sampled more keys.
    texts = _misplaced(cluster, config["application_id"])
    assert [text for text in texts if f'{{"{users}": "crc32"}}' not in text] == []
    assert app.close(timeout=60_000)

    follows: dict[str, Any] = {
        "application_id": f"{config['application_id']}-said",
        "input_partitioners": {users: "crc32"},
    }
    caplog.clear()
    app = start_app(_builder(unique), config | follows, options=RunOptions(fixed=True))
    cluster.wait_until_consumed(follows["application_id"], users)
    cluster.send(orders, [(b"order", key.encode()) for key in KEYS], first_timestamp=2_000)
    until(lambda: len(cluster.read(out)) >= len(KEYS), "all meet their users")
    assert "sampled keys are not" not in caplog.text
