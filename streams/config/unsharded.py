"""Commands that know whole partitions only."""

from tidewheel.streams.config.streams_config import StreamsConfig
from tidewheel.streams.errors import ConfigError


def check_unsharded(config: StreamsConfig, what: str) -> None:
    """Raise `ConfigError` for a command that would leave out the shards of an application.

    >>> check_unsharded(StreamsConfig(application_id="shop", bootstrap_servers="localhost:9092"), "bootstrap")
    """
    if config.partition_shards > 1:
        raise ConfigError(
            f"{what} can't work with partition_shards={config.partition_shards} yet: it commits the offsets of whole partitions, "
            "and shards start at those of consumer groups of their own. Let the application read its input, or use "
            "partition_shards=1"
        )
