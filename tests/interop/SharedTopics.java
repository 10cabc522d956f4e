import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
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
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.kstream.internals.TimeWindow;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.AggregationWithHeaders;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.SessionStoreWithHeaders;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.TimestampedKeyValueStoreWithHeaders;
import org.apache.kafka.streams.state.TimestampedWindowStoreWithHeaders;
import org.apache.kafka.streams.state.ValueTimestampHeaders;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Kafka's serializers and Kafka Streams on a real broker. Standard input has one command per line, a JSON object, and each
 * gets one line of answer: write and read records of a topic, start and stop an application. The topologies equal those of
 * shared_topologies.py.
 */
public final class SharedTopics {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Consumed<String, String> TEXT = Consumed.with(Serdes.String(), Serdes.String());
    private static final ValueJoiner<String, String, String> JOINER = (left, right) -> left + "-" + right;
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final long WINDOW_MS = 10_000;
    /** A consumer that closes waits for its last fetch. */
    private static final int FETCH_WAIT_MS = 20;

    private final String bootstrapServers;
    private final Map<String, KafkaStreams> apps = new HashMap<>();

    private SharedTopics(final String bootstrapServers) {
        this.bootstrapServers = bootstrapServers;
    }

    public static void main(final String[] arguments) throws IOException {
        final SharedTopics program = new SharedTopics(arguments[0]);
        final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        final BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            final ObjectNode answer = JSON.createObjectNode();
            try {
                program.carryOut(JSON.readTree(line), answer);
            } catch (final RuntimeException | InterruptedException | ExecutionException error) {
                error.printStackTrace();
                answer.put("error", error.toString());
            }
            out.println(JSON.writeValueAsString(answer));
        }
        program.apps.values().forEach(app -> app.close(CloseOptions.timeout(Duration.ofSeconds(1))));
    }

    private void carryOut(final JsonNode order, final ObjectNode answer)
        throws IOException, InterruptedException, ExecutionException {
        switch (order.get("do").asText()) {
            case "write":
                write(order);
                break;
            case "read":
                answer.set("records", read(order));
                break;
            case "start":
                start(order);
                break;
            case "stop":
                stop(order);
                break;
            default:
                throw new IllegalArgumentException("what is " + order);
        }
    }

    private void write(final JsonNode order) throws IOException, InterruptedException, ExecutionException {
        final Serde<Object> keys = serde(order.get("key").asText());
        final Serde<Object> values = serde(order.get("value").asText());
        final String topic = order.get("topic").asText();
        final Map<String, Object> config = Map.of("bootstrap.servers", bootstrapServers);
        try (KafkaProducer<byte[], byte[]> producer =
                 new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (final JsonNode record : order.get("records")) {
                producer.send(new ProducerRecord<>(topic, null, record.get(2).asLong(),
                    keys.serializer().serialize(topic, fromJson(order.get("key").asText(), record.get(0))),
                    values.serializer().serialize(topic, fromJson(order.get("value").asText(), record.get(1))),
                    headers(record.path(3)))).get();
            }
        }
    }

    private static Headers headers(final JsonNode pairs) {
        final Headers headers = new RecordHeaders();
        for (final JsonNode pair : pairs) {
            final String value = pair.get(1).textValue();
            headers.add(pair.get(0).asText(), value == null ? null : value.getBytes(StandardCharsets.UTF_8));
        }
        return headers;
    }

    private ArrayNode read(final JsonNode order) {
        final Serde<Object> keys = serde(order.get("key").asText());
        final Serde<Object> values = serde(order.get("value").asText());
        final String topic = order.get("topic").asText();
        final ArrayNode records = JSON.createArrayNode();
        final Map<String, Object> config = Map.of(
            "bootstrap.servers", bootstrapServers,
            ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed",
            ConsumerConfig.FETCH_MAX_WAIT_MS_CONFIG, FETCH_WAIT_MS);
        try (KafkaConsumer<byte[], byte[]> consumer =
                 new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            final List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                .map(each -> new TopicPartition(topic, each.partition())).collect(Collectors.toList());
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            final Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(each -> consumer.position(each) < ends.get(each))) {
                for (final ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(50))) {
                    records.addArray()
                        .add(toJson(keys.deserializer().deserialize(topic, record.key())))
                        .add(toJson(values.deserializer().deserialize(topic, record.value())))
                        .add(record.timestamp());
                }
            }
        }
        return records;
    }

    private void start(final JsonNode order) throws InterruptedException {
        final String id = order.get("application_id").asText();
        final Properties config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, id);
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrapServers);
        config.put(StreamsConfig.STATE_DIR_CONFIG, order.get("state_dir").asText());
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, order.get("guarantee").asText());
        config.put(StreamsConfig.DSL_STORE_FORMAT_CONFIG, order.get("store_format").asText());
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 50);
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        // Scan for unmatched records and closed windows at every record.
        config.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_OUTER_JOIN_SPURIOUS_RESULTS_FIX, 0L);
        config.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_WINDOWED_AGGREGATION, 0L);
        config.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        config.put(StreamsConfig.consumerPrefix(ConsumerConfig.FETCH_MAX_WAIT_MS_CONFIG), FETCH_WAIT_MS);
        final StreamsBuilder builder = new StreamsBuilder();
        build(builder, order.get("name").asText(), order.get("prefix").asText());
        final KafkaStreams app = new KafkaStreams(builder.build(config), config);
        apps.put(id, app);
        app.start();
        final long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (app.state() != KafkaStreams.State.RUNNING) {
            if (app.state() == KafkaStreams.State.ERROR || System.nanoTime() > deadline) {
                throw new IllegalStateException("the application is " + app.state());
            }
            Thread.sleep(10);
        }
    }

    private void stop(final JsonNode order) {
        final CloseOptions.GroupMembershipOperation operation = order.get("leave_group").asBoolean()
            ? CloseOptions.GroupMembershipOperation.LEAVE_GROUP
            : CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP;
        final KafkaStreams app = apps.remove(order.get("application_id").asText());
        if (!app.close(CloseOptions.timeout(PATIENCE).withGroupMembershipOperation(operation))) {
            throw new IllegalStateException("the application does not close");
        }
    }

    private static void build(final StreamsBuilder builder, final String name, final String prefix) {
        switch (name) {
            case "counts":
                counts(builder, prefix);
                break;
            case "windows":
                windows(builder, prefix);
                break;
            case "stream_join":
                streamJoin(builder, prefix);
                break;
            case "table_join":
                tableJoin(builder, prefix);
                break;
            case "versions_and_headers":
                versions(builder, prefix);
                headers(builder, prefix);
                break;
            default:
                throw new IllegalArgumentException("no topology " + name);
        }
    }

    private static void counts(final StreamsBuilder builder, final String prefix) {
        builder.stream(prefix + "-left", TEXT)
            .groupBy((key, value) -> value, Grouped.with("by-value", Serdes.String(), Serdes.String()))
            .count(Materialized.as("counts"))
            .toStream().to(prefix + "-out", Produced.with(Serdes.String(), Serdes.Long()));
    }

    private static void windows(final StreamsBuilder builder, final String prefix) {
        final KGroupedStream<String, String> grouped = builder.stream(prefix + "-left", TEXT).groupByKey();
        final KTable<Windowed<String>, Long> windowed = grouped
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(WINDOW_MS), Duration.ofSeconds(5)))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("windows"));
        final Serde<Windowed<String>> keys = WindowedSerdes.timeWindowedSerdeFrom(String.class, WINDOW_MS);
        windowed.toStream().to(prefix + "-out", Produced.with(keys, Serdes.Long()));
        windowed.suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()).withName("final"))
            .toStream().to(prefix + "-final", Produced.with(keys, Serdes.Long()));
        grouped.windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofSeconds(5), Duration.ofSeconds(5)))
            .count(Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("sessions"))
            .toStream().to(prefix + "-sessions", Produced.with(
                WindowedSerdes.sessionWindowedSerdeFrom(String.class), Serdes.Long()));
    }

    private static void streamJoin(final StreamsBuilder builder, final String prefix) {
        builder.stream(prefix + "-left", TEXT)
            .outerJoin(builder.stream(prefix + "-right", TEXT), JOINER,
                JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(WINDOW_MS), Duration.ofSeconds(5)),
                StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String()).withName("join").withStoreName("join"))
            .to(prefix + "-out");
    }

    private static void tableJoin(final StreamsBuilder builder, final String prefix) {
        final KTable<String, String> left = builder.table(prefix + "-left", TEXT, Materialized.as("left"));
        final KTable<String, String> right = builder.table(prefix + "-right", TEXT, Materialized.as("right"));
        left.leftJoin(right, value -> value.substring(0, 1), JOINER,
                Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("by-foreign-key"))
            .toStream().to(prefix + "-out");
        left.outerJoin(right, JOINER, Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("by-key"))
            .toStream().to(prefix + "-same");
    }

    private static void versions(final StreamsBuilder builder, final String prefix) {
        final KTable<String, String> table = builder.table(prefix + "-right", TEXT, Materialized.as(
            Stores.persistentVersionedKeyValueStore("versions", Duration.ofMinutes(10))));
        builder.stream(prefix + "-left", TEXT).leftJoin(table, JOINER,
            Joined.with(Serdes.String(), Serdes.String(), Serdes.String(), "join", Duration.ofSeconds(5))).to(prefix + "-out");
    }

    private static void headers(final StreamsBuilder builder, final String prefix) {
        final KStream<String, String> stream = builder.stream(prefix + "-left", TEXT);
        final KGroupedStream<String, String> grouped = stream.groupByKey();
        grouped.count(Materialized.as("counts")).toStream().to(prefix + "-counts", Produced.with(Serdes.String(), Serdes.Long()));
        grouped.windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(WINDOW_MS), Duration.ofSeconds(5)))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("windows")).toStream()
            .to(prefix + "-windows", Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, WINDOW_MS), Serdes.Long()));
        final Duration retention = Duration.ofHours(1);
        builder.addStateStore(Stores.timestampedKeyValueStoreWithHeadersBuilder(
            Stores.persistentTimestampedKeyValueStoreWithHeaders("by-key"), Serdes.String(), Serdes.String()));
        builder.addStateStore(Stores.timestampedWindowStoreWithHeadersBuilder(
            Stores.persistentTimestampedWindowStoreWithHeaders("by-window", retention, Duration.ofMillis(WINDOW_MS), false),
            Serdes.String(), Serdes.String()));
        builder.addStateStore(Stores.sessionStoreWithHeadersBuilder(
            Stores.persistentSessionStoreWithHeaders("by-session", retention), Serdes.String(), Serdes.String()));
        stream.process(Before::new, "by-key", "by-window", "by-session").to(prefix + "-before");
    }

    /** Stores each record with headers in every kind of store; forwards the previous ones. */
    private static final class Before extends ContextualProcessor<String, String, String, String> {
        @Override
        public void process(final Record<String, String> record) {
            final TimestampedKeyValueStoreWithHeaders<String, String> byKey = context().getStateStore("by-key");
            final TimestampedWindowStoreWithHeaders<String, String> byWindow = context().getStateStore("by-window");
            final SessionStoreWithHeaders<String, String> bySession = context().getStateStore("by-session");
            final String key = record.key();
            final long start = record.timestamp() / WINDOW_MS * WINDOW_MS;
            final ValueTimestampHeaders<String> kept =
                ValueTimestampHeaders.make(record.value(), record.timestamp(), record.headers());
            forward(record, byKey.get(key));
            byKey.put(key, kept);
            forward(record, byWindow.fetch(key, start));
            byWindow.put(key, kept, start);
            final AggregationWithHeaders<String> before = bySession.fetchSession(key, start, start + 1);
            if (before != null) {
                context().forward(record.withValue(before.aggregation()).withHeaders(before.headers()));
            }
            bySession.put(new Windowed<>(key, new SessionWindow(start, start + 1)),
                AggregationWithHeaders.make(record.value(), record.headers()));
        }

        private void forward(final Record<String, String> record, final ValueTimestampHeaders<String> before) {
            if (before != null) {
                context().forward(record.withValue(before.value()).withTimestamp(before.timestamp())
                    .withHeaders(before.headers()));
            }
        }
    }

    @SuppressWarnings("unchecked")
    private static Serde<Object> serde(final String name) {
        return (Serde<Object>) (Serde<?>) plainSerde(name);
    }

    private static Serde<?> plainSerde(final String name) {
        switch (name) {
            case "string":
                return Serdes.String();
            case "int64":
                return Serdes.Long();
            case "int32":
                return Serdes.Integer();
            case "float64":
                return Serdes.Double();
            case "boolean":
                return Serdes.Boolean();
            case "uuid":
                return Serdes.UUID();
            case "bytes":
                return Serdes.Bytes();
            case "windowed":
                return WindowedSerdes.timeWindowedSerdeFrom(String.class, WINDOW_MS);
            case "session_windowed":
                return WindowedSerdes.sessionWindowedSerdeFrom(String.class);
            default:
                throw new IllegalArgumentException("no serde " + name);
        }
    }

    private static Object fromJson(final String serde, final JsonNode value) throws IOException {
        if (value.isNull()) {
            return null;
        }
        switch (serde) {
            case "int64":
                return value.asLong();
            case "int32":
                return value.asInt();
            case "float64":
                return Double.parseDouble(value.asText());
            case "boolean":
                return value.asBoolean();
            case "uuid":
                return UUID.fromString(value.asText());
            case "bytes":
                return Bytes.wrap(value.binaryValue());
            case "windowed":
                return new Windowed<>(value.get(0).asText(), new TimeWindow(value.get(1).asLong(), value.get(2).asLong()));
            case "session_windowed":
                return new Windowed<>(value.get(0).asText(), new SessionWindow(value.get(1).asLong(), value.get(2).asLong()));
            default:
                return value.asText();
        }
    }

    private static JsonNode toJson(final Object value) {
        if (value instanceof Bytes) {
            return JSON.getNodeFactory().textNode(Base64.getEncoder().encodeToString(((Bytes) value).get()));
        }
        if (value instanceof Windowed) {
            final Windowed<?> windowed = (Windowed<?>) value;
            return JSON.createArrayNode()
                .add((String) windowed.key()).add(windowed.window().start()).add(windowed.window().end());
        }
        // Numbers that JSON does not have, and UUIDs, are their text.
        return JSON.valueToTree(value instanceof UUID || value instanceof Double ? value.toString() : value);
    }
}
