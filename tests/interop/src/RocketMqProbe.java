import com.alibaba.fastjson2.JSON;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.namesrv.NamesrvStartup;
import org.apache.rocketmq.store.MessageStore;

/**
 * Starts RocketMQ's name server and broker on a store, carries out the given steps with RocketMQ's own client,
 * and stops both cleanly. What it sees goes to a file, one JSON object a line, each with the step it belongs to.
 *
 * Arguments: broker.conf, namesrv.conf, name server address, file of results, steps...
 *   dump:LABEL                         every message of every queue
 *   sleep:MS, until:EPOCH_MS
 *   query:TOPIC:KEY, view:TOPIC:KEY    messages by key, one by its unique key
 * and, from there on to the end:
 *   consume:GROUP:TOPIC                what a consumer group is given (consume_in_order: an orderly listener)
 *   pop:GROUP:TOPIC                    the same by pop (pop_in_order), with defaultMessageRequestMode=POP
 *   answer:GROUP:TOPIC:VERDICT         answers the checks of a producer group's transactions: commit, rollback
 */
public final class RocketMqProbe {
    private static PrintWriter results;
    private static String address;
    private static BrokerController broker;
    private static final List<Runnable> running = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        address = arguments[2];
        results = new PrintWriter(Files.newBufferedWriter(Path.of(arguments[3]), StandardCharsets.UTF_8));
        NamesrvController nameServer = NamesrvStartup.main0(new String[] {"-c", arguments[1]});
        broker = BrokerStartup.createBrokerController(new String[] {"-c", arguments[0], "-n", address});
        if (nameServer == null || BrokerStartup.start(broker) == null) {
            System.exit(3);
        }
        int status = 0;
        try {
            for (int index = 4; index < arguments.length; index++) {
                perform(arguments[index]);
                results.flush();
            }
        } catch (Exception failure) {
            failure.printStackTrace();
            status = 4;
        }
        running.forEach(Runnable::run);
        broker.shutdown();
        nameServer.shutdown();
        results.close();
        System.exit(status); // the client leaves threads behind
    }

    private static void perform(String step) throws Exception {
        String[] words = step.split(":");
        switch (words[0]) {
            case "dump" -> dump(step);
            case "sleep" -> Thread.sleep(Long.parseLong(words[1]));
            case "until" -> Thread.sleep(Math.max(0, Long.parseLong(words[1]) - System.currentTimeMillis()));
            case "consume", "consume_in_order", "pop", "pop_in_order" -> consume(step, words[1], words[2]);
            case "answer" -> answer(step, words[1], words[2], words[3]);
            case "query", "view" -> query(step, words[1], words[2]);
            default -> throw new IllegalArgumentException(step);
        }
    }

    private static void dump(String step) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("interop_dump");
        consumer.setNamesrvAddr(address);
        consumer.start();
        MessageStore store = broker.getMessageStore();
        Map<String, Integer> queues = new LinkedHashMap<>();
        for (String topic : new TreeSet<>(broker.getTopicConfigManager().getTopicConfigTable().keySet())) {
            queues.put(topic, broker.getTopicConfigManager().selectTopicConfig(topic).getReadQueueNums());
        }
        for (Map.Entry<String, Integer> topic : queues.entrySet()) {
            for (int queueId = 0; queueId < topic.getValue(); queueId++) {
                long max = store.getMaxOffsetInQueue(topic.getKey(), queueId);
                long min = store.getMinOffsetInQueue(topic.getKey(), queueId);
                if (max > 0) {
                    report(step, Map.of("queue", topic.getKey(), "queueId", queueId, "min", min, "max", max));
                    consumer.fetchSubscribeMessageQueues(topic.getKey());
                    pullAll(step, consumer, topic.getKey(), queueId, min, max);
                }
            }
        }
        consumer.shutdown();
    }

    private static void pullAll(
            String step, DefaultMQPullConsumer consumer, String topic, int queueId, long min, long max)
            throws Exception {
        MessageQueue queue = new MessageQueue(topic, broker.getBrokerConfig().getBrokerName(), queueId);
        for (long offset = min; offset < max; ) {
            PullResult result = consumer.pull(queue, "*", offset, 32);
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    report(step, message);
                }
            } else {
                report(step, Map.of("queue", topic, "queueId", queueId, "offset", offset,
                        "status", result.getPullStatus().name()));
                if (result.getNextBeginOffset() <= offset) {
                    return;
                }
            }
            offset = result.getNextBeginOffset();
        }
    }

    private static void consume(String step, String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(address);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.setClientRebalance(!step.startsWith("pop"));
        if (step.contains("_in_order:")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(message -> report(step, message));
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> report(step, message));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        running.add(consumer::shutdown);
    }

    private static void answer(String step, String group, String topic, String verdict) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(group);
        producer.setNamesrvAddr(address);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                report(step, message);
                return verdict.equals("commit")
                        ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        producer.start();
        // A producer that sends nothing would not know the broker, and the broker not it.
        MQClientInstance client = producer.getDefaultMQProducerImpl().getMqClientFactory();
        client.updateTopicRouteInfoFromNameServer(topic);
        client.sendHeartbeatToAllBrokerWithLock();
        running.add(producer::shutdown);
    }

    private static void query(String step, String topic, String key) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("interop_query");
        consumer.setNamesrvAddr(address);
        consumer.start();
        consumer.fetchSubscribeMessageQueues(topic);
        if (step.startsWith("view")) {
            report(step, consumer.viewMessage(topic, key));
        } else {
            QueryResult found = consumer.queryMessage(topic, key, 32, 0, Long.MAX_VALUE);
            found.getMessageList().forEach(message -> report(step, message));
        }
        consumer.shutdown();
    }

    private static synchronized void report(String step, MessageExt message) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("topic", message.getTopic());
        fields.put("queueId", message.getQueueId());
        fields.put("queueOffset", message.getQueueOffset());
        fields.put("commitLogOffset", message.getCommitLogOffset());
        fields.put("storeSize", message.getStoreSize());
        fields.put("flag", message.getFlag());
        fields.put("sysFlag", message.getSysFlag());
        fields.put("bornTimestamp", message.getBornTimestamp());
        fields.put("storeTimestamp", message.getStoreTimestamp());
        fields.put("reconsumeTimes", message.getReconsumeTimes());
        fields.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        fields.put("properties", message.getProperties());
        fields.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        report(step, Map.of("message", fields, "seenMs", System.currentTimeMillis()));
    }

    private static synchronized void report(String step, Map<String, ?> fields) {
        Map<String, Object> line = new LinkedHashMap<>(fields);
        line.put("step", step);
        results.println(JSON.toJSONString(line));
        results.flush();
    }
}
