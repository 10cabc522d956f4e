from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tidewheel.streams.definitions.stores import Stores
from tidewheel.streams.topology.topology import Topology
from tidewheel.tasks.processing.api.processor import Processor
from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec, SourceSpec

Own = Processor[Any, Any, Any, Any]


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    topology = Topology()
    names: list[str] = []
    for index in range(draw(st.integers(1, 12))):
        parents = draw(st.sets(st.sampled_from(names), max_size=3)) if names else set()
        name = f"n{index}"
        if parents:
            topology.add_processor(name, Own, sorted(parents))
        else:
            topology.add_source(name, f"t{index}", key_serde=str, value_serde=str)
        names.append(name)
    spec = topology.draft()
    processors = [
        n.name for s in spec.subtopologies for n in s.nodes if isinstance(n, ProcessorSpec)
    ]
    for index in range(draw(st.integers(0, 3)) if processors else 0):
        users = draw(st.sets(st.sampled_from(processors), min_size=1, max_size=3))
        store = Stores.key_value(f"store{index}", key_serde=str, value_serde=int)
        topology.add_state_store(store, sorted(users))
    return topology


@settings(max_examples=20)
@given(topologies())
def test_sub_topologies_are_the_connected_parts(topology: Topology) -> None:
    spec = topology.spec()
    part_of = {node.name: sub.id for sub in spec.subtopologies for node in sub.nodes}
    neighbours: dict[str, set[str]] = {}
    for sub in spec.subtopologies:
        for node in sub.nodes:
            links = [] if isinstance(node, SourceSpec) else list(node.parents)
            links += [f"store:{s}" for s in node.stores] if isinstance(node, ProcessorSpec) else []
            for link in links:
                neighbours.setdefault(node.name, set()).add(link)
                neighbours.setdefault(link, set()).add(node.name)
    for name, part in part_of.items():
        reached, todo = {name}, [name]
        while todo:
            for other in neighbours.get(todo.pop(), set()) - reached:
                reached.add(other)
                todo.append(other)
        assert {n for n in reached if n in part_of} == {n for n, p in part_of.items() if p == part}


@settings(max_examples=20)
@given(topologies())
def test_sub_topologies_are_in_order(topology: Topology) -> None:
    spec = topology.spec()
    order = {
        name: int(name[1:]) for sub in spec.subtopologies for name in [n.name for n in sub.nodes]
    }
    firsts = [order[sub.nodes[0].name] for sub in spec.subtopologies]
    assert firsts == sorted(firsts)
    assert [sub.id for sub in spec.subtopologies] == list(range(len(firsts)))
    for sub in spec.subtopologies:
        numbers = [order[node.name] for node in sub.nodes]
        assert numbers == sorted(numbers)
    stores = [store.name for sub in spec.subtopologies for store in sub.stores]
    assert sorted(stores) == sorted(set(stores)) == list(topology.store_names)


@settings(max_examples=20)
@given(topologies())
def test_every_form_shows_every_node(topology: Topology) -> None:
    description = topology.describe(execution=True)
    nodes = {n["name"]: n for s in description.to_dict()["subtopologies"] for n in s["nodes"]}
    text, chart = str(description), description.to_mermaid()
    for name, node in nodes.items():
        assert f" {name} (" in text
        assert f'["{name}"]' in chart
        assert all(name in nodes[child]["predecessors"] for child in node["successors"])
        assert all(name in nodes[parent]["successors"] for parent in node["predecessors"])
