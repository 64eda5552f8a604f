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
 * The official Java client of RocketMQ 5 with one server: sends with 64 in flight, or receives and acknowledges.
 *
 * <p>Official send|receive TOPIC GROUP SECONDS TURNS ENDPOINTS...: the servers take turns of SECONDS each, after a
 * warm-up each; prints a JSON list with an object for each server. A turn ends with its last answer; the rate of one
 * without messages is 0.
 */
abstract class Official {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final int IN_FLIGHT = 64;
    private static final int RECEIVERS = 8;
    private static final int BATCH = 32;
    private static final double WARM_SECONDS = 6; // a JVM compiles for ten seconds and more
    private static final int TIMES_MAX = 5000;
    private static final byte[] BODY = "0123456789abcdef".repeat(64).getBytes(UTF_8);

    private final List<Double> rates = new ArrayList<>();
    private final AtomicInteger failures = new AtomicInteger();
    private List<Double> times = Collections.synchronizedList(new ArrayList<>());
    private int count;
    private volatile long lastAnswer;

    /** Works until then, and returns when everything is answered. */
    abstract void work(long end) throws Exception;

    final void answered(long started, Throwable fault) {
        if (fault == null) {
            lastAnswer = System.nanoTime();
            times.add((lastAnswer - started) / 1e9);
        } else {
            failed();
        }
    }

    final void failed() {
        failures.incrementAndGet();
    }

    private void turn(double seconds) throws Exception {
        times = Collections.synchronizedList(new ArrayList<>());
        long begin = System.nanoTime();
        work(begin + (long) (seconds * 1e9));
        count += times.size();
        rates.add(times.isEmpty() ? 0 : times.size() / ((lastAnswer - begin) / 1e9));
    }

    private String found() {
        int step = Math.max(times.size() / TIMES_MAX, 1);
        List<String> some = new ArrayList<>();
        for (int i = 0; i < times.size(); i += step) {
            some.add(String.valueOf(times.get(i)));
        }
        String list = some.stream().collect(Collectors.joining(","));
        return "{\"rates\": " + rates + ", \"times\": [" + list + "], \"count\": " + count
            + ", \"failures\": " + failures + "}";
    }

    private static final class Sending extends Official {
        private final String topic;
        private final Producer producer;

        private Sending(ClientConfiguration configuration, String topic) throws Exception {
            this.topic = topic;
            producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
        }

        @Override
        void work(long end) throws Exception {
            Semaphore capacity = new Semaphore(IN_FLIGHT);
            while (System.nanoTime() < end) {
                capacity.acquire();
                Message message = PROVIDER.newMessageBuilder()
                    .setTopic(topic).setBody(BODY).setTag("tag").setKeys("key").build();
                long started = System.nanoTime();
                producer.sendAsync(message).whenComplete((receipt, fault) -> {
                    answered(started, fault);
                    capacity.release();
                });
            }
            capacity.acquire(IN_FLIGHT);
        }
    }

    private static final class Receiving extends Official {
        private final SimpleConsumer consumer;

        private Receiving(ClientConfiguration configuration, String topic, String group) throws Exception {
            consumer = PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(group)
                .setAwaitDuration(Duration.ofSeconds(1))
                .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
                .build();
        }

        @Override
        void work(long end) throws Exception {
            List<Thread> threads = new ArrayList<>();
            for (int i = 0; i < RECEIVERS; i++) {
                Thread thread = new Thread(() -> receive(end));
                thread.start();
                threads.add(thread);
            }
            for (Thread thread : threads) {
                thread.join();
            }
        }

        private void receive(long end) {
            while (System.nanoTime() < end) {
                List<MessageView> messages;
                try {
                    messages = consumer.receive(BATCH, Duration.ofSeconds(60));
                } catch (Exception fault) {
                    failed();
                    continue;
                }
                List<CompletableFuture<Void>> acks = new ArrayList<>();
                for (MessageView message : messages) {
                    long started = System.nanoTime();
                    acks.add(consumer.ackAsync(message).whenComplete((nothing, fault) -> answered(started, fault)));
                }
                acks.forEach(ack -> ack.exceptionally(fault -> null).join());
            }
        }
    }

    private static Official of(String work, String topic, String group, String endpoints) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(endpoints).enableSsl(false).setRequestTimeout(Duration.ofSeconds(5)).build();
        return work.equals("send") ? new Sending(configuration, topic) : new Receiving(configuration, topic, group);
    }

    public static void main(String[] arguments) throws Exception {
        double seconds = Double.parseDouble(arguments[3]);
        int turns = Integer.parseInt(arguments[4]);
        List<Official> servers = new ArrayList<>();
        for (int i = 5; i < arguments.length; i++) {
            servers.add(of(arguments[0], arguments[1], arguments[2], arguments[i]));
        }
        for (Official server : servers) {
            server.turn(WARM_SECONDS);
            server.rates.clear();
        }
        for (int i = 0; i < turns; i++) {
            for (Official server : servers) {
                server.turn(seconds);
            }
            Collections.rotate(servers, -1); // each round begins with another
        }
        Collections.rotate(servers, turns);
        System.out.println(servers.stream().map(Official::found).collect(Collectors.joining(", ", "[", "]")));
        System.out.flush();
        Runtime.getRuntime().halt(0); // clients leave threads behind
    }
}
