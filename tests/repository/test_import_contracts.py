"""The import contracts see every folder, and a package's root as its lowest layer."""

import tomllib

import grimp
import pytest

from checks.import_contracts import RoomsContract
from checks.repository_files import ROOT

_CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]["contracts"]


def _is_kept(*imports: tuple[str, str], rooms: tuple[str, ...] = ("upper", "lower")) -> bool:
    graph = grimp.ImportGraph()
    for module in ("app", "app.first", "app.second", *(f"app.{room}" for room in rooms)):
        graph.add_module(module)
    for room in rooms:
        graph.add_module(f"app.{room}.code")
    for importer, imported in imports:
        graph.add_import(importer=f"app.{importer}", imported=f"app.{imported}")
    contract = RoomsContract(
        name="Inside app",
        session_options={"root_packages": ["app"]},
        contract_options={"containers": ["app"], "layers": ["upper", "lower"]},
    )
    return contract.check(graph, verbose=False).kept


def test_rooms_import_lower_rooms_and_the_root() -> None:
    assert _is_kept(("upper.code", "lower.code"), ("lower.code", "first"), ("first", "second"))


@pytest.mark.parametrize(
    "upward", [("lower.code", "upper.code"), ("first", "lower.code"), ("second", "upper")]
)
def test_an_import_of_a_higher_room_breaks_the_contract(upward: tuple[str, str]) -> None:
    assert not _is_kept(upward)


def test_a_folder_without_a_layer_breaks_the_contract() -> None:
    assert not _is_kept(rooms=("upper", "lower", "forgotten"))


def test_every_package_and_no_file_is_in_a_contract_of_rooms() -> None:
    rooms = [contract for contract in _CONTRACTS if contract["type"] == "rooms"]
    containers = {container for contract in rooms for container in contract["containers"]}
    assert containers >= {
        f"tidewheel.{package}" for package in ("streams", "tasks", "rebalance", "state_stores")
    }
    for contract in rooms:
        (container,) = contract["containers"]
        for layer in contract["layers"]:
            for room in layer.split(" | "):
                assert (ROOT / container.replace(".", "/") / room).is_dir()
