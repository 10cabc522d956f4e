"""A program as in a notebook: a client per process, overlapping calls, a limited run's outputs."""

import asyncio
from typing import Any

import pytest

from tests.integration.cluster import Cluster
from tidewheel import KafkaStreams, KafkaStreamsState, RunOptions, StreamsBuilder, StreamsConfig

pytestmark = pytest.mark.timeout(600)

RECORDS = 400
KEYS = 40


class Client:
    """Client that is bound to its event loop, and counts its calls in flight."""

    def __init__(self) -> None:
        self.opened: list[asyncio.AbstractEventLoop] = []
        self.closed: list[asyncio.AbstractEventLoop] = []
        self.in_flight = self.most = 0

    async def open(self) -> None:
        self.opened.append(asyncio.get_running_loop())

    async def close(self) -> None:
        self.closed.append(asyncio.get_running_loop())

    async def ask(self, value: str) -> str:
        assert [asyncio.get_running_loop()] == self.opened
        assert not self.closed
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(0.005)
        self.in_flight -= 1
        return value.upper()


@pytest.mark.parametrize(
    ("factor", "most"), [(1, 1), (8, 8), (64, 16)], ids=["alone", "overlapping", "limited"]
)
def test_one_client_serves_all_calls_and_the_run_returns_its_outputs(
    cluster: Cluster, config: dict[str, Any], unique: str, factor: int, most: int
) -> None:
    source, output = f"in-{unique}", f"out-{unique}"
    cluster.create({source: 1, output: 2})
    rows = [(f"k{number % KEYS}".encode(), f"v{number}".encode()) for number in range(RECORDS)]
    cluster.send(source, rows)
    client, builder = Client(), StreamsBuilder()
    stream = builder.stream(source, key_serde=str, value_serde=str)
    stream.map_values(client.ask).to(output, value_serde=str)
    settings = StreamsConfig(**config, parallelising_factor=factor, max_calls_in_flight=16)
    app = KafkaStreams(builder.build(), settings, options=RunOptions(fixed=True))
    app.on_start(client.open)
    app.on_stop(client.close)
    records = app.run(count=RECORDS, timeout=120_000, collect=True)
    assert app.state is KafkaStreamsState.NOT_RUNNING
    assert client.opened == client.closed
    assert 1 <= client.most <= most
    assert factor == 1 or client.most > 1
    found: dict[str, list[str]] = {}
    for record in records:
        assert record.topic == output
        found.setdefault(record.key, []).append(record.value)
    assert found == {
        f"k{key}": [f"V{number}" for number in range(key, RECORDS, KEYS)] for key in range(KEYS)
    }
    again = KafkaStreams(builder.build(), settings, options=RunOptions(fixed=True))
    again.on_start(client.opened.clear)
    again.on_start(client.closed.clear)
    again.on_start(client.open)
    assert again.run(timeout=2_000, collect=True) == [], "all is committed"
