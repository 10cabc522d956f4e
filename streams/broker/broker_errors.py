"""Errors of the development broker; each message names the next step."""

from tidewheel.state_stores.errors import StreamsError


class BrokerError(StreamsError):
    """The development broker could not be fetched, started or reached.

    >>> raise BrokerError("no Java found; run: pip install 'tidewheel[java]'")
    Traceback (most recent call last):
    ...
    tidewheel.streams.broker.broker_errors.BrokerError: no Java found; run: pip install 'tidewheel[java]'
    """


class JavaError(BrokerError): ...


class PortTakenError(BrokerError): ...


class BrokerSettingError(BrokerError):
    """A setting is invalid; no process was started."""


class UnknownVersionError(BrokerSettingError): ...


class FetchError(BrokerError): ...


class DataDirInUseError(BrokerError): ...
