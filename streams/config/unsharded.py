"""Commands that know whole partitions only."""

from tidewheel.streams.config.streams_config import StreamsConfig
from tidewheel.streams.errors import ConfigError


def check_unsharded(config: StreamsConfig, what: str) -> None:
    """Raise `ConfigError` for a command that would leave out the shards of an application.

    >>> check_unsharded(StreamsConfig(application_id="shop", bootstrap_servers="localhost:9092"), "reset")
    """
    if config.partition_shards > 1:
        raise ConfigError(
            f"{what} can't work with partition_shards={config.partition_shards} yet: shards have consumer groups and task "
            "directories of their own, which it would leave as they are. Workers restore shards from their changelogs when they start"
        )
