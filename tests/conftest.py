"""Shared by all tests: random examples are the same in every run.

`HYPOTHESIS_PROFILE=explore` draws new ones, and `nightly` many. `--alone` selects the tests that need the machine for
themselves, or all others (`checks/run_tests.py`).
"""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from checks.shared_broker import SOCKET_VARIABLE, ask_for_broker
from tidewheel.streams.broker import RunningBroker
from tidewheel.streams.broker.file_lock import FileLock
from tidewheel.streams.gc_tuning import collection_paused
from tidewheel.streams.testing.pytest_plugin import BOOTSTRAP_VARIABLE

if TYPE_CHECKING:
    from tests.integration.cluster import Cluster

#: Modules that share a Spark session, and the one among them that does not.
_SPARK = "tests/bulk/"
_SPARKS_OF_THEIR_OWN = "tests/bulk/test_kills.py"

# No deadline per example: it would measure the machine's load. pytest's timeout ends a hanging test.
#: A busy machine draws examples slowly; the test is not at fault.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _PATIENT, derandomize=True, max_examples=50)
settings.register_profile("explore", _PATIENT, derandomize=False)
settings.register_profile("nightly", _PATIENT, derandomize=False, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--alone",
        choices=("only", "without"),
        help="only the tests marked `alone`, or all without them",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give modules to processes, and all Spark modules to one: each process would start a Spark."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped] # noqa: PLC0415 - it may be switched off

    made = LoadScopeScheduling(config, log)
    made._split_scope = scope_of  # as its documentation asks
    return made


def scope_of(nodeid: str) -> str:
    """Return the unit that one process runs: a test's module, or all Spark modules."""
    module = nodeid.partition("::")[0]
    return _SPARK if module.startswith(_SPARK) and module != _SPARKS_OF_THEIR_OWN else module


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("--alone") != "only" or collection_path.suffix != ".py":
        return None
    return "mark.alone" not in collection_path.read_text(encoding="utf-8") or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from scanning thousands of collected tests."""
    with collection_paused():
        collected = yield
        gc.freeze()
    return collected


@pytest.fixture(scope="session")
def _address_of_the_broker() -> None:
    """Have `kafka_broker` use the broker that all processes of `make test` share."""
    offered = os.environ.get(SOCKET_VARIABLE)
    if offered and BOOTSTRAP_VARIABLE not in os.environ:
        os.environ[BOOTSTRAP_VARIABLE] = ask_for_broker(offered)


@pytest.fixture(scope="session")
def kafka_broker(_address_of_the_broker: None, kafka_broker: RunningBroker) -> RunningBroker:
    return kafka_broker


@pytest.fixture(scope="module")
def cluster(kafka_broker: RunningBroker) -> Iterator["Cluster"]:
    from tests.integration.cluster import Cluster  # noqa: PLC0415 - most tests need no Kafka client

    made = Cluster(kafka_broker.bootstrap_servers)
    yield made
    made.close()


@pytest.fixture
def topics_of_the_demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Lock the topics of the demo and the examples: processes share a Kafka and their names are fixed."""
    lock = FileLock(tmp_path_factory.getbasetemp().parent / "topics-of-the-demo.lock")
    lock.acquire(timeout_ms=100_000)
    yield
    lock.release()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start with slow tests, skip nightly ones, and drop those that `--alone` excludes."""
    items.sort(key=lambda item: item.get_closest_marker("first") is None)
    for item in items:
        for nightly in item.iter_markers("nightly"):
            (variable,) = nightly.args
            if os.environ.get(variable, "0") in ("", "0"):
                item.add_marker(pytest.mark.skip(reason=f"nightly: set {variable}=…"))
    chosen = config.getoption("--alone")
    if chosen is None:
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        is_alone = item.get_closest_marker("alone") is not None
        (kept if is_alone == (chosen == "only") else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)
