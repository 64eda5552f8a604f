import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** The remoting client of RocketMQ 5: the broker's address is given as that of a nameserver. */
public final class Suite {
    private static final String ADDRESS = Harness.setting("ENDPOINTS", "127.0.0.1:8081");
    private static final String NORMAL = "TROVE_REMOTING_NORMAL";
    private static final String FIFO = "TROVE_REMOTING_FIFO";
    private static final String DELAY = "TROVE_REMOTING_DELAY";
    private static final String TRANSACTION = "TROVE_REMOTING_TRANSACTION";

    private static final int PATIENCE_MS = 20_000;

    private Suite() {}

    private static DefaultMQProducer producer(String name) throws Exception {
        DefaultMQProducer made = new DefaultMQProducer("producers-" + name + "-" + Harness.RUN);
        configure(made, name);
        made.setSendMsgTimeout(PATIENCE_MS);
        made.start();
        Harness.closing((AutoCloseable) made::shutdown);
        return made;
    }

    /** The client's time limits of 3 s are short for a machine on which twenty cases run at a time. */
    private static void configure(ClientConfig made, String name) {
        made.setNamesrvAddr(ADDRESS);
        made.setInstanceName(name + Harness.RUN);
        made.setMqClientApiTimeout(PATIENCE_MS);
    }

    private static DefaultMQPushConsumer consumer(String group, String name) {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer(group + "-" + Harness.RUN);
        configure(made, name);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        Harness.closing((AutoCloseable) made::shutdown);
        return made;
    }

    private static String tag(String name) {
        return name + Harness.RUN;
    }

    private static Message message(String topic, String name, String body) {
        Message made = new Message(topic, tag(name), body.getBytes(StandardCharsets.UTF_8));
        made.setKeys(tag(name) + "-" + body);
        return made;
    }

    private static String body(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static MessageListenerConcurrently into(List<String> bodies) {
        return (messages, context) -> {
            messages.forEach(message -> bodies.add(body(message)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    private static List<String> numbers(int count) {
        List<String> made = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            made.add(String.valueOf(number));
        }
        return made;
    }

    private static void received(List<String> bodies, int count, String what) throws Exception {
        Harness.eventually(() -> new HashSet<>(bodies).size() >= count, 30, what);
        Harness.expect(new HashSet<>(bodies), new HashSet<>(numbers(count)), what);
    }

    private static void sendAndConsume() throws Exception {
        DefaultMQProducer producer = producer("plain");
        for (String number : numbers(40)) {
            SendResult sent = producer.send(message(NORMAL, "plain", number));
            Harness.expect(sent.getSendStatus(), SendStatus.SEND_OK, "the send");
        }
        List<String> bodies = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = consumer("plain", "plain");
        consumer.subscribe(NORMAL, tag("plain"));
        consumer.registerMessageListener(into(bodies));
        consumer.start();
        received(bodies, 40, "messages consumed");
        Harness.expect(bodies.size(), 40, "deliveries");
    }

    private static void requestReply() throws Exception {
        DefaultMQProducer producer = producer("request");
        DefaultMQProducer replier = producer("reply");
        DefaultMQPushConsumer consumer = consumer("request", "request");
        consumer.subscribe(NORMAL, tag("request"));
        MessageListenerConcurrently replying = (messages, context) -> {
            try {
                for (MessageExt one : messages) {
                    replier.send(MessageUtil.createReplyMessage(one, ("re: " + body(one)).getBytes(StandardCharsets.UTF_8)));
                }
            } catch (Exception failed) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
        consumer.registerMessageListener(replying);
        consumer.start();
        Message reply = producer.request(message(NORMAL, "request", "ask"), 30_000);
        Harness.expect(new String(reply.getBody(), StandardCharsets.UTF_8), "re: ask", "the reply");
    }

    private static void sendAsync() throws Exception {
        DefaultMQProducer producer = producer("async");
        CountDownLatch left = new CountDownLatch(500);
        List<Throwable> faults = new CopyOnWriteArrayList<>();
        for (String number : numbers(500)) {
            producer.send(message(NORMAL, "async", number), new SendCallback() {
                @Override
                public void onSuccess(SendResult sent) {
                    left.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    faults.add(error);
                    left.countDown();
                }
            });
        }
        Harness.expect(left.await(30, TimeUnit.SECONDS), true, "all are answered");
        Harness.expect(faults, List.of(), "faults");
        List<String> bodies = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = consumer("async", "async");
        consumer.subscribe(NORMAL, tag("async"));
        consumer.registerMessageListener(into(bodies));
        consumer.start();
        received(bodies, 500, "messages consumed");
    }

    private static void sendOneWay() throws Exception {
        DefaultMQProducer producer = producer("oneway");
        for (String number : numbers(20)) {
            producer.sendOneway(message(NORMAL, "oneway", number));
        }
        List<String> bodies = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = consumer("oneway", "oneway");
        consumer.subscribe(NORMAL, tag("oneway"));
        consumer.registerMessageListener(into(bodies));
        consumer.start();
        received(bodies, 20, "messages consumed");
    }

    private static void sendBatch() throws Exception {
        DefaultMQProducer producer = producer("batch");
        List<Message> batch = new ArrayList<>();
        numbers(64).forEach(number -> batch.add(message(NORMAL, "batch", number)));
        Harness.expect(producer.send(batch).getSendStatus(), SendStatus.SEND_OK, "the send");
        List<String> bodies = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = consumer("batch", "batch");
        consumer.subscribe(NORMAL, tag("batch"));
        consumer.registerMessageListener(into(bodies));
        consumer.start();
        received(bodies, 64, "messages consumed");
    }

    private static void compressed() throws Exception {
        DefaultMQProducer producer = producer("large");
        String large = "0123456789".repeat(2_000);
        producer.send(message(NORMAL, "large", large));
        List<String> bodies = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = consumer("large", "large");
        consumer.subscribe(NORMAL, tag("large"));
        consumer.registerMessageListener(into(bodies));
        consumer.start();
        Harness.eventually(() -> !bodies.isEmpty(), 30, "the message is consumed");
        Harness.expect(bodies.get(0), large, "the body");
    }

    private static void sqlFilter() throws Exception {
        DefaultMQProducer producer = producer("sql");
        for (String number : numbers(10)) {
            Message made = message(NORMAL, "sql", number);
            made.putUserProperty("n" + Harness.RUN, number);
            producer.send(made);
        }
        List<String> bodies = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = consumer("sql", "sql");
        consumer.subscribe(NORMAL, MessageSelector.bySql("n" + Harness.RUN + " >= 7"));
        consumer.registerMessageListener(into(bodies));
        consumer.start();
        Harness.eventually(() -> bodies.size() >= 3, 30, "messages consumed");
        Harness.expect(new HashSet<>(bodies), Set.of("7", "8", "9"), "those that match");
    }

    private static void delayLevel() throws Exception {
        DefaultMQProducer producer = producer("delay");
        Message made = message(DELAY, "delay", "later");
        made.setDelayTimeLevel(2); // 5 s
        List<Long> delays = new CopyOnWriteArrayList<>();
        long sent = System.currentTimeMillis();
        DefaultMQPushConsumer consumer = consumer("delay", "delay");
        consumer.subscribe(DELAY, tag("delay"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            delays.add(System.currentTimeMillis() - sent);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        producer.send(made);
        Harness.eventually(() -> !delays.isEmpty(), 30, "the message is consumed");
        Harness.expect(delays.get(0) >= 4_900, true, "after " + delays.get(0) + " ms, not before 5 s");
    }

    private static void orderly() throws Exception {
        DefaultMQProducer producer = producer("ordered");
        for (String number : numbers(60)) {
            Message made = message(NORMAL, "ordered", number);
            int key = Integer.parseInt(number) % 3;
            producer.send(made, (queues, ignored, chosen) -> queues.get((Integer) chosen), key);
        }
        Map<Integer, List<Integer>> seen = new ConcurrentHashMap<>();
        List<String> bodies = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = consumer("ordered", "ordered");
        consumer.subscribe(NORMAL, tag("ordered"));
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt one : messages) {
                int number = Integer.parseInt(body(one));
                seen.computeIfAbsent(number % 3, ignored -> Collections.synchronizedList(new ArrayList<>()))
                    .add(number);
                bodies.add(body(one));
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        received(bodies, 60, "messages consumed");
        seen.values().forEach(one -> {
            List<Integer> sorted = new ArrayList<>(one);
            Collections.sort(sorted);
            Harness.expect(one, sorted, "the order of a queue");
        });
    }

    private static void twoMembers() throws Exception {
        List<String> bodies = new CopyOnWriteArrayList<>();
        Map<String, Set<Integer>> queues = new ConcurrentHashMap<>();
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        for (String name : List.of("first", "second")) {
            DefaultMQPushConsumer one = consumer("shared", "shared" + name);
            one.subscribe(NORMAL, tag("shared"));
            one.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                queues.computeIfAbsent(name, ignored -> ConcurrentHashMap.newKeySet())
                    .add(context.getMessageQueue().getQueueId());
                messages.forEach(message -> bodies.add(body(message)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            one.start();
            members.add(one);
        }
        Thread.sleep(3_000);
        DefaultMQProducer producer = producer("shared");
        for (String number : numbers(80)) {
            producer.send(message(NORMAL, "shared", number));
        }
        received(bodies, 80, "messages consumed");
        Harness.expect(queues.get("first").size(), 2, "queues of the first");
        Harness.expect(queues.get("second").size(), 2, "queues of the second");
        members.get(0).shutdown();
        bodies.clear();
        for (String number : numbers(40)) {
            producer.send(message(NORMAL, "shared", number));
        }
        received(bodies, 40, "messages consumed by the one that is left");
    }

    private static void broadcasting() throws Exception {
        List<String> first = new CopyOnWriteArrayList<>();
        List<String> second = new CopyOnWriteArrayList<>();
        for (List<String> bodies : List.of(first, second)) {
            DefaultMQPushConsumer one = consumer("broadcast", "broadcast" + (bodies == first ? 1 : 2));
            one.setMessageModel(MessageModel.BROADCASTING);
            one.subscribe(NORMAL, tag("broadcast"));
            one.registerMessageListener(into(bodies));
            one.start();
        }
        Thread.sleep(2_000);
        DefaultMQProducer producer = producer("broadcast");
        for (String number : numbers(10)) {
            producer.send(message(NORMAL, "broadcast", number));
        }
        received(first, 10, "messages of the first");
        received(second, 10, "messages of the second");
    }

    private static void litePull() throws Exception {
        DefaultMQProducer producer = producer("pulled");
        for (String number : numbers(30)) {
            producer.send(message(NORMAL, "pulled", number));
        }
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("pulled-" + Harness.RUN);
        configure(consumer, "pulled");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(NORMAL, tag("pulled"));
        Harness.closing((AutoCloseable) consumer::shutdown);
        consumer.start();
        List<String> bodies = new ArrayList<>();
        Harness.eventually(() -> {
            consumer.poll(200).forEach(message -> bodies.add(body(message)));
            return bodies.size() >= 30;
        }, 30, "messages polled");
        Harness.expect(new HashSet<>(bodies), new HashSet<>(numbers(30)), "the messages");
        consumer.commitSync();
    }

    private static void continues() throws Exception {
        DefaultMQProducer producer = producer("again");
        List<String> bodies = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer first = consumer("again", "again1");
        first.subscribe(NORMAL, tag("again"));
        first.registerMessageListener(into(bodies));
        first.start();
        for (String number : numbers(10)) {
            producer.send(message(NORMAL, "again", number));
        }
        received(bodies, 10, "messages consumed");
        first.shutdown(); // it stores its offsets
        bodies.clear();
        producer.send(message(NORMAL, "again", "0"));
        DefaultMQPushConsumer second = consumer("again", "again2");
        second.subscribe(NORMAL, tag("again"));
        second.registerMessageListener(into(bodies));
        second.start();
        Harness.eventually(() -> !bodies.isEmpty(), 30, "the next message is consumed");
        Thread.sleep(1_000);
        Harness.expect(bodies.size(), 1, "deliveries after the start");
    }

    private static void retries() throws Exception {
        DefaultMQProducer producer = producer("failing");
        producer.send(message(NORMAL, "failing", "one"));
        List<Integer> attempts = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = consumer("failing", "failing");
        consumer.subscribe(NORMAL, tag("failing"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt one : messages) {
                attempts.add(one.getReconsumeTimes());
                Harness.expect(one.getTopic(), NORMAL, "the topic that the listener sees");
            }
            context.setDelayLevelWhenNextConsume(1);
            return attempts.size() < 3
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Harness.eventually(() -> attempts.size() >= 3, 60, "three attempts");
        Harness.expect(attempts, List.of(0, 1, 2), "the attempts");
    }

    private static void deadLetter() throws Exception {
        DefaultMQProducer producer = producer("dying");
        producer.send(message(NORMAL, "dying", "one"));
        DefaultMQPushConsumer consumer = consumer("dying", "dying");
        consumer.setMaxReconsumeTimes(1);
        consumer.subscribe(NORMAL, tag("dying"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        List<String> letters = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer reader = consumer("letters", "letters");
        reader.subscribe("%DLQ%dying-" + Harness.RUN, "*");
        reader.registerMessageListener(into(letters));
        reader.start();
        Harness.eventually(() -> letters.size() == 1, 70, "the dead letter");
    }

    private static TransactionMQProducer transactions(
            String name, Map<String, LocalTransactionState> first, Map<String, LocalTransactionState> checked)
            throws Exception {
        TransactionMQProducer made = new TransactionMQProducer("producers-" + name + "-" + Harness.RUN);
        configure(made, name);
        made.setSendMsgTimeout(PATIENCE_MS);
        made.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return first.get(new String(message.getBody(), StandardCharsets.UTF_8));
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return checked.getOrDefault(body(message), LocalTransactionState.UNKNOW);
            }
        });
        made.start();
        Harness.closing((AutoCloseable) made::shutdown);
        return made;
    }

    private static void transaction() throws Exception {
        Map<String, LocalTransactionState> first = Map.of(
            "committed", LocalTransactionState.COMMIT_MESSAGE,
            "rolled back", LocalTransactionState.ROLLBACK_MESSAGE,
            "later", LocalTransactionState.UNKNOW);
        TransactionMQProducer producer =
            transactions("deals", first, Map.of("later", LocalTransactionState.COMMIT_MESSAGE));
        for (String body : List.of("committed", "rolled back", "later")) {
            producer.sendMessageInTransaction(message(TRANSACTION, "deals", body), null);
        }
        List<String> bodies = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = consumer("deals", "deals");
        consumer.subscribe(TRANSACTION, tag("deals"));
        consumer.registerMessageListener(into(bodies));
        consumer.start();
        Harness.eventually(() -> bodies.size() >= 2, 60, "both that are committed");
        Harness.expect(new HashSet<>(bodies), Set.of("committed", "later"), "the messages");
    }

    private static void lookUps() throws Exception {
        DefaultMQProducer producer = producer("found");
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(NORMAL);
        Harness.expect(queues.size(), 4, "queues of the route");
        producer.send(message(NORMAL, "found", "one"), queues.get(1));
        Harness.expect(producer.maxOffset(queues.get(1)) > 0, true, "an offset");
        Harness.expect(producer.minOffset(queues.get(1)), 0L, "the first offset");
        Harness.expect(producer.searchOffset(queues.get(1), 0), 0L, "the offset of a time");
    }

    private static void misuse() throws Exception {
        DefaultMQProducer producer = producer("wrong");
        Harness.refused(() -> producer.send(message("TROVE_REMOTING_ABSENT", "wrong", "one")), "an absent topic");
        Harness.refused(() -> producer.send(message(FIFO, "wrong", "one")), "a FIFO topic without a message group");
        Harness.expect(
            producer.send(message(NORMAL, "wrong", "one")).getSendStatus(), SendStatus.SEND_OK, "the next send");
    }

    public static void main(String[] chosen) throws Exception {
        Harness.define("send_and_consume", Suite::sendAndConsume);
        Harness.define("send_async", Suite::sendAsync);
        Harness.define("send_one_way", Suite::sendOneWay);
        Harness.define("send_batch", Suite::sendBatch);
        Harness.define("compressed", Suite::compressed);
        Harness.define("sql_filter", Suite::sqlFilter);
        Harness.define("delay_level", Suite::delayLevel);
        Harness.define("orderly", Suite::orderly);
        Harness.define("two_members", Suite::twoMembers);
        Harness.define("broadcasting", Suite::broadcasting);
        Harness.define("lite_pull", Suite::litePull);
        Harness.define("continues", Suite::continues);
        Harness.define("retries", Suite::retries);
        Harness.define("dead_letter", Suite::deadLetter);
        Harness.define("transaction", Suite::transaction);
        Harness.define("request_reply", Suite::requestReply);
        Harness.define("look_ups", Suite::lookUps);
        Harness.define("misuse", Suite::misuse);
        Harness.main(chosen);
    }
}
