"""Testing tools: `TopologyTestDriver` without a broker, `KafkaBroker` with a real one.

Names are imported at their first use: pytest loads this module in every run where Tidewheel is
installed.
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
    """Import the module of a public name at its first use."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
