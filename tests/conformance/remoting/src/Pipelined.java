import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Many sends in flight, or a backlog consumed; for a ledger and for the benchmark. Arguments:
 *   ledger TOPIC FILE             64 sends in flight until standard input ends; the acknowledged bodies go to FILE
 *   send TOPIC SECONDS SIZE       64 sends in flight; the last line is the rate
 *   batch TOPIC SECONDS SIZE      the same with batches of 64, one after the other
 *   receive TOPIC COUNT           a push consumer of a new group, from the first message
 */
public final class Pipelined {
    private static final String ADDRESS = Harness.setting("ENDPOINTS", "127.0.0.1:8081");
    private static final int IN_FLIGHT = 64;
    private static final int BATCH = 64;

    private Pipelined() {}

    private static DefaultMQProducer producer() throws Exception {
        DefaultMQProducer made = new DefaultMQProducer("pipelined-" + Harness.RUN);
        made.setNamesrvAddr(ADDRESS);
        made.start();
        return made;
    }

    private interface Acknowledged {
        void with(long number, SendResult sent);
    }

    private static final class Sender {
        private final DefaultMQProducer producer = producer();
        private final Semaphore free = new Semaphore(IN_FLIGHT);
        private final AtomicLong failed = new AtomicLong();
        private final Acknowledged acknowledged;

        private Sender(Acknowledged acknowledged) throws Exception {
            this.acknowledged = acknowledged;
        }

        private void send(Message message, long number) throws Exception {
            free.acquire();
            SendCallback done = new SendCallback() {
                @Override
                public void onSuccess(SendResult sent) {
                    if (sent.getSendStatus() == SendStatus.SEND_OK) {
                        acknowledged.with(number, sent);
                    }
                    free.release();
                }

                @Override
                public void onException(Throwable fault) {
                    failed.incrementAndGet();
                    free.release();
                }
            };
            try {
                producer.send(message, done);
            } catch (Exception refused) { // no route while the broker is away
                failed.incrementAndGet();
                free.release();
                Thread.sleep(20);
            }
        }

        private void end() throws Exception {
            free.acquire(IN_FLIGHT);
        }
    }

    private static void ledger(String topic, String file) throws Exception {
        Thread main = Thread.currentThread();
        boolean[] ended = new boolean[1];
        Thread waiting = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (java.io.IOException closed) {
                main.interrupt();
            }
            ended[0] = true;
        });
        waiting.setDaemon(true);
        waiting.start();
        AtomicLong count = new AtomicLong();
        try (PrintStream lines = new PrintStream(file, StandardCharsets.UTF_8)) {
            Sender sender = new Sender((number, sent) -> {
                lines.println(number);
                if (count.incrementAndGet() % 500 == 0) {
                    System.out.println("acknowledged " + count.get());
                }
            });
            for (long number = 0; !ended[0]; number++) {
                sender.send(new Message(topic, String.valueOf(number).getBytes(StandardCharsets.UTF_8)), number);
            }
            sender.end();
            System.out.println("ended: " + count.get() + " acknowledged, " + sender.failed.get() + " failed");
        }
    }

    private static byte[] body(int size) {
        byte[] made = new byte[size];
        Arrays.fill(made, (byte) 'x');
        return made;
    }

    private static void send(String topic, int seconds, int size) throws Exception {
        AtomicLong count = new AtomicLong();
        Sender sender = new Sender((number, sent) -> count.incrementAndGet());
        byte[] body = body(size);
        long begin = 0;
        long end = System.nanoTime() + 3_000_000_000L; // the compiler's time
        for (boolean measured : new boolean[] {false, true}) {
            while (System.nanoTime() < end) {
                sender.send(new Message(topic, body), 0);
            }
            if (!measured) {
                count.set(0);
                begin = System.nanoTime();
                end = begin + seconds * 1_000_000_000L;
            }
        }
        rate(count.get(), begin);
        sender.end();
        System.out.println("failed " + sender.failed.get());
    }

    private static void batch(String topic, int seconds, int size) throws Exception {
        DefaultMQProducer producer = producer();
        List<Message> batch = new ArrayList<>();
        for (int number = 0; number < BATCH; number++) {
            batch.add(new Message(topic, body(size)));
        }
        long begin = System.nanoTime();
        long count = 0;
        for (long end = begin + seconds * 1_000_000_000L; System.nanoTime() < end; count += BATCH) {
            batch.forEach(one -> one.getProperties().remove("UNIQ_KEY"));
            producer.send(new ArrayList<>(batch));
        }
        rate(count, begin);
    }

    private static void receive(String topic, long wanted) throws Exception {
        AtomicLong count = new AtomicLong();
        AtomicLong begin = new AtomicLong();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("readers-" + Harness.RUN);
        consumer.setNamesrvAddr(ADDRESS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            begin.compareAndSet(0, System.nanoTime());
            count.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (count.get() < wanted) {
            Thread.sleep(1);
        }
        rate(count.get(), begin.get());
    }

    private static void rate(long count, long begin) {
        System.out.printf("count %d%nrate %.0f%n", count, count * 1e9 / (System.nanoTime() - begin));
    }

    public static void main(String[] words) throws Exception {
        switch (words[0]) {
            case "ledger" -> ledger(words[1], words[2]);
            case "send" -> send(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]));
            case "batch" -> batch(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]));
            case "receive" -> receive(words[1], Long.parseLong(words[2]));
            default -> throw new IllegalArgumentException(words[0]);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
