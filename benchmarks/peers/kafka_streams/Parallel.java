import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.locks.LockSupport;
import java.util.function.ToLongFunction;
import java.util.zip.CRC32;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams' program of the suite parallel: a count per key with a blocking call.
 *
 * <p>Runs until SIGTERM, then closes cleanly. One partition is one task with one thread: more threads change nothing.
 */
public final class Parallel {
    private Parallel() {}

    /** Reads, waits, writes. */
    private static final class Count extends ContextualProcessor<String, byte[], String, Long> {
        private final ToLongFunction<byte[]> waitMicros;
        private KeyValueStore<String, Long> counts;

        Count(final ToLongFunction<byte[]> waitMicros) {
            this.waitMicros = waitMicros;
        }

        @Override
        public void init(final ProcessorContext<String, Long> context) {
            super.init(context);
            counts = context.getStateStore("counts");
        }

        @Override
        public void process(final Record<String, byte[]> record) {
            final Long before = counts.get(record.key());
            final long seen = before == null ? 0 : before;
            final long until = System.nanoTime() + waitMicros.applyAsLong(record.value()) * 1_000;
            // Thread.sleep would round up to whole milliseconds.
            for (long left = until - System.nanoTime(); left > 0; left = until - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            counts.put(record.key(), seen + 1);
            context().forward(record.withValue(seen + 1));
        }
    }

    /** Makes processors with their store. */
    private static final class Supplier implements ProcessorSupplier<String, byte[], String, Long> {
        private final ToLongFunction<byte[]> waitMicros;

        Supplier(final ToLongFunction<byte[]> waitMicros) {
            this.waitMicros = waitMicros;
        }

        @Override
        public Processor<String, byte[], String, Long> get() {
            return new Count(waitMicros);
        }

        @Override
        public Set<StoreBuilder<?>> stores() {
            return Set.of(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore("counts"), Serdes.String(), Serdes.Long()));
        }
    }

    private static ToLongFunction<byte[]> waitMicros(final String job) {
        switch (job) {
            case "blocking_10ms":
                return value -> 10_000;
            case "sleep_0_5ms":
                return value -> {
                    final CRC32 crc = new CRC32();
                    crc.update(value);
                    return crc.getValue() % 5_001;
                };
            default:
                throw new IllegalArgumentException("no such job here: " + job);
        }
    }

    public static void main(final String[] args) throws InterruptedException {
        final Properties parameters = new Properties();
        for (final String arg : args) {
            final int equals = arg.indexOf('=');
            parameters.setProperty(arg.substring(0, equals), arg.substring(equals + 1));
        }
        final StreamsBuilder builder = new StreamsBuilder();
        builder.stream(parameters.getProperty("input_topic"), Consumed.with(Serdes.String(), Serdes.ByteArray()))
                .process(new Supplier(waitMicros(parameters.getProperty("job"))))
                .to(parameters.getProperty("output_topic"), Produced.with(Serdes.String(), Serdes.Long()));

        final KafkaStreams streams = new KafkaStreams(builder.build(), config(parameters));
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
        return config;
    }
}
