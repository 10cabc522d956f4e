"""Settings of the loop that depend on the cluster."""

import logging

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeAdmin
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.worker.application.wiring import recommit_interval


class Retention(FakeAdmin):
    """Brokers with this retention; None: it can't be read."""

    def __init__(self, days: int | None) -> None:
        super().__init__(FakeBroker())
        self.days = days

    def offsets_retention_ms(self) -> int:
        if self.days is None:
            raise StreamsError("CLUSTER_AUTHORIZATION_FAILED: the principal needs DESCRIBE_CONFIGS")
        return self.days * 86_400_000


@pytest.mark.parametrize(("days", "hours"), [(7, 12), (1, 6), (None, 12)])
def test_the_interval_to_commit_idle_partitions_again_depends_on_the_retention(
    days: int | None, hours: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert recommit_interval(Retention(days)) == hours * 3_600_000
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (days is None)
    if said:
        assert "every 12 hours" in said[0]
        assert "the principal needs DESCRIBE_CONFIGS" in said[0]
