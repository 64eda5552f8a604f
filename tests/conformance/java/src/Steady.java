import java.time.Duration;
import java.util.Map;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Sends until a line comes, and receives until its input ends; the runner stops and starts brokers meanwhile.
 *
 * <p>It prints {@code started}, then for each send {@code sent TOPIC BODY} or {@code refused TOPIC BODY WHY}, and
 * {@code received TOPIC BODY}. Bodies of the FIFO topic are GROUP-NUMBER.
 */
final class Steady {
    private static final int GROUPS = 8;
    private static final int PAUSE_MS = 200;

    private static volatile boolean silent;

    private Steady() {}

    private static synchronized void say(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.length() == 0 ? "" : " ").append(String.valueOf(word).replace('\n', ' '));
        }
        System.out.println(line);
        System.out.flush();
    }

    private static void sendAll(Producer producer, String topic, boolean ordered) {
        for (int number = 0; !silent; number++) {
            String group = "g" + number % GROUPS;
            String body = group + "-" + number;
            try {
                MessageBuilder builder = Suite.message(topic, body, "steady");
                producer.send((ordered ? builder.setMessageGroup(group) : builder).build());
                say("sent", topic, body);
            } catch (Throwable refused) {
                say("refused", topic, body, refused);
            }
            pause();
        }
    }

    private static void receive(String topic) {
        SimpleConsumer consumer;
        try {
            consumer = Suite.steadyConsumer("STEADY_" + topic, Map.of(topic, FilterExpression.SUB_ALL));
            say("started");
        } catch (Throwable failed) {
            say("failed", failed);
            return;
        }
        while (true) {
            try {
                for (MessageView message : consumer.receive(32, Duration.ofSeconds(30))) {
                    say("received", topic, Suite.text(message));
                    consumer.ack(message);
                }
            } catch (Throwable away) {
                say("unreceived", topic, away);
                pause();
            }
        }
    }

    private static void pause() {
        try {
            Thread.sleep(PAUSE_MS);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    private static void start(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
    }

    public static void main(String[] arguments) throws Exception {
        String topic = Harness.setting("TOPIC", "");
        String ordered = Harness.setting("FIFO_TOPIC", "");
        Producer producer = Suite.producer(topic, ordered);
        say("started");
        start(() -> receive(topic));
        start(() -> receive(ordered));
        start(() -> sendAll(producer, topic, false));
        start(() -> sendAll(producer, ordered, true));
        while (System.in.read() >= 0) {
            silent = true;
        }
        Runtime.getRuntime().halt(0); // clients leave threads behind
    }
}
