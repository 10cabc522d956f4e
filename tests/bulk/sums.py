from tidewheel import Serdes, StreamsBuilder, StreamsConfig, Topology

STORE = "totals"


def sums(topic: str, config: StreamsConfig) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(topic, key_serde=Serdes.string(), value_serde=Serdes.int64())
    stream.group_by_key().aggregate(
        lambda: 0,
        lambda key, amount, total: total + amount,
        store=STORE,
        value_serde=Serdes.int64(),
    )
    return builder.build(config)
