from collections.abc import Callable

import pytest

from tidewheel import Processor, Record, StoreBuilder, Stores, Topology, TopologyError

RATES = Stores.key_value("rates", key_serde=str, value_serde=str)


class Waits(Processor[str, str, None, None]):
    async def process(self, record: Record[str, str]) -> None: ...


def with_store(
    builder: StoreBuilder = RATES, supplier: type[Processor[str, str, None, None]] = Processor
) -> Topology:
    return Topology().add_read_only_state_store(
        builder, "read", "rates", "keep", supplier, key_serde=str, value_serde=str
    )


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "window": (
        lambda: with_store(
            Stores.window("w", retention=10, window_size=1, key_serde=str, value_serde=str)
        ),
        r"add_read_only_state_store 'keep' \(.*\): store 'w' can't be read-only.*add_state_store",
    ),
    "ttl": (
        lambda: with_store(Stores.key_value("t", key_serde=str, value_serde=str, ttl=5)),
        "store 't' can't be read-only",
    ),
    "lru": (
        lambda: with_store(Stores.lru("l", max_entries=5, key_serde=str, value_serde=str)),
        "store 'l' can't be read-only",
    ),
    "async": (lambda: with_store(supplier=Waits), "`process` must be a plain function"),
    "child": (
        lambda: with_store().add_sink("out", "out", ["keep"]),
        "parent 'keep' fills the read-only store 'rates' and gives nothing on; take its source",
    ),
    "second store": (
        lambda: with_store().add_state_store(
            Stores.key_value("more", key_serde=str, value_serde=str), "keep"
        ),
        "'keep' fills the read-only store 'rates', which is restored by running it again",
    ),
    "topic read twice": (
        lambda: with_store().add_source("again", "rates"),
        "topic 'rates' is read already by 'read'",
    ),
    "no builder": (
        lambda: with_store("rates"),  # type: ignore[arg-type] # what the test is about
        "the store is of type str",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_read_only_stores_are_refused(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(TopologyError, match=message):
        make()


def test_the_source_may_have_other_children() -> None:
    topology = with_store().add_sink("out", "out", ["read"], key_serde=str, value_serde=str)
    assert topology.store_names == ("rates",)
    (subtopology,) = topology.spec().subtopologies
    assert [node.name for node in subtopology.nodes] == ["read", "keep", "out"]
    (store,) = subtopology.stores
    assert (store.logging, store.source_topic) == (False, "rates")
