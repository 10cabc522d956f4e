"""What all tests have in common: random examples are the same in every run.

`HYPOTHESIS_PROFILE=explore` draws new ones, to look for what nobody has thought of yet. `--alone` chooses between the
tests that need the machine for themselves and all others; see `checks/run_tests.py`.
"""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from checks.shared_broker import SOCKET_VARIABLE, ask_for_broker
from tidewheel.streams.broker import RunningBroker
from tidewheel.streams.broker.file_lock import FileLock
from tidewheel.streams.gc_tuning import collection_paused
from tidewheel.streams.testing.pytest_plugin import BOOTSTRAP_VARIABLE

#: Modules that share a Spark session, and the one among them that does not.
_SPARK = "tests/bulk/"
_SPARKS_OF_THEIR_OWN = "tests/bulk/test_kills.py"

# No deadline for one example: it would tell how busy the machine is. A test that hangs is ended by pytest's timeout.
#: A busy machine draws examples slowly, which is no fault of a test.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _PATIENT, derandomize=True, max_examples=50)
settings.register_profile("explore", _PATIENT, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--alone`."""
    parser.addoption(
        "--alone",
        choices=("only", "without"),
        help="only the tests marked `alone`, or all without them",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give modules to processes, and those that share a Spark session to one: each process would start a Spark."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped] # noqa: PLC0415 - it may be switched off

    made = LoadScopeScheduling(config, log)
    made._split_scope = scope_of  # what its documentation says to override
    return made


def scope_of(nodeid: str) -> str:
    """Return what is given to one process as a whole: a test's module, or all that share a Spark."""
    module = nodeid.partition("::")[0]
    return _SPARK if module.startswith(_SPARK) and module != _SPARKS_OF_THEIR_OWN else module


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Don't import the modules that have no test for `--alone only`."""
    if config.getoption("--alone") != "only" or collection_path.suffix != ".py":
        return None
    return "mark.alone" not in collection_path.read_text(encoding="utf-8") or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from looking at tests: thousands of them stay to the end, in each process."""
    with collection_paused():
        collected = yield
        gc.freeze()
    return collected


@pytest.fixture(scope="session")
def _address_of_the_broker() -> None:
    """Have `kafka_broker` take the one that all processes of `make test` share."""
    offered = os.environ.get(SOCKET_VARIABLE)
    if offered and BOOTSTRAP_VARIABLE not in os.environ:
        os.environ[BOOTSTRAP_VARIABLE] = ask_for_broker(offered)


@pytest.fixture(scope="session")
def kafka_broker(_address_of_the_broker: None, kafka_broker: RunningBroker) -> RunningBroker:
    """The plugin's broker, once it can know of the shared one."""
    return kafka_broker


@pytest.fixture
def topics_of_the_demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have the topics of the demo and of the examples to oneself: all processes share a Kafka, and their names are fixed."""
    lock = FileLock(tmp_path_factory.getbasetemp().parent / "topics-of-the-demo.lock")
    lock.acquire(timeout_ms=100_000)
    yield
    lock.release()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes long, skip what is nightly, and leave out what `--alone` does not choose."""
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
