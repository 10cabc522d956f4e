"""Import contract of a package: its rooms in layers, with the files of its root below them.

A folder that no layer names breaks the contract. A file of the root needs no line in it: it may
import other files of the root, and no room.
"""

from typing import Any

import grimp
from importlinter.contracts.layers import Layer, LayersContract, ModuleTail
from importlinter.domain.contract import ContractCheck
from importlinter.domain.helpers import module_expressions_to_modules


class RoomsContract(LayersContract):
    """Layers of the rooms of one container: exhaustive, its root's files are the lowest layer."""

    type_name = "rooms"

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        options: Any = self  # the class declares its options as fields, an object has their values
        options.exhaustive = True
        (container,) = module_expressions_to_modules(graph, options.containers)
        files = root_files(graph, container.name)
        if files:
            root = Layer({ModuleTail(name) for name in files}, is_independent=False)
            options.layers = [*options.layers, root]
        return super().check(graph, verbose)


def root_files(graph: grimp.ImportGraph, package: str) -> list[str]:
    children = graph.find_children(package)
    return sorted(child.rpartition(".")[2] for child in children if not graph.find_children(child))
