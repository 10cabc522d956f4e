"""When a process makes its global stores anew by itself, and when it gives up."""

import pytest

from streams import (
    InvalidStateStoreError,
    KafkaStreams,
    KafkaStreamsState,
    StreamsBuilder,
    StreamsConfig,
)
from tasks.errors import GlobalStoreDamagedError
from tests.fakes.clock import FakeClock


@pytest.fixture
def app() -> KafkaStreams:
    """An application with a global table, never started."""
    builder = StreamsBuilder()
    builder.global_table("table", key_serde=str, value_serde=str, store="rows")
    config = StreamsConfig(application_id="globals", bootstrap_servers="unused:9092")
    made = KafkaStreams(builder.build(), config)
    made._clock = FakeClock()  # type: ignore[assignment]
    return made


def test_damage_is_repaired_but_not_again_and_again(app: KafkaStreams) -> None:
    """Damaged again within a minute, the disk itself is not to be trusted; later it is another damage."""
    damaged = GlobalStoreDamagedError("a block is damaged")
    clock = app._clock
    assert isinstance(clock, FakeClock)
    assert app._replaces(damaged)
    assert app.state is KafkaStreamsState.REBALANCING
    clock.advance(59_000)
    assert not app._replaces(damaged)
    clock.advance(59_000)
    assert not app._replaces(damaged)
    clock.advance(61_000)
    assert app._replaces(damaged)


def test_nothing_is_repaired_after_a_stop(app: KafkaStreams) -> None:
    """The next start does it."""
    app.stop()
    assert not app._replaces(GlobalStoreDamagedError("a block is damaged"))


def test_a_global_store_is_not_open_before_the_start(app: KafkaStreams) -> None:
    """Its name is known, and so is what to wait for."""
    with pytest.raises(InvalidStateStoreError, match="wait until the application is RUNNING"):
        app.store("rows")
