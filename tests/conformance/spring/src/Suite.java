import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.spring.annotation.ConsumeMode;
import org.apache.rocketmq.spring.annotation.MessageModel;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.annotation.SelectorType;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQLocalRequestCallback;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQReplyListener;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;

/** RocketMQ's Spring Boot starter: its template sends, and its listeners consume. */
@Configuration(proxyBeanMethods = false)
@EnableAutoConfiguration
public class Suite {
    private static final String NORMAL = "TROVE_SPRING_NORMAL";
    private static final String DELAY = "TROVE_SPRING_DELAY";
    private static final String TRANSACTION = "TROVE_SPRING_TRANSACTION";
    private static final Map<String, List<String>> TAKEN = new ConcurrentHashMap<>();
    private static RocketMQTemplate template;

    private static List<String> taken(String name) {
        return TAKEN.computeIfAbsent(name, ignored -> new CopyOnWriteArrayList<>());
    }

    @RocketMQMessageListener(topic = NORMAL, consumerGroup = "plain-${run}", selectorExpression = "plain${run}")
    public static class Plain implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            taken("plain").add(body);
        }
    }

    @RocketMQMessageListener(topic = NORMAL, consumerGroup = "sql-${run}", selectorType = SelectorType.SQL92,
        selectorExpression = "n${run} > 6")
    public static class BySql implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            taken("sql").add(body);
        }
    }

    @RocketMQMessageListener(topic = NORMAL, consumerGroup = "ordered-${run}", selectorExpression = "ordered${run}",
        consumeMode = ConsumeMode.ORDERLY)
    public static class Ordered implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            taken("ordered").add(body);
        }
    }

    @RocketMQMessageListener(topic = NORMAL, consumerGroup = "all-${run}", selectorExpression = "all${run}",
        messageModel = MessageModel.BROADCASTING)
    public static class Broadcast implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            taken("all").add(body);
        }
    }

    @RocketMQMessageListener(topic = NORMAL, consumerGroup = "failing-${run}", selectorExpression = "failing${run}",
        delayLevelWhenNextConsume = 1)
    public static class Failing implements RocketMQListener<MessageExt> {
        @Override
        public void onMessage(MessageExt one) {
            taken("failing").add(String.valueOf(one.getReconsumeTimes()));
            if (one.getReconsumeTimes() < 2) {
                throw new IllegalStateException("not yet");
            }
        }
    }

    @RocketMQMessageListener(topic = DELAY, consumerGroup = "later-${run}", selectorExpression = "later${run}")
    public static class Later implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            taken("later").add(body + "=" + System.currentTimeMillis());
        }
    }

    @RocketMQMessageListener(topic = TRANSACTION, consumerGroup = "deals-${run}", selectorExpression = "deals${run}")
    public static class Deals implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            taken("deals").add(body);
        }
    }

    @RocketMQMessageListener(topic = NORMAL, consumerGroup = "asked-${run}", selectorExpression = "asked${run}")
    public static class Replies implements RocketMQReplyListener<String, String> {
        @Override
        public String onMessage(String body) {
            return "re: " + body;
        }
    }

    /** A bean by its annotation. */
    @RocketMQTransactionListener
    public static class Verdicts implements RocketMQLocalTransactionListener {
        @Override
        public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return RocketMQLocalTransactionState.valueOf((String) argument);
        }

        @Override
        public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
            return RocketMQLocalTransactionState.COMMIT;
        }
    }

    @Bean
    Plain plain() {
        return new Plain();
    }

    @Bean
    BySql bySql() {
        return new BySql();
    }

    @Bean
    Ordered ordered() {
        return new Ordered();
    }

    @Bean
    Broadcast broadcast() {
        return new Broadcast();
    }

    @Bean
    Failing failing() {
        return new Failing();
    }

    @Bean
    Later later() {
        return new Later();
    }

    @Bean
    Deals deals() {
        return new Deals();
    }

    @Bean
    Replies replies() {
        return new Replies();
    }

    private static String to(String topic, String tag) {
        return topic + ":" + tag + Harness.RUN;
    }

    private static Message<String> message(String body) {
        return MessageBuilder.withPayload(body).setHeader("KEYS", "k" + Harness.RUN + body).build();
    }

    private static List<String> numbers(int from, int to) {
        List<String> made = new ArrayList<>();
        for (int number = from; number < to; number++) {
            made.add(String.valueOf(number));
        }
        return made;
    }

    private static void received(String name, List<String> wanted) throws Exception {
        Harness.eventually(() -> new HashSet<>(taken(name)).size() >= wanted.size(), 60, name);
        Harness.expect(new HashSet<>(taken(name)), new HashSet<>(wanted), name);
    }

    private static void sends() throws Exception {
        for (String body : numbers(0, 10)) {
            SendResult sent = template.syncSend(to(NORMAL, "plain"), message(body));
            Harness.expect(sent.getSendStatus(), SendStatus.SEND_OK, "the send");
        }
        CountDownLatch left = new CountDownLatch(20);
        List<Throwable> faults = new CopyOnWriteArrayList<>();
        for (String body : numbers(10, 30)) {
            template.asyncSend(to(NORMAL, "plain"), message(body), new SendCallback() {
                @Override
                public void onSuccess(SendResult sent) {
                    left.countDown();
                }

                @Override
                public void onException(Throwable fault) {
                    faults.add(fault);
                    left.countDown();
                }
            });
        }
        Harness.expect(left.await(30, TimeUnit.SECONDS), true, "all are answered");
        Harness.expect(faults, List.of(), "faults");
        for (String body : numbers(30, 40)) {
            template.sendOneWay(to(NORMAL, "plain"), message(body));
        }
        List<Message<String>> batch = new ArrayList<>();
        numbers(40, 60).forEach(body -> batch.add(message(body)));
        template.syncSend(to(NORMAL, "plain"), batch);
        template.convertAndSend(to(NORMAL, "plain"), "60");
        received("plain", numbers(0, 61));
        Harness.expect(taken("plain").size(), 61, "deliveries");
    }

    private static void sql() throws Exception {
        for (String body : numbers(0, 10)) {
            Message<String> one = MessageBuilder.withPayload(body).setHeader("n" + Harness.RUN, body).build();
            template.syncSend(to(NORMAL, "sql"), one);
        }
        received("sql", numbers(7, 10));
    }

    private static void inOrder() throws Exception {
        for (String body : numbers(0, 40)) {
            template.syncSendOrderly(to(NORMAL, "ordered"), message(body), "one key");
        }
        received("ordered", numbers(0, 40));
        Harness.expect(taken("ordered"), numbers(0, 40), "the order");
    }

    private static void toAll() throws Exception {
        Harness.eventually(() -> {
            template.syncSend(to(NORMAL, "all"), message("one")); // a member begins at the end of its queues
            return !taken("all").isEmpty();
        }, 60, "the broadcast");
    }

    private static void again() throws Exception {
        template.syncSend(to(NORMAL, "failing"), message("one"));
        Harness.eventually(() -> taken("failing").size() >= 3, 60, "three attempts");
        Harness.expect(taken("failing"), List.of("0", "1", "2"), "the attempts");
    }

    private static void delayed() throws Exception {
        long sent = System.currentTimeMillis();
        template.syncSend(to(DELAY, "later"), message("level"), 3000, 2); // 5 s
        template.syncSendDelayTimeSeconds(to(DELAY, "later"), message("time"), 3);
        Harness.eventually(() -> taken("later").size() >= 2, 60, "both delayed messages");
        for (String one : taken("later")) {
            long after = Long.parseLong(one.substring(one.indexOf('=') + 1)) - sent;
            long least = one.startsWith("level") ? 4_900 : 2_900;
            Harness.expect(after >= least, true, one + " came after " + after + " ms, not before " + least);
        }
    }

    private static void deal() throws Exception {
        for (String state : List.of("COMMIT", "ROLLBACK", "UNKNOWN")) {
            template.sendMessageInTransaction(to(TRANSACTION, "deals"), message(state), state);
        }
        received("deals", List.of("COMMIT", "UNKNOWN")); // the check commits the latter
    }

    /**
     * With a callback: the client 5.3.2 of this starter does not wait for a reply to a synchronous request. The send
     * before makes the route known, so that the client sends no heartbeat with its request: the broker may know the
     * requester by the request alone.
     */
    private static void ask() throws Exception {
        template.syncSend(to(NORMAL, "unread"), message("before"));
        List<String> replies = new CopyOnWriteArrayList<>();
        template.sendAndReceive(to(NORMAL, "asked"), message("ask"), new RocketMQLocalRequestCallback<String>() {
            @Override
            public void onSuccess(String reply) {
                replies.add(reply);
            }

            @Override
            public void onException(Throwable fault) {
                replies.add("fault: " + fault);
            }
        }, 60_000L);
        Harness.eventually(() -> !replies.isEmpty(), 90, "the reply to the first request");
        Harness.expect(replies, List.of("re: ask"), "the reply");
    }

    private static void pull() throws Exception {
        template.syncSend(to(NORMAL, "pulled"), message("one"));
        Set<String> found = new HashSet<>();
        Harness.eventually(() -> found.addAll(template.receive(String.class)) || !found.isEmpty(), 60, "receive()");
        Harness.expect(found, Set.of("one"), "what is pulled");
    }

    public static void main(String[] chosen) throws Exception {
        SpringApplication application = new SpringApplication(Suite.class);
        application.setLogStartupInfo(false);
        application.setBannerMode(org.springframework.boot.Banner.Mode.OFF);
        application.setDefaultProperties(Map.of(
            "run", Harness.RUN,
            "logging.level.root", "OFF",
            "rocketmq.name-server", Harness.setting("ENDPOINTS", "127.0.0.1:8081"),
            "rocketmq.producer.group", "spring-" + Harness.RUN,
            "rocketmq.pull-consumer.group", "pulled-" + Harness.RUN,
            "rocketmq.pull-consumer.topic", NORMAL,
            "rocketmq.pull-consumer.selector-expression", "pulled" + Harness.RUN));
        ConfigurableApplicationContext context = application.run();
        Harness.closing((AutoCloseable) context::close);
        template = context.getBean(RocketMQTemplate.class);
        Harness.define("sends", Suite::sends);
        Harness.define("sql_filter", Suite::sql);
        Harness.define("orderly", Suite::inOrder);
        Harness.define("broadcasting", Suite::toAll);
        Harness.define("retries", Suite::again);
        Harness.define("delay", Suite::delayed);
        Harness.define("transaction", Suite::deal);
        Harness.define("request_reply", Suite::ask);
        Harness.define("lite_pull", Suite::pull);
        Harness.main(chosen);
    }
}
