"""Fixtures for tests of Tidewheel programs; pytest finds this file by the package's entry point.

It is loaded in every pytest run of everyone who has Tidewheel installed: nothing but pytest is
imported here, everything else when a fixture is first used.
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
    """A real Kafka for the whole test session: `kafka_broker.bootstrap_servers`.

    The one in $TIDEWHEEL_TEST_BOOTSTRAP_SERVERS if that is set, else one that is started at first
    use and thrown away at the end. Tests share it, so each should use topics of its own.
    """
    # Imported late on purpose: see the module's description.
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
    """Makes `TopologyTestDriver`s, with its arguments, and closes them when the test ends.

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
