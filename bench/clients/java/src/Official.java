import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * The official Java client of RocketMQ 5: sends with 64 in flight, then receives and acknowledges.
 *
 * <p>Official ENDPOINTS SEND_TOPIC RECEIVE_TOPIC GROUP SECONDS; prints one JSON object.
 */
final class Official {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final int IN_FLIGHT = 64;
    private static final int RECEIVERS = 8;
    private static final int BATCH = 32;
    private static final double WARM_SECONDS = 4;
    private static final int TIMES_MAX = 5000;
    private static final byte[] BODY = "0123456789abcdef".repeat(64).getBytes(UTF_8);

    private final List<Double> times = Collections.synchronizedList(new ArrayList<>());
    private final AtomicInteger failures = new AtomicInteger();

    private Official() {}

    private interface Run {
        /** Works for so long; how many a second. */
        double run(double seconds) throws Exception;
    }

    private void settled(long begin, Throwable fault) {
        if (fault == null) {
            times.add((System.nanoTime() - begin) / 1e9);
        } else {
            failures.incrementAndGet();
        }
    }

    private double send(Producer producer, String topic, double seconds) throws Exception {
        Semaphore capacity = new Semaphore(IN_FLIGHT);
        times.clear();
        long begin = System.nanoTime();
        while (System.nanoTime() - begin < seconds * 1e9) {
            capacity.acquire();
            Message message = PROVIDER.newMessageBuilder()
                .setTopic(topic).setBody(BODY).setTag("tag").setKeys("key").build();
            long started = System.nanoTime();
            producer.sendAsync(message).whenComplete((receipt, fault) -> {
                settled(started, fault);
                capacity.release();
            });
        }
        capacity.acquire(IN_FLIGHT);
        return times.size() / ((System.nanoTime() - begin) / 1e9);
    }

    private double receive(SimpleConsumer consumer, double seconds) throws Exception {
        times.clear();
        long begin = System.nanoTime();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < RECEIVERS; i++) {
            Thread thread = new Thread(() -> receiveUntil(consumer, begin + (long) (seconds * 1e9)));
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return times.size() / ((System.nanoTime() - begin) / 1e9);
    }

    private void receiveUntil(SimpleConsumer consumer, long end) {
        while (System.nanoTime() < end) {
            List<MessageView> messages;
            try {
                messages = consumer.receive(BATCH, Duration.ofSeconds(60));
            } catch (Exception fault) {
                failures.incrementAndGet();
                continue;
            }
            if (messages.isEmpty()) {
                return;
            }
            List<CompletableFuture<Void>> acks = new ArrayList<>();
            for (MessageView message : messages) {
                long started = System.nanoTime();
                acks.add(consumer.ackAsync(message).whenComplete((nothing, fault) -> settled(started, fault)));
            }
            acks.forEach(ack -> ack.exceptionally(fault -> null).join());
        }
    }

    private String measured(double seconds, Run work) throws Exception {
        work.run(WARM_SECONDS);
        double rate = work.run(seconds);
        int step = Math.max(times.size() / TIMES_MAX, 1);
        List<String> some = new ArrayList<>();
        for (int i = 0; i < times.size(); i += step) {
            some.add(String.valueOf(times.get(i)));
        }
        String list = some.stream().collect(Collectors.joining(","));
        return "{\"rate\": " + rate + ", \"times\": [" + list + "], \"failures\": " + failures.getAndSet(0) + "}";
    }

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[0]).enableSsl(false).setRequestTimeout(Duration.ofSeconds(5)).build();
        double seconds = Double.parseDouble(arguments[4]);
        Official official = new Official();
        Producer producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration).setTopics(arguments[1]).build();
        String sent = official.measured(seconds, time -> official.send(producer, arguments[1], time));
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(arguments[3])
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(arguments[2], FilterExpression.SUB_ALL))
            .build();
        String received = official.measured(seconds, time -> official.receive(consumer, time));
        System.out.println("{\"send\": " + sent + ", \"receive\": " + received + "}");
        System.out.flush();
        Runtime.getRuntime().halt(0); // clients leave threads behind
    }
}
