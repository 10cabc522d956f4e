"""Serdes of a topic as the topology of the settings has them."""

from tidewheel.state_stores.ports import SerdePort
from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.streams.processes.user_program import load_program, topology_setting
from tidewheel.streams.worker.topic_setup import spec_of
from tidewheel.tasks.kafka.internal_topics import internal_prefix
from tidewheel.tasks.processing.api.topology_spec import TopologySpec


def topology_serdes(
    topic: str, settings: SettingsOptions
) -> tuple[str, tuple[SerdePort, SerdePort]] | None:
    """Return the setting `topology`, and its serdes of the topic's keys and values.

    Returns None without that setting, or for a topic that the topology neither reads nor writes.

    Raises:
        ConfigError: The program can't be loaded.
    """
    overrides, file = settings.overrides(), settings.config_file()
    target = topology_setting(overrides, file)
    if target is None:
        return None
    try:
        program = load_program(target)
        config = program.config(overrides, file)
        spec = spec_of(program.topology(config), config)
    except StreamsError as error:
        raise ConfigError(
            f"the serdes of topic {topic!r} are those of {target}, which can't be loaded: {error}; or give --key and "
            "--value"
        ) from error
    serdes = serdes_of(topic, spec, config)
    return None if serdes is None else (target, serdes)


def serdes_of(
    topic: str, spec: TopologySpec, config: StreamsConfig
) -> tuple[SerdePort, SerdePort] | None:
    """Return the serdes of a source, output, repartition or global topic, or None."""
    prefix = internal_prefix(config.application_id)
    for subtopology in spec.subtopologies:
        for source in subtopology.sources:
            names = [f"{prefix}{name}" if source.internal else name for name in source.topics]
            if topic in names or (source.pattern is not None and source.pattern.fullmatch(topic)):
                return source.key_serde, source.value_serde
    for subtopology in spec.subtopologies:
        for sink in subtopology.sinks:
            if sink.topic == topic and not sink.internal:
                return sink.key_serde, sink.value_serde
    for table in spec.global_stores:
        if topic in table.source.topics:
            return table.source.key_serde, table.source.value_serde
    return None
