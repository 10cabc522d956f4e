import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.CloseOptions.GroupMembershipOperation;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Kafka Streams' program of the suite handoff: a count per key, signed by its instance.
 *
 * <p>Runs until SIGTERM, then closes cleanly.
 */
public final class Handoff {
    private Handoff() {}

    public static void main(final String[] args) throws InterruptedException {
        final Properties parameters = new Properties();
        for (final String arg : args) {
            final int equals = arg.indexOf('=');
            parameters.setProperty(arg.substring(0, equals), arg.substring(equals + 1));
        }
        final String instance = parameters.getProperty("instance");
        final Materialized<byte[], Long, KeyValueStore<Bytes, byte[]>> counts = Materialized.as("counts");

        final StreamsBuilder builder = new StreamsBuilder();
        builder.stream(parameters.getProperty("input_topic"), Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
                .groupByKey(Grouped.with(Serdes.ByteArray(), Serdes.ByteArray()))
                .count(counts.withCachingDisabled())
                .toStream()
                .mapValues(count -> count + " " + instance)
                .to(parameters.getProperty("output_topic"), Produced.with(Serdes.ByteArray(), Serdes.String()));

        final KafkaStreams streams = new KafkaStreams(builder.build(), config(parameters));
        final CountDownLatch failed = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(exception -> {
            exception.printStackTrace();
            failed.countDown();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        // A plain close() of the classic protocol stays in the group until its session ends. Only a returning static member
        // needs that; others leave, so that their tasks move immediately.
        final CloseOptions closing = CloseOptions.groupMembershipOperation(
                parameters.containsKey("group_instance_id")
                        ? GroupMembershipOperation.REMAIN_IN_GROUP
                        : GroupMembershipOperation.LEAVE_GROUP);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(closing)));
        streams.start();
        failed.await();
        System.exit(1);
    }

    private static Properties config(final Properties parameters) {
        final Properties config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, parameters.getProperty("application_id"));
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, parameters.getProperty("bootstrap_servers"));
        config.put(StreamsConfig.STATE_DIR_CONFIG, parameters.getProperty("state_dir"));
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, parameters.getProperty("commit_interval_ms"));
        config.put(
                StreamsConfig.PROCESSING_GUARANTEE_CONFIG,
                "exactly_once".equals(parameters.getProperty("guarantee"))
                        ? StreamsConfig.EXACTLY_ONCE_V2
                        : StreamsConfig.AT_LEAST_ONCE);
        config.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        if ("classic".equals(parameters.getProperty("protocol"))) {
            // The lowest value Kafka Streams allows.
            config.put(StreamsConfig.PROBING_REBALANCE_INTERVAL_MS_CONFIG, 60_000L);
            config.put(StreamsConfig.NUM_STANDBY_REPLICAS_CONFIG, parameters.getProperty("num_standby_replicas", "0"));
            config.put(
                    StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG),
                    parameters.getProperty("session_timeout_ms"));
            config.put(
                    StreamsConfig.consumerPrefix(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG),
                    parameters.getProperty("heartbeat_interval_ms"));
            if (parameters.containsKey("group_instance_id")) {
                config.put(
                        StreamsConfig.consumerPrefix(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG),
                        parameters.getProperty("group_instance_id"));
            }
        } else {
            // Sessions, heartbeats and standbys are settings of the group, which the suite sets on the broker.
            config.put(StreamsConfig.GROUP_PROTOCOL_CONFIG, "streams");
        }
        return config;
    }
}
