"""Access to a cluster's topics, with the settings of an application or without any."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import ConfigError, MissingSourceTopicError, StreamsError
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.portable_settings import settings_of
from tidewheel.streams.processes.user_program import effective_config, named
from tidewheel.tasks.kafka.ports import Admin

#: Names the clients of commands that belong to no application.
_NO_APPLICATION: Final = "tidewheel-cli"


def cluster_config(settings: SettingsOptions | None) -> StreamsConfig:
    """Return the settings of a command that needs a cluster but no application."""
    settings = settings or SettingsOptions()
    overrides, file = settings.overrides(), settings.config_file()
    if not named({}, overrides, file):
        overrides["application_id"] = _NO_APPLICATION
    return effective_config({}, overrides, file)


def client_settings(settings: SettingsOptions | None) -> ClientSettings:
    return settings_of(cluster_config(settings), client_id=_NO_APPLICATION)


@contextmanager
def cluster_admin(settings: ClientSettings) -> Generator[Admin]:
    """Yield an admin client once a broker has answered."""
    admin = KafkaResetAdmin(settings).found()
    try:
        yield admin
    finally:
        admin.close()


def partitions_of(
    admin: Admin,
    topic: str,
    servers: str,
    error: type[StreamsError] = MissingSourceTopicError,
) -> list[TopicPartition]:
    """Return the partitions of a topic; raise `error`, with a similar name, if it is missing."""
    # A list of all topics lacks those that this principal may not describe; this call raises.
    described = admin.describe_topics([topic])
    if topic not in described:
        near = get_close_matches(topic, sorted(admin.list_topics()), n=1)
        hint = f"did you mean {near[0]}? Or " if near else ""
        raise error(
            f"topic {topic!r} does not exist on {servers}; {hint}create it: "
            f"tidewheel topics create {topic} --partitions N"
        )
    return [TopicPartition(topic, number) for number in range(described[topic].partitions)]


def check_count(count: int | None) -> None:
    if count is not None and count < 1:
        raise ConfigError(f"--count {count}: give at least 1, or leave it out")


def chosen_partitions(
    partitions: Sequence[TopicPartition], number: int | None
) -> Sequence[TopicPartition]:
    """Return the partitions, or only that number; raise `ConfigError` if it does not exist."""
    if number is None:
        return partitions
    if not 0 <= number < len(partitions):
        raise ConfigError(
            f"--partition {number}: topic {partitions[0].topic} has partitions 0 to {len(partitions) - 1}"
        )
    return [partitions[number]]
