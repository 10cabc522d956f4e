import json
import re
from typing import Any

from tidewheel import KStream
from tidewheel.streams.dsl.builder import StreamsBuilder
from tidewheel.streams.topology.topology import Topology
from tidewheel.tasks.processing.api.processor import Processor


def word_count(store: str = "counts") -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("words", key_serde=str, value_serde=str)
    counts = words.group_by(lambda word: word, key_serde=str).count(store=store)
    counts.to_stream().to("totals")
    return builder.build()


def test_dict_is_json_and_complete() -> None:
    description = word_count().describe(execution=True).to_dict()
    assert json.loads(json.dumps(description)) == description
    first, second = description["subtopologies"]
    assert [first["id"], second["id"]] == [0, 1]
    assert first["execution"] == "batch"
    assert second["nodes"][1] == {
        "type": "processor",
        "name": "KSTREAM-AGGREGATE-0000000002",
        "stores": ["counts"],
        "predecessors": ["counts-repartition-source"],
        "successors": ["KTABLE-TOSTREAM-0000000006"],
    }


def test_dict_of_patterns_and_dynamic_topics() -> None:
    builder = StreamsBuilder()
    stream = builder.stream(re.compile("sensor-.*"), key_serde=str, value_serde=str)
    stream.to(lambda key, _value, _context: key)
    source, sink = builder.build().describe().to_dict()["subtopologies"][0]["nodes"]
    assert source["pattern"] == "sensor-.*"
    assert "<lambda>" in sink["extractor"]


def test_mermaid_flowchart() -> None:
    assert word_count().describe().to_mermaid().splitlines() == [
        "flowchart TB",
        '  topic0(["words"])',
        '  topic1(["counts-repartition"])',
        '  topic2(["totals"])',
        '  subgraph sub0["Sub-topology 0"]',
        '    node0["KSTREAM-SOURCE-0000000000"]',
        '    node1["KSTREAM-KEY-SELECT-0000000001"]',
        '    node2["counts-repartition-filter"]',
        '    node3["counts-repartition-sink"]',
        "  end",
        '  subgraph sub1["Sub-topology 1"]',
        '    node4["counts-repartition-source"]',
        '    node5["KSTREAM-AGGREGATE-0000000002"]',
        '    node6["KTABLE-TOSTREAM-0000000006"]',
        '    node7["KSTREAM-SINK-0000000007"]',
        '    store1_0[("counts")]',
        "  end",
        "  topic0 --> node0",
        "  node0 --> node1",
        "  node1 --> node2",
        "  node2 --> node3",
        "  node3 --> topic1",
        "  topic1 --> node4",
        "  node4 --> node5",
        "  node5 --> node6",
        "  node5 -.- store1_0",
        "  node6 --> node7",
        "  node7 --> topic2",
    ]


def test_mermaid_escapes_markup_characters() -> None:
    builder = StreamsBuilder()
    stream = builder.stream(re.compile('a"b#<c>'), key_serde=str, value_serde=str)
    stream.to(lambda key, _value, _context: key)
    chart = builder.build().describe().to_mermaid()
    assert '(["/a#quot;b#35;#lt;c#gt;/"])' in chart
    assert "#lt;lambda#gt;(…)" in chart


def test_the_hash_is_stable_and_depends_on_the_structure() -> None:
    assert word_count().hash() == word_count().hash()
    assert word_count().hash() != word_count("totals").hash()
    # Pinned: members of different versions compare hashes.
    assert Topology().add_source("read", "in").hash() == "01fcda77be461523"
    assert (
        Topology().add_source("read", "in").hash()
        != Topology().add_source("read", "in").add_processor("p", Processor, "read").hash()
    )


def test_the_hash_ignores_allowed_differences_between_members() -> None:
    def topology(suffix: str, serde: type) -> Topology:
        builder = StreamsBuilder()
        stream: KStream[Any, Any] = builder.stream("in", key_serde=serde, value_serde=serde)
        if suffix == "a":
            stream.to(lambda key, _value, _context: f"{key}-a")
        else:
            stream.to(lambda key, _v, _c: str(key))
        return builder.build()

    assert topology("a", str).hash() == topology("b", bytes).hash()
