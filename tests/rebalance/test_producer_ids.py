"""Transactional ids of an application, which other applications' ids must not resemble."""

import pytest

from tidewheel.rebalance.producer_ids import output_id, own_ids, own_ids_outside_groups


@pytest.mark.parametrize("topic", ["alerts", "a.b_c-1", "_hidden", "-", "out-0"])
def test_writers_of_outputs_belong_to_their_application(topic: str) -> None:
    writer = output_id("shop", topic, 12)
    assert own_ids("shop", [writer]) == own_ids_outside_groups("shop", [writer]) == [writer]
    assert own_ids("shop", [f"{writer}-search"]) == [f"{writer}-search"]
    assert own_ids("sho", [writer]) == own_ids("shop-eu", [writer]) == []


@pytest.mark.parametrize(
    "other",
    [
        "shop-backfill-out-alerts",
        "shop-backfill-out--3",
        "shop-backfill-out-alerts-03",
        "shop-backfill-fixed-0",
        f"shop-backfill-{'0a' * 16}-0",
    ],
)
def test_other_ids_do_not(other: str) -> None:
    assert own_ids("shop", [other]) == []
