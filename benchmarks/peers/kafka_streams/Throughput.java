import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.processor.StateStore;

/**
 * Kafka Streams' programs of the suite throughput, in the style of its documentation.
 *
 * <p>Settings without an argument keep Kafka Streams' defaults. Runs until SIGTERM, then closes cleanly, which
 * commits its progress.
 */
public final class Throughput {
    private static final Duration WINDOW = Duration.ofSeconds(60);
    private static final Duration GAP = Duration.ofSeconds(20);

    private final StreamsBuilder builder = new StreamsBuilder();
    private final String input;
    private final String output;
    private final String other;
    private final boolean caching;

    private Throughput(final Properties parameters) {
        input = parameters.getProperty("input_topic");
        output = parameters.getProperty("output_topic");
        other = parameters.getProperty("other_topic");
        caching = Long.parseLong(parameters.getProperty("cache_bytes")) > 0;
    }

    /** Input of stateless_json. */
    public record Event(long id, String user, String kind, long cents, String note) {}

    /** Output of stateless_json. */
    public record Sale(long id, String kind, long cents) {}

    private void build(final String job) {
        switch (job) {
            case "stateless_json" -> statelessJson();
            case "count_by_key", "count_by_key_hot", "count_by_key_large" -> countByKey();
            case "tumbling_count" -> tumblingCount();
            case "session_count" -> sessionCount();
            case "stream_table_join", "interleaved_join" -> streamTableJoin();
            case "stream_stream_join" -> streamStreamJoin();
            case "foreign_key_join" -> foreignKeyJoin();
            case "word_count" -> wordCount();
            default -> throw new IllegalArgumentException("unknown job " + job);
        }
    }

    private void statelessJson() {
        builder.stream(input, Consumed.with(Serdes.String(), json(Event.class)))
                .filter((key, event) -> event.cents() >= 5_000)
                .map((key, event) ->
                        KeyValue.pair(event.user(), new Sale(event.id(), event.kind(), event.cents() * 119 / 100)))
                .to(output, Produced.with(Serdes.String(), json(Sale.class)));
    }

    private void countByKey() {
        byKey().count(counts()).toStream().to(output, Produced.with(Serdes.String(), Serdes.Long()));
    }

    private void tumblingCount() {
        final Serde<Windowed<String>> keys = WindowedSerdes.timeWindowedSerdeFrom(String.class, WINDOW.toMillis());
        byKey().windowedBy(TimeWindows.ofSizeWithNoGrace(WINDOW))
                .count(counts())
                .toStream()
                .to(output, Produced.with(keys, Serdes.Long()));
    }

    private void sessionCount() {
        byKey().windowedBy(SessionWindows.ofInactivityGapWithNoGrace(GAP))
                .count(counts())
                .toStream()
                .to(output, Produced.with(WindowedSerdes.sessionWindowedSerdeFrom(String.class), Serdes.Long()));
    }

    private void streamTableJoin() {
        stream(input)
                .join(table(other), Throughput::numbers, Joined.with(Serdes.String(), Serdes.ByteArray(), null))
                .to(output, Produced.with(Serdes.String(), Serdes.ByteArray()));
    }

    private void streamStreamJoin() {
        stream(input)
                .join(
                        stream(other),
                        Throughput::numbers,
                        JoinWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(10), Duration.ofSeconds(60)),
                        StreamJoined.with(Serdes.String(), Serdes.ByteArray(), Serdes.ByteArray()))
                .to(output, Produced.with(Serdes.String(), Serdes.ByteArray()));
    }

    private void foreignKeyJoin() {
        final KTable<String, byte[]> joined = table(input)
                .join(table(other), row -> new String(row, 12, 9, StandardCharsets.UTF_8), Throughput::numbers);
        joined.toStream().to(output, Produced.with(Serdes.String(), Serdes.ByteArray()));
    }

    private void wordCount() {
        builder.stream(input, Consumed.with(Serdes.ByteArray(), Serdes.String()))
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count(counts())
                .toStream()
                .to(output, Produced.with(Serdes.String(), Serdes.Long()));
    }

    /** Value of joins: the leading numbers of both values. */
    private static byte[] numbers(final byte[] left, final byte[] right) {
        final byte[] both = new byte[25];
        System.arraycopy(left, 0, both, 0, 12);
        both[12] = ' ';
        System.arraycopy(right, 0, both, 13, 12);
        return both;
    }

    private KStream<String, byte[]> stream(final String topic) {
        return builder.stream(topic, Consumed.with(Serdes.String(), Serdes.ByteArray()));
    }

    private KTable<String, byte[]> table(final String topic) {
        return builder.table(topic, Consumed.with(Serdes.String(), Serdes.ByteArray()));
    }

    private KGroupedStream<String, byte[]> byKey() {
        return stream(input).groupByKey(Grouped.with(Serdes.String(), Serdes.ByteArray()));
    }

    private <S extends StateStore> Materialized<String, Long, S> counts() {
        final Materialized<String, Long, S> counts = Materialized.as("counts");
        counts.withKeySerde(Serdes.String()).withValueSerde(Serdes.Long());
        return caching ? counts.withCachingEnabled() : counts.withCachingDisabled();
    }

    private static <T> Serde<T> json(final Class<T> type) {
        final ObjectMapper mapper = new ObjectMapper();
        final ObjectReader reader = mapper.readerFor(type);
        final ObjectWriter writer = mapper.writerFor(type);
        return Serdes.serdeFrom(
                (topic, value) -> {
                    try {
                        return writer.writeValueAsBytes(value);
                    } catch (final IOException e) {
                        throw new UncheckedIOException(e);
                    }
                },
                (topic, data) -> {
                    try {
                        return reader.readValue(data);
                    } catch (final IOException e) {
                        throw new UncheckedIOException(e);
                    }
                });
    }

    public static void main(final String[] args) throws InterruptedException {
        final Properties parameters = new Properties();
        for (final String arg : args) {
            final int equals = arg.indexOf('=');
            parameters.setProperty(arg.substring(0, equals), arg.substring(equals + 1));
        }
        final Throughput program = new Throughput(parameters);
        program.build(parameters.getProperty("job"));

        final KafkaStreams streams = new KafkaStreams(program.builder.build(), config(parameters));
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
        config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, parameters.getProperty("threads"));
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, parameters.getProperty("commit_interval_ms"));
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, parameters.getProperty("cache_bytes"));
        config.put(
                StreamsConfig.PROCESSING_GUARANTEE_CONFIG,
                "exactly_once".equals(parameters.getProperty("guarantee"))
                        ? StreamsConfig.EXACTLY_ONCE_V2
                        : StreamsConfig.AT_LEAST_ONCE);
        config.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        return config;
    }
}
