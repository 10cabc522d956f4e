"""What tests of a Tidewheel program use: `TopologyTestDriver` without a broker, `KafkaBroker` to start a real one.

Names are imported when they are first used: pytest loads this package in every run of everyone who
has Tidewheel installed, and those runs shall not pay for what they do not use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidewheel.streams.broker import KafkaBroker
    from tidewheel.streams.testing.driver import (
        TestInputTopic,
        TestOutputTopic,
        TestRecord,
        TopologyTestDriver,
    )

__all__ = ["KafkaBroker", "TestInputTopic", "TestOutputTopic", "TestRecord", "TopologyTestDriver"]

_HOME = {
    "KafkaBroker": "tidewheel.streams.broker",
    "TestInputTopic": "tidewheel.streams.testing.driver",
    "TestOutputTopic": "tidewheel.streams.testing.driver",
    "TestRecord": "tidewheel.streams.testing.driver",
    "TopologyTestDriver": "tidewheel.streams.testing.driver",
}


def __getattr__(name: str) -> object:
    """Import the module of a public name; Python asks here when the name is not yet known."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
