"""A worker looks for others that have their tasks placed in the other way, and is not stopped by who does not answer."""

import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from streams.client.one_placing import check_one_placing
from streams.errors import IncompatibleMemberError, StreamsError
from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeAdmin

MEMBER: Any = SimpleNamespace(config=SimpleNamespace(application_id="shop"), is_fixed=False)


class Brokers(FakeAdmin):
    """Brokers that tell of these workers with a fixed assignment, or refuse to."""

    def __init__(self, workers: Mapping[str, str] | None) -> None:
        super().__init__(FakeBroker())
        self.workers = workers

    def fixed_workers(self, application_id: str) -> Mapping[str, str]:
        """Answer, or refuse to."""
        assert application_id == "shop"
        if self.workers is None:
            raise StreamsError("GROUP_AUTHORIZATION_FAILED: grant this principal DESCRIBE")
        return self.workers


def asked(workers: Mapping[str, str] | None) -> Any:
    """Return brokers; a member asks them for nothing else."""
    return Brokers(workers)


def test_a_member_is_refused_beside_workers_with_a_fixed_assignment() -> None:
    """By name and host, with what to do."""
    with pytest.raises(
        IncompatibleMemberError, match=r"workers of shop .*shop-0.*10\.0\.0\.7.*stop"
    ):
        check_one_placing(MEMBER, asked({"shop-0": "10.0.0.7"}))
    check_one_placing(MEMBER, asked({}))


def test_brokers_that_do_not_tell_stop_no_member(caplog: pytest.LogCaptureFixture) -> None:
    """A right that only this question needs may be missing: it is said, and fencing decides."""
    caplog.set_level(logging.WARNING)
    check_one_placing(MEMBER, asked(None))
    (said,) = caplog.messages
    assert "workers of shop with a fixed assignment" in said
    assert "grant this principal DESCRIBE" in said
