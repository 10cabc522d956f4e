import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;

/**
 * Kafka Streams' program of the suite restore: restores after a lost disk and prints the time.
 *
 * <p>Once RUNNING it sums its store and prints one line of JSON. Settings without an argument keep Kafka Streams'
 * defaults.
 */
public final class Restore {
    private Restore() {}

    private static final class Restoring implements StateRestoreListener {
        private final AtomicLong begin = new AtomicLong();
        private final AtomicLong end = new AtomicLong();
        private final AtomicLong records = new AtomicLong();

        @Override
        public void onRestoreStart(
                final TopicPartition partition, final String store, final long start, final long end) {
            begin.compareAndSet(0, System.nanoTime());
        }

        @Override
        public void onBatchRestored(
                final TopicPartition partition, final String store, final long end, final long restored) {}

        @Override
        public void onRestoreEnd(final TopicPartition partition, final String store, final long restored) {
            end.set(System.nanoTime());
            records.addAndGet(restored);
        }
    }

    public static void main(final String[] args) throws InterruptedException {
        final Properties parameters = new Properties();
        for (final String arg : args) {
            final int equals = arg.indexOf('=');
            parameters.setProperty(arg.substring(0, equals), arg.substring(equals + 1));
        }
        final StreamsBuilder builder = new StreamsBuilder();
        final Materialized<String, String, KeyValueStore<Bytes, byte[]>> table = Materialized.as("table");
        builder.stream(parameters.getProperty("input_topic"), Consumed.with(Serdes.String(), Serdes.String()))
                .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
                .reduce((before, value) -> value, table);

        final KafkaStreams streams = new KafkaStreams(builder.build(), config(parameters));
        final Restoring restoring = new Restoring();
        streams.setGlobalStateRestoreListener(restoring);
        streams.setUncaughtExceptionHandler(exception -> {
            exception.printStackTrace();
            System.exit(1);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        final CountDownLatch running = new CountDownLatch(1);
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING && restoring.end.get() > 0) {
                running.countDown();
            }
        });
        final long began = System.nanoTime();
        streams.start();
        running.await();
        final double ready = (System.nanoTime() - began) / 1e9;
        long rows = 0;
        long digest = 0;
        final CRC32 checksum = new CRC32();
        try (KeyValueIterator<String, String> all = streams.store(
                        StoreQueryParameters.fromNameAndType("table", QueryableStoreTypes.<String, String>keyValueStore()))
                .all()) {
            while (all.hasNext()) {
                final KeyValue<String, String> row = all.next();
                checksum.reset();
                checksum.update(row.key.getBytes(StandardCharsets.UTF_8));
                checksum.update(row.value.getBytes(StandardCharsets.UTF_8));
                rows++;
                digest += checksum.getValue();
            }
        }
        // Leaves the group: the next run of this application must not wait for the end of the session.
        streams.close(CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP));
        System.out.println("{\"seconds\": " + (restoring.end.get() - restoring.begin.get()) / 1e9 + ", \"ready_s\": " + ready
                + ", \"restored\": " + restoring.records.get() + ", \"rows\": " + rows + ", \"digest\": "
                + Long.toUnsignedString(digest) + "}");
        System.exit(0);
    }

    private static Properties config(final Properties parameters) {
        final Properties config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, parameters.getProperty("application_id"));
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, parameters.getProperty("bootstrap_servers"));
        config.put(StreamsConfig.STATE_DIR_CONFIG, parameters.getProperty("state_dir"));
        config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, parameters.getProperty("threads"));
        config.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        return config;
    }
}
