import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
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
 * Kafka Streams' side of the job count_by_key: the program its documentation would have you write.
 *
 * <p>Arguments are NAME=VALUE pairs, the same for every peer. Runs until SIGTERM, then closes cleanly, so that what
 * it has processed is committed. Everything that no argument names keeps Kafka Streams' own default.
 */
public final class CountByKey {
    private CountByKey() {}

    public static void main(final String[] args) throws InterruptedException {
        final Properties parameters = new Properties();
        for (final String arg : args) {
            final int equals = arg.indexOf('=');
            parameters.setProperty(arg.substring(0, equals), arg.substring(equals + 1));
        }
        final long cacheBytes = Long.parseLong(parameters.getProperty("cache_bytes"));

        final StreamsBuilder builder = new StreamsBuilder();
        final Materialized<String, Long, KeyValueStore<Bytes, byte[]>> counts = Materialized.as("counts");
        builder.stream(parameters.getProperty("input_topic"), Consumed.with(Serdes.String(), Serdes.ByteArray()))
                .groupByKey(Grouped.with(Serdes.String(), Serdes.ByteArray()))
                .count(cacheBytes > 0 ? counts.withCachingEnabled() : counts.withCachingDisabled())
                .toStream()
                .to(parameters.getProperty("output_topic"), Produced.with(Serdes.String(), Serdes.Long()));

        final KafkaStreams streams = new KafkaStreams(builder.build(), config(parameters, cacheBytes));
        final CountDownLatch failed = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(exception -> {
            exception.printStackTrace();
            failed.countDown();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
        failed.await();
        System.exit(1);
    }

    private static Properties config(final Properties parameters, final long cacheBytes) {
        final Properties config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, parameters.getProperty("application_id"));
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, parameters.getProperty("bootstrap_servers"));
        config.put(StreamsConfig.STATE_DIR_CONFIG, parameters.getProperty("state_dir"));
        config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, parameters.getProperty("threads"));
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, parameters.getProperty("commit_interval_ms"));
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, cacheBytes);
        config.put(
                StreamsConfig.PROCESSING_GUARANTEE_CONFIG,
                "exactly_once".equals(parameters.getProperty("guarantee"))
                        ? StreamsConfig.EXACTLY_ONCE_V2
                        : StreamsConfig.AT_LEAST_ONCE);
        config.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        return config;
    }
}
