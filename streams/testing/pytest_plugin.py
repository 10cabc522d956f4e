"""Pytest fixtures for Tidewheel programs, found by the package's entry point.

Every pytest run with Tidewheel installed loads this file, so it imports only pytest; fixtures
import the rest.
"""

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tidewheel.streams.broker import RunningBroker
    from tidewheel.streams.config import StreamsConfig
    from tidewheel.streams.testing.driver import TopologyTestDriver
    from tidewheel.streams.topology.topology import Topology

BOOTSTRAP_VARIABLE = "TIDEWHEEL_TEST_BOOTSTRAP_SERVERS"
"""Names a broker that already runs, to use instead of starting one."""


@pytest.fixture(scope="session")
def kafka_broker() -> "Iterator[RunningBroker]":
    """A real Kafka broker for the test session: `kafka_broker.bootstrap_servers`.

    Uses $TIDEWHEEL_TEST_BOOTSTRAP_SERVERS if set, else starts a broker and removes it at the end.
    Tests share it, so each should use its own topics.
    """
    # Imported late, see the module's docstring.
    from tidewheel.streams.broker import ExternalBroker, KafkaBroker  # noqa: PLC0415
    from tidewheel.streams.broker.server_config import PATIENT  # noqa: PLC0415

    running = os.environ.get(BOOTSTRAP_VARIABLE)
    if running:
        yield ExternalBroker(bootstrap_servers=running)
        return
    with KafkaBroker(properties=PATIENT) as broker:
        yield broker


@pytest.fixture
def topology_driver() -> "Iterator[Callable[..., TopologyTestDriver]]":
    """Factory of `TopologyTestDriver`s; closes them when the test ends.

    `driver = topology_driver(builder.build())`
    """
    from tidewheel.streams.testing.driver import TopologyTestDriver  # noqa: PLC0415

    with ExitStack() as stack:

        def make(
            topology: "Topology",
            config: "StreamsConfig | None" = None,
            *,
            initial_wall_clock_ms: int = 0,
        ) -> TopologyTestDriver:
            driver = TopologyTestDriver(
                topology, config, initial_wall_clock_ms=initial_wall_clock_ms
            )
            return stack.enter_context(driver)

        yield make
