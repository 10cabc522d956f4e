"""What can go wrong with the development broker; each message says what to do next."""

from tidewheel.state_stores.errors import StreamsError


class BrokerError(StreamsError):
    """The development broker could not be fetched, started or reached.

    >>> raise BrokerError("no Java found; run: pip install 'tidewheel[java]'")
    Traceback (most recent call last):
    ...
    tidewheel.streams.broker.broker_errors.BrokerError: no Java found; run: pip install 'tidewheel[java]'
    """


class JavaError(BrokerError):
    """No Java that can run Kafka: none at all, or only ones that are too old."""


class PortTakenError(BrokerError):
    """Another program listens on the port the broker was told, or happened, to use."""


class BrokerSettingError(BrokerError):
    """A setting of the development broker makes no sense; nothing was started."""


class UnknownVersionError(BrokerSettingError):
    """There is no such Kafka version, or none that this broker can run."""


class FetchError(BrokerError):
    """Kafka's jars could not be fetched: no network, no resolver, or not what was expected."""


class DataDirInUseError(BrokerError):
    """Another broker runs on the same data folder."""
