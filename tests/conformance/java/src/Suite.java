import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Uses of the official Java client of RocketMQ 5, against one broker or several.
 *
 * <p>A receive asks the next broker, and waits there for 5 s also while another one has messages. So with several
 * brokers (BROKERS) the time to receive in is longer, and a receive of each shows that there are no more
 * messages. The same messages must arrive.
 */
final class Suite {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final String NORMAL = "TROVE_JAVA_NORMAL";
    private static final String FIFO = "TROVE_JAVA_FIFO";
    private static final String DELAY = "TROVE_JAVA_DELAY";
    private static final String TRANSACTION = "TROVE_JAVA_TRANSACTION";
    private static final String MIXED = "TROVE_JAVA_MIXED";
    private static final int BODY_SIZE_MAX = 4 << 20;
    private static final int BROKERS = Integer.parseInt(Harness.setting("BROKERS", "1"));

    private Suite() {}

    // --- clients and messages -----------------------------------------------------------------------
    private static ClientConfiguration configuration() {
        var builder = ClientConfiguration.newBuilder();
        if (!Harness.setting("ACCESS_KEY", "").isEmpty()) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(
                Harness.setting("ACCESS_KEY", ""), Harness.setting("SECRET_KEY", "")));
        }
        return builder
            .setEndpoints(Harness.setting("ENDPOINTS", "127.0.0.1:8081"))
            .enableSsl(Boolean.parseBoolean(Harness.setting("SSL", "false")))
            .setRequestTimeout(Duration.ofSeconds(5))
            .build();
    }

    static Producer producer(String... topics) throws Exception {
        return Harness.closing(
            PROVIDER.newProducerBuilder().setClientConfiguration(configuration()).setTopics(topics).build());
    }

    private static Producer checkedProducer(TransactionChecker checker) throws Exception {
        return Harness.closing(PROVIDER.newProducerBuilder().setClientConfiguration(configuration())
            .setTopics(TRANSACTION).setTransactionChecker(checker).build());
    }

    private static FilterExpression tagged(String tag) {
        return new FilterExpression(tag, FilterExpressionType.TAG);
    }

    static SimpleConsumer steadyConsumer(String group, Map<String, FilterExpression> filters) throws Exception {
        return Harness.closing(PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration())
            .setConsumerGroup(group).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(filters).build());
    }

    private static SimpleConsumer bareConsumer(String group, String topic, FilterExpression filter) throws Exception {
        return steadyConsumer("TROVE_JAVA_" + group, Map.of(topic, filter));
    }

    /** With a position in every queue. */
    private static SimpleConsumer consumer(String group, String topic, FilterExpression filter) throws Exception {
        SimpleConsumer consumer = bareConsumer(group, topic, filter);
        for (MessageView message : receiveEverywhere(consumer, 15)) {
            consumer.ack(message);
        }
        return consumer;
    }

    /** The messages of a receive of each broker, side by side. */
    private static List<MessageView> receiveEverywhere(SimpleConsumer consumer, int invisibleSeconds) {
        List<CompletableFuture<List<MessageView>>> receives = IntStream.range(0, BROKERS)
            .mapToObj(i -> consumer.receiveAsync(16, Duration.ofSeconds(invisibleSeconds)))
            .collect(Collectors.toList());
        return receives.stream().flatMap(receive -> receive.join().stream()).collect(Collectors.toList());
    }

    private static void push(String group, String topic, String tag, Predicate<MessageView> succeeds)
        throws Exception {
        PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration())
            .setConsumerGroup("TROVE_JAVA_" + group).setSubscriptionExpressions(Map.of(topic, tagged(tag)))
            .setMessageListener(m -> succeeds.test(m) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE).build();
        Thread.sleep(2000); // its first poll gives the group a position
    }

    static MessageBuilder message(String topic, String text, String tag) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(text.getBytes(UTF_8)).setTag(tag);
    }

    private static byte[] body(MessageView message) {
        byte[] bytes = new byte[message.getBody().remaining()];
        message.getBody().get(bytes);
        return bytes;
    }

    static String text(MessageView message) {
        return new String(body(message), UTF_8);
    }

    private static List<String> texts(Collection<MessageView> messages) {
        return messages.stream().map(Suite::text).sorted().collect(Collectors.toList());
    }

    private static List<String> numbers(int count, Predicate<Integer> chosen) {
        return IntStream.range(0, count).boxed().filter(chosen).map(String::valueOf).sorted()
            .collect(Collectors.toList());
    }

    private static List<MessageView> take(SimpleConsumer consumer, int count, int withinSeconds) throws Exception {
        return take(consumer, count, withinSeconds, 20, true);
    }

    private static List<MessageView> take(
        SimpleConsumer consumer, int count, int withinSeconds, int invisibleSeconds, boolean ack) throws Exception {
        List<MessageView> taken = new ArrayList<>();
        long end = System.currentTimeMillis() + 1000L * withinSeconds * BROKERS;
        while (taken.size() < count && System.currentTimeMillis() < end) {
            for (MessageView message : consumer.receive(16, Duration.ofSeconds(invisibleSeconds))) {
                if (ack) {
                    consumer.ack(message);
                }
                taken.add(message);
            }
        }
        return taken;
    }

    /** By takes side by side: one waits at the message's broker when it is due. */
    private static MessageView first(SimpleConsumer consumer, int withinSeconds) throws Exception {
        CompletableFuture<MessageView> found = new CompletableFuture<>();
        for (int i = 0; i < BROKERS; i++) {
            Thread thread = new Thread(() -> {
                try {
                    take(consumer, 1, withinSeconds).forEach(found::complete);
                } catch (Exception error) {
                    found.completeExceptionally(error);
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        return found.get(1000L * withinSeconds * BROKERS + 6000, TimeUnit.MILLISECONDS);
    }

    private static MessageView one(List<MessageView> taken) {
        Harness.expect(taken.size(), 1, "messages");
        return taken.get(0);
    }

    // --- producing and receiving --------------------------------------------------------------------
    private static void plain() throws Exception {
        String tag = "plain" + Harness.RUN;
        SimpleConsumer consumer = consumer("plain", NORMAL, tagged(tag));
        Producer producer = producer(NORMAL);
        Set<String> sent = new TreeSet<>();
        for (int i = 0; i < 20; i++) {
            sent.add(producer.send(message(NORMAL, "" + i, tag).build()).getMessageId() + "=" + i);
        }
        List<MessageView> taken = take(consumer, 20, 20);
        Set<String> found = new TreeSet<>();
        taken.forEach(message -> found.add(message.getMessageId() + "=" + text(message)));
        Harness.expect(found, sent, "messages");
        Harness.expect(taken.stream().map(MessageView::getDeliveryAttempt).collect(Collectors.toSet()), Set.of(1),
            "attempts");
        Harness.expect(receiveEverywhere(consumer, 15).size(), 0, "messages left");
    }

    private static void carried() throws Exception {
        String tag = "carried" + Harness.RUN;
        SimpleConsumer consumer = consumer("carried", NORMAL, tagged(tag));
        Map<String, String> properties = Map.of("country", "Österreich", "日付", "十一月", "json", "{\"a\":[1,2]}");
        MessageBuilder builder = message(NORMAL, "Grüße, 世界 🌍", tag).setKeys("k1" + Harness.RUN, "k2");
        properties.forEach(builder::addProperty);
        producer(NORMAL).send(builder.build());
        MessageView message = one(take(consumer, 1, 15));
        Harness.expect(text(message), "Grüße, 世界 🌍", "body");
        Harness.expect(message.getTag().orElse(""), tag, "tag");
        Harness.expect(new HashSet<>(message.getKeys()), Set.of("k1" + Harness.RUN, "k2"), "keys");
        Harness.expect(message.getProperties(), properties, "properties");
        Harness.expect(message.getTopic(), NORMAL, "topic");
        Harness.expect(Math.abs(message.getBornTimestamp() - System.currentTimeMillis()) < 60_000, true,
            "born within the last minute");
    }

    private static void together() throws Exception {
        String tag = "together" + Harness.RUN;
        SimpleConsumer consumer = consumer("together", NORMAL, tagged(tag));
        Producer producer = producer(NORMAL);
        List<CompletableFuture<SendReceipt>> futures = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            futures.add(producer.sendAsync(message(NORMAL, "" + i, tag).build()));
        }
        Set<String> ids = new HashSet<>();
        for (CompletableFuture<SendReceipt> future : futures) {
            ids.add(future.get().getMessageId().toString());
        }
        Harness.expect(ids.size(), 100, "message ids");
        Harness.expect(texts(take(consumer, 100, 30)), numbers(100, i -> true), "bodies");
    }

    private static void large() throws Exception {
        String tag = "large" + Harness.RUN;
        SimpleConsumer consumer = consumer("large", NORMAL, tagged(tag));
        Producer producer = producer(NORMAL);
        byte[] bytes = new byte[BODY_SIZE_MAX];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) (i * 31);
        }
        producer.send(PROVIDER.newMessageBuilder().setTopic(NORMAL).setTag(tag).setBody(bytes).build());
        Harness.expect(Arrays.equals(body(one(take(consumer, 1, 20))), bytes), true, "the body is the same");
        byte[] larger = new byte[BODY_SIZE_MAX + 1];
        Harness.refused(() -> producer.send(
            PROVIDER.newMessageBuilder().setTopic(NORMAL).setTag(tag).setBody(larger).build()), "a larger body");
    }

    // --- refusals -----------------------------------------------------------------------------------
    private static void unknownTopics() throws Exception {
        Producer producer = producer(NORMAL);
        String unknown = "TROVE_NONE_" + Harness.RUN;
        Harness.refused(() -> producer.send(message(unknown, "x", "t").build()), "an unknown topic");
        Harness.refused(() -> producer.send(message("not a topic", "x", "t").build()), "an illegal topic");
        Harness.refused(() -> producer(unknown), "a producer that declares an unknown topic");
    }

    private static void otherKind() throws Exception {
        Producer producer = producer(NORMAL, FIFO);
        Harness.refused(() -> producer.send(message(FIFO, "x", "t").build()), "NORMAL in a FIFO topic");
        Harness.refused(() -> producer.send(message(NORMAL, "x", "t").setMessageGroup("g").build()),
            "FIFO in a NORMAL topic");
    }

    private static void mixed() throws Exception {
        String tag = "mixed" + Harness.RUN;
        SimpleConsumer consumer = consumer("mixed", MIXED, tagged(tag));
        Producer producer = producer(MIXED);
        producer.send(message(MIXED, "normal", tag).build());
        producer.send(message(MIXED, "ordered", tag).setMessageGroup("g").build());
        long due = System.currentTimeMillis() + 3000;
        producer.send(message(MIXED, "delayed", tag).setDeliveryTimestamp(due).build());
        Harness.expect(texts(take(consumer, 3, 25)), List.of("delayed", "normal", "ordered"), "bodies");
    }

    // --- filters ------------------------------------------------------------------------------------
    private static void tags() throws Exception {
        String[] tags = {"one" + Harness.RUN, "two" + Harness.RUN, "other" + Harness.RUN};
        SimpleConsumer consumer = consumer("tags", NORMAL, tagged(tags[0] + " || " + tags[1]));
        Producer producer = producer(NORMAL);
        for (int i = 0; i < 15; i++) {
            producer.send(message(NORMAL, "" + i, tags[i % 3]).build());
        }
        Harness.expect(texts(take(consumer, 10, 15)), numbers(15, i -> i % 3 < 2), "bodies");
    }

    private static void sql() throws Exception {
        String condition = "run = '" + Harness.RUN + "' AND (weight BETWEEN 10 AND 20 OR size IS NULL) "
            + "AND colour NOT IN ('red', 'green')";
        SimpleConsumer consumer =
            consumer("sql", NORMAL, new FilterExpression(condition, FilterExpressionType.SQL92));
        Producer producer = producer(NORMAL);
        String[][] rows = {
            {"weight fits", "weight", "15", "size", "1", "colour", "blue"},
            {"no size", "weight", "99", "colour", "blue"},
            {"too heavy", "weight", "20.5", "size", "1", "colour", "blue"},
            {"red", "weight", "15", "size", "1", "colour", "red"},
            {"no colour", "weight", "15", "size", "1"},
        };
        for (String[] row : rows) {
            MessageBuilder builder = message(NORMAL, row[0], "sql").addProperty("run", Harness.RUN);
            for (int i = 1; i < row.length; i += 2) {
                builder.addProperty(row[i], row[i + 1]);
            }
            producer.send(builder.build());
        }
        Harness.expect(texts(take(consumer, 3, 10)), List.of("no size", "weight fits"), "bodies");
    }

    // --- redelivery ---------------------------------------------------------------------------------
    private static void again() throws Exception {
        String tag = "again" + Harness.RUN;
        SimpleConsumer consumer = consumer("again", NORMAL, tagged(tag));
        SendReceipt receipt = producer(NORMAL).send(message(NORMAL, "again", tag).build());
        MessageView first = one(take(consumer, 1, 15, 10, false));
        MessageView second = one(take(consumer, 1, 30));
        Harness.expect(second.getMessageId().toString(), receipt.getMessageId().toString(), "message id");
        Harness.expect(List.of(first.getDeliveryAttempt(), second.getDeliveryAttempt()), List.of(1, 2), "attempts");
    }

    private static void changed() throws Exception {
        String tag = "changed" + Harness.RUN;
        SimpleConsumer consumer = consumer("changed", NORMAL, tagged(tag));
        producer(NORMAL).send(message(NORMAL, "changed", tag).build());
        MessageView first = one(take(consumer, 1, 15, 120, false));
        consumer.changeInvisibleDuration(first, Duration.ofSeconds(2));
        MessageView second = one(take(consumer, 1, 15));
        Harness.expect(second.getDeliveryAttempt(), 2, "attempt");
        Harness.expect(second.getMessageId().toString(), first.getMessageId().toString(), "message id");
    }

    // --- order --------------------------------------------------------------------------------------
    private static void ordered() throws Exception {
        String tag = "ordered" + Harness.RUN;
        SimpleConsumer consumer = consumer("ordered", FIFO, tagged(tag));
        Producer producer = producer(FIFO);
        for (int i = 0; i < 40; i++) {
            producer.send(message(FIFO, "" + i, tag).setMessageGroup(i % 4 + Harness.RUN).build());
        }
        List<MessageView> taken = take(consumer, 40, 40);
        for (int group = 0; group < 4; group++) {
            String name = group + Harness.RUN;
            List<Integer> found = taken.stream().filter(m -> m.getMessageGroup().orElse("").equals(name))
                .map(m -> Integer.parseInt(text(m))).collect(Collectors.toList());
            Harness.expect(found, inOrder(40, 4, group), "order of group " + group);
        }
    }

    private static List<Integer> inOrder(int count, int groups, int group) {
        return IntStream.range(0, count).filter(i -> i % groups == group).boxed().collect(Collectors.toList());
    }

    // --- time ---------------------------------------------------------------------------------------
    private static void delayed() throws Exception {
        String tag = "delayed" + Harness.RUN;
        SimpleConsumer consumer = consumer("delayed", DELAY, tagged(tag));
        long due = System.currentTimeMillis() + 6000;
        producer(DELAY).send(message(DELAY, "delayed", tag).setDeliveryTimestamp(due).build());
        MessageView message = first(consumer, 25);
        long lateMs = System.currentTimeMillis() - due;
        Harness.expect(text(message), "delayed", "body");
        Harness.expect(lateMs >= 0 && lateMs < 3000, true, lateMs + " ms after its time: on time");
    }

    private static void recalled() throws Exception {
        String tag = "recalled" + Harness.RUN;
        SimpleConsumer consumer = consumer("recalled", DELAY, tagged(tag));
        Producer producer = producer(DELAY);
        long due = System.currentTimeMillis() + 6000;
        SendReceipt receipt = producer.send(message(DELAY, "recalled", tag).setDeliveryTimestamp(due).build());
        producer.send(message(DELAY, "kept", tag).setDeliveryTimestamp(due).build());
        String recalled = producer.recallMessage(DELAY, receipt.getRecallHandle()).getMessageId().toString();
        Harness.expect(recalled, receipt.getMessageId().toString(), "recalled");
        Harness.expect(texts(take(consumer, 2, 14)), List.of("kept"), "bodies");
    }

    // --- transactions -------------------------------------------------------------------------------
    private static void transactions() throws Exception {
        String tag = "transaction" + Harness.RUN;
        SimpleConsumer consumer = consumer("transaction", TRANSACTION, tagged(tag));
        Set<String> asked = ConcurrentHashMap.newKeySet();
        Producer producer = checkedProducer(message -> {
            asked.add(text(message));
            return text(message).equals("asked, no") ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
        });
        Transaction committed = producer.beginTransaction();
        producer.send(message(TRANSACTION, "committed", tag).build(), committed);
        Transaction rolledBack = producer.beginTransaction();
        producer.send(message(TRANSACTION, "rolled back", tag).build(), rolledBack);
        Harness.expect(texts(receiveEverywhere(consumer, 20)), List.of(), "seen before the commit");
        committed.commit();
        rolledBack.rollback();
        producer.send(message(TRANSACTION, "asked, yes", tag).build(), producer.beginTransaction());
        producer.send(message(TRANSACTION, "asked, no", tag).build(), producer.beginTransaction());
        Harness.expect(texts(take(consumer, 2, 60)), List.of("asked, yes", "committed"), "seen");
        Harness.eventually(() -> asked.contains("asked, no"), 40, "asked about the last one");
        Harness.expect(texts(receiveEverywhere(consumer, 20)), List.of(), "seen after all");
        Harness.expect(asked, Set.of("asked, yes", "asked, no"), "asked about");
    }

    // --- push consumers -----------------------------------------------------------------------------
    private static void pushed() throws Exception {
        String tag = "pushed" + Harness.RUN;
        List<String> seen = new CopyOnWriteArrayList<>();
        push("pushed", NORMAL, tag, message -> seen.add(text(message)));
        Producer producer = producer(NORMAL);
        List<CompletableFuture<SendReceipt>> futures = new ArrayList<>();
        for (int i = 0; i < 200; i++) {
            futures.add(producer.sendAsync(message(NORMAL, "" + i, tag).build()));
        }
        for (CompletableFuture<SendReceipt> future : futures) {
            future.get();
        }
        Harness.eventually(() -> new HashSet<>(seen).size() == 200, 30, "200 messages");
        Harness.expect(seen.stream().sorted().collect(Collectors.toList()), numbers(200, i -> true), "each once");
    }

    private static void retried() throws Exception {
        String tag = "retried" + Harness.RUN;
        List<Integer> attempts = new CopyOnWriteArrayList<>();
        push("retrying", NORMAL, tag, message -> attempts.add(message.getDeliveryAttempt()) && attempts.size() >= 3);
        producer(NORMAL).send(message(NORMAL, "retried", tag).build());
        Harness.eventually(() -> attempts.size() >= 3, 40, "three attempts");
        Thread.sleep(3000);
        Harness.expect(attempts, List.of(1, 2, 3), "attempts");
    }

    private static void dead() throws Exception {
        String tag = "dead" + Harness.RUN;
        List<Integer> attempts = new CopyOnWriteArrayList<>();
        push("dying", NORMAL, tag, message -> !attempts.add(message.getDeliveryAttempt()));
        producer(NORMAL).send(message(NORMAL, "dead", tag).setKeys(tag).build());
        Harness.eventually(() -> attempts.size() >= 2, 30, "two attempts");
        String topic = "%DLQ%TROVE_JAVA_dying";
        List<MessageView> found = new ArrayList<>();
        SimpleConsumer reader = null;
        long end = System.currentTimeMillis() + 40_000;
        while (found.isEmpty() && System.currentTimeMillis() < end) {
            try {
                reader = reader == null ? bareConsumer("reader" + Harness.RUN, topic, tagged(tag)) : reader;
                found = take(reader, 1, 5);
            } catch (Exception notYet) {
                Thread.sleep(500); // the topic is made by the first dead letter
            }
        }
        MessageView message = one(found);
        Harness.expect(text(message), "dead", "body");
        Harness.expect(new HashSet<>(message.getKeys()), Set.of(tag), "keys");
        Harness.expect(attempts, List.of(1, 2), "attempts");
    }

    private static void pushedInOrder() throws Exception {
        String tag = "pushedordered" + Harness.RUN;
        List<String> seen = new CopyOnWriteArrayList<>();
        Set<String> failed = ConcurrentHashMap.newKeySet();
        push("pushed_ordered", FIFO, tag, message -> {
            if (text(message).equals("6") && failed.add("6")) {
                return false;
            }
            return seen.add(message.getMessageGroup().orElse("") + "=" + text(message));
        });
        Producer producer = producer(FIFO);
        for (int i = 0; i < 30; i++) {
            producer.send(message(FIFO, "" + i, tag).setMessageGroup(i % 3 + Harness.RUN).build());
        }
        Harness.eventually(() -> seen.size() >= 30, 45, "30 messages");
        for (int group = 0; group < 3; group++) {
            String prefix = group + Harness.RUN + "=";
            List<Integer> found = seen.stream().filter(text -> text.startsWith(prefix))
                .map(text -> Integer.parseInt(text.substring(prefix.length()))).collect(Collectors.toList());
            Harness.expect(found, inOrder(30, 3, group), "order of group " + group);
        }
    }

    public static void main(String[] chosen) throws Exception {
        Harness.define("what_is_sent_is_received_once_and_gone_when_acknowledged", Suite::plain);
        Harness.define("keys_tag_and_properties_come_back_as_they_were", Suite::carried);
        Harness.define("sends_in_flight_together_all_arrive", Suite::together);
        Harness.define("bodies_up_to_four_mebibytes_are_taken_and_larger_ones_refused", Suite::large);
        Harness.define("topics_that_are_unknown_or_illegal_are_refused", Suite::unknownTopics);
        Harness.define("a_message_of_another_kind_than_its_topic_is_refused", Suite::otherKind);
        Harness.define("a_mixed_topic_takes_every_kind", Suite::mixed);
        Harness.define("a_tag_expression_chooses", Suite::tags);
        Harness.define("an_sql_condition_chooses", Suite::sql);
        Harness.define("a_message_that_is_not_acknowledged_comes_again", Suite::again);
        Harness.define("the_invisible_duration_can_be_changed", Suite::changed);
        Harness.define("messages_of_one_group_arrive_in_order", Suite::ordered);
        Harness.define("a_delayed_message_comes_at_its_time", Suite::delayed);
        Harness.define("a_recalled_message_never_comes", Suite::recalled);
        Harness.define("transactions_are_seen_after_their_commit_only", Suite::transactions);
        Harness.define("a_push_consumer_gets_every_message_once", Suite::pushed);
        Harness.define("what_a_push_consumer_fails_at_is_tried_again_later", Suite::retried);
        Harness.define("what_fails_for_good_is_found_in_the_dead_letter_topic", Suite::dead);
        Harness.define("a_push_consumer_of_an_orderly_group_keeps_the_order", Suite::pushedInOrder);
        Harness.main(chosen);
    }
}
