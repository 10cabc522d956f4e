"""`ProcessorWrapper` (KIP-1112): wraps every node once, with unchanged results."""

from collections.abc import Callable
from typing import Any

import pytest

from tidewheel import (
    FixedKeyProcessor,
    FixedKeyRecord,
    Processor,
    ProcessorWrapper,
    Record,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Topology,
    TopologyError,
)
from tidewheel.testing import TopologyTestDriver

_TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}


class Shout(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record.replace(value=record.value.upper()))


class Repeat(FixedKeyProcessor[str, str, str]):
    def process(self, record: FixedKeyRecord[str, str]) -> None:
        self.context.forward(record.replace(value=record.value * 2))


class Keep(Processor[str, str, None, None]):
    def process(self, record: Record[str, str]) -> None:
        self.context.get_state_store("names").put(record.key, record.value)


class Tracing(ProcessorWrapper):
    def __init__(self) -> None:
        self.wrapped: list[tuple[str, str]] = []
        self.worked: list[tuple[str, int]] = []
        self.application_id = ""

    def configure(self, config: StreamsConfig) -> None:
        assert not self.wrapped
        self.application_id = config.application_id

    def wrap_processor_supplier(
        self, processor_name: str, supplier: Callable[[], Processor[Any, Any, Any, Any]]
    ) -> Callable[[], Processor[Any, Any, Any, Any]]:
        self.wrapped.append(("processor", processor_name))
        return lambda: self._traced(supplier(), processor_name)

    def wrap_fixed_key_processor_supplier(
        self, processor_name: str, supplier: Callable[[], FixedKeyProcessor[Any, Any, Any]]
    ) -> Callable[[], FixedKeyProcessor[Any, Any, Any]]:
        self.wrapped.append(("fixed key", processor_name))
        return lambda: self._traced(supplier(), processor_name)

    def wrap_operator(self, processor_name: str, process: Callable[..., Any]) -> Callable[..., Any]:
        self.wrapped.append(("operator", processor_name))

        def traced(batch: Any) -> Any:
            self.worked.append((processor_name, len(batch)))
            assert len(batch.keys) == len(batch.values) == len(batch.timestamps)
            return process(batch)

        return traced

    def _traced(self, processor: Any, name: str) -> Any:
        process = processor.process

        def traced(record: Any) -> None:
            self.worked.append((name, 1))
            process(record)

        processor.process = traced
        return processor


def config(wrapper: Any) -> StreamsConfig:
    return StreamsConfig(
        application_id="wrapped",
        bootstrap_servers="unused:9092",
        statestore_cache_max_bytes=0,
        processor_wrapper_class=wrapper,
    )


def program() -> Topology:
    builder = StreamsBuilder()
    names = Stores.key_value("names", **_TEXT)
    builder.add_global_store(names, "names", Keep, **_TEXT)
    words = builder.stream("in", **_TEXT).filter(lambda word: word != "no", name="wanted")
    words.process(Shout, name="shout").process_values(Repeat, name="repeat").to("out", **_TEXT)
    words.group_by_key(**_TEXT).count(store="counts")
    return builder.build()


ROWS = [("a", "yes", 1), ("b", "no", 2), ("a", "ja", 3)]


def outputs(wrapper: Any) -> tuple[list[Any], dict[Any, Any]]:
    with TopologyTestDriver(program(), config(wrapper)) as driver:
        driver.create_input_topic("names", **_TEXT).pipe_input("k", "v")
        driver.create_input_topic("in", **_TEXT).pipe_batch(ROWS)
        counts = dict(driver.get_state_store("counts").all())
        assert driver.get_state_store("names").get("k") == "v"
        return list(driver.create_output_topic("out", **_TEXT).read_records()), counts


def test_every_node_is_wrapped_without_changing_results() -> None:
    wrapper = Tracing()
    assert outputs(wrapper) == outputs(None)
    assert wrapper.application_id == "wrapped"
    kinds = {
        kind: {name for each, name in wrapper.wrapped if each == kind}
        for kind, _ in wrapper.wrapped
    }
    assert kinds["fixed key"] == {"repeat"}
    assert kinds["processor"] >= {"shout"}
    assert len(kinds["processor"]) == 2, "and the global store's"
    assert "wanted" in kinds["operator"]
    assert len(kinds["operator"]) == 2, "the filter and the count"
    assert len(wrapper.wrapped) == len(set(wrapper.wrapped))
    worked = {
        name: sum(n for each, n in wrapper.worked if each == name) for name, _ in wrapper.worked
    }
    assert worked["wanted"] == 3
    assert worked["shout"] == worked["repeat"] == 2
    assert sorted(worked.values()) == [1, 2, 2, 2, 3]


def test_operators_still_run_in_batches() -> None:
    builder = StreamsBuilder()
    builder.stream("in", **_TEXT).map_values(str.upper, name="upper").to("out", **_TEXT)
    wrapper = Tracing()
    with TopologyTestDriver(builder.build(), config(wrapper)) as driver:
        driver.create_input_topic("in", **_TEXT).pipe_batch(ROWS)
    assert wrapper.worked == [("upper", 3)]


def test_a_wrapper_class_is_instantiated_for_each_topology() -> None:
    made: list[Tracing] = []

    class RecordedWrapper(Tracing):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    assert outputs(RecordedWrapper) == outputs(ProcessorWrapper)
    (wrapper,) = made
    assert ("processor", "shout") in wrapper.wrapped
    plain, wrapped = program().spec(config(None)), program().spec(config(ProcessorWrapper))
    assert [node.name for node in plain.subtopologies[0].nodes] == [
        node.name for node in wrapped.subtopologies[0].nodes
    ]
    assert all(getattr(node, "wrap", None) is None for node in wrapped.subtopologies[0].nodes)


def test_a_wrapper_that_returns_no_supplier_is_refused() -> None:
    class Wrong(ProcessorWrapper):
        def wrap_processor_supplier(self, processor_name: str, supplier: Any) -> Any:
            return supplier()

    with pytest.raises(
        TopologyError, match=r"'.*' \(.*\), wrapped by .*Wrong: the supplier is an object"
    ):
        program().spec(config(Wrong))
