import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** RocketMQ's command line, whose commands run in this process. The broker is its nameserver, too, unless one is set. */
public final class Suite {
    private static final String ADDRESS = Harness.setting("ENDPOINTS", "127.0.0.1:8081");
    private static final String NAMESERVER = Harness.setting("NAMESERVER", ADDRESS);
    private static final String ADMIN_SECRET = Harness.setting("ADMIN_SECRET_KEY", "");
    private static final RPCHook SIGNATURES =
        ADMIN_SECRET.isEmpty() ? null : new AclClientRPCHook(new SessionCredentials("admin", ADMIN_SECRET));
    private static final InheritableThreadLocal<OutputStream> CAPTURED = new InheritableThreadLocal<>();
    private static final PrintStream OUT = System.out;

    private Suite() {}

    /** Writes to the command of the present thread, if it runs one. */
    private static final class PerThread extends OutputStream {
        @Override
        public void write(int one) {
            write(new byte[] {(byte) one}, 0, 1);
        }

        @Override
        public void write(byte[] data, int from, int count) {
            OutputStream captured = CAPTURED.get();
            try {
                (captured == null ? OUT : captured).write(data, from, count);
            } catch (java.io.IOException failed) {
                throw new IllegalStateException(failed);
            }
        }

        @Override
        public void flush() {
            OUT.flush();
        }
    }

    private static String run(String... words) throws Exception {
        String[] all = java.util.Arrays.copyOf(words, words.length + 2);
        all[words.length] = "-n";
        all[words.length + 1] = NAMESERVER;
        synchronized (Suite.class) { // its list of commands is static
            ByteArrayOutputStream text = new ByteArrayOutputStream();
            CAPTURED.set(text);
            try {
                MQAdminStartup.main0(all, SIGNATURES);
            } finally {
                CAPTURED.remove();
            }
            return text.toString(StandardCharsets.UTF_8);
        }
    }

    private static String ok(String[] expected, String... words) throws Exception {
        String text = run(words);
        Harness.expect(text.contains("Exception"), false, words[0] + " fails: " + text);
        for (String one : expected) {
            Harness.expect(text.contains(one), true, words[0] + " shows " + one + ": " + text);
        }
        return text;
    }

    /** Some are late: consumers store their offsets every 5 s. */
    private static void shown(String expected, String... words) throws Exception {
        for (int attempt = 0; attempt < 20 && !run(words).contains(expected); attempt++) {
            Thread.sleep(1000);
        }
        ok(shows(expected), words);
    }

    private static String[] shows(String... expected) {
        return expected;
    }

    private static String topic(String name) throws Exception {
        String made = "TOOLS_" + name + "_" + Harness.RUN;
        ok(shows("create topic to " + ADDRESS + " success"),
            "updateTopic", "-b", ADDRESS, "-t", made, "-r", "2", "-w", "2");
        return made;
    }

    private static DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer made = new DefaultMQProducer(group);
        made.setNamesrvAddr(NAMESERVER);
        made.setInstanceName(group);
        made.start();
        Harness.closing((AutoCloseable) made::shutdown);
        return made;
    }

    private static List<String> consume(String topic, String group) throws Exception {
        List<String> bodies = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(NAMESERVER);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        MessageListenerConcurrently into = (messages, context) -> {
            messages.forEach(one -> bodies.add(new String(one.getBody(), StandardCharsets.UTF_8)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
        consumer.registerMessageListener(into);
        consumer.start();
        Harness.closing((AutoCloseable) consumer::shutdown);
        return bodies;
    }

    private static SendResult send(String topic, String body) throws Exception {
        Message message = new Message(topic, "tag", "key-" + body, body.getBytes(StandardCharsets.UTF_8));
        return producer("producers-" + topic).send(message);
    }

    private static void topics() throws Exception {
        String made = topic("TOPIC");
        ok(shows(made), "topicList");
        ok(shows("\"brokerName\"", ADDRESS, "\"readQueueNums\":2"), "topicRoute", "-t", made);
        String status = ok(shows("#Max Offset"), "topicStatus", "-t", made);
        Harness.expect(status.lines().filter(line -> line.matches("\\S+ +[01] +0 +0 *")).count(), 2L, status);
        ok(shows("success"), "updateTopic", "-b", ADDRESS, "-t", made, "-r", "3", "-w", "3");
        shown("\"readQueueNums\":3", "topicRoute", "-t", made); // a broker registers a change soon after it
        ok(shows("success"), "updateTopicPerm", "-b", ADDRESS, "-t", made, "-p", "4");
        Harness.refused(() -> send(made, "closed"), "a send to a closed topic");
        ok(shows(cluster()), "topicClusterList", "-t", made);
        ok(shows("success"), "deleteTopic", "-c", cluster(), "-t", made);
        Harness.expect(run("topicList").contains(made), false, "the deleted topic is listed");
    }

    private static String cluster() throws Exception {
        String[] row = ok(shows(ADDRESS, "V5_4_0"), "clusterList").lines()
            .filter(line -> line.contains(ADDRESS)).findFirst().orElseThrow().trim().split(" +");
        return row[0];
    }

    private static void broker() throws Exception {
        ok(shows("putTps", "commitLogMaxOffset", "bootTimestamp"), "brokerStatus", "-b", ADDRESS);
        ok(shows("brokerName", "flushDiskType"), "getBrokerConfig", "-b", ADDRESS);
        ok(shows("success"), "updateBrokerConfig", "-b", ADDRESS, "-k", "queries_max", "-v", "63");
        ok(shows("63"), "getBrokerConfig", "-b", ADDRESS);
        ok(shows("success"), "cleanExpiredCQ", "-b", ADDRESS);
        ok(shows("success"), "cleanUnusedTopic", "-b", ADDRESS);
        ok(shows("Diff Total"), "brokerConsumeStats", "-b", ADDRESS);
    }

    private static void groups() throws Exception {
        String group = "tools-" + Harness.RUN;
        ok(shows("success"), "updateSubGroup", "-b", ADDRESS, "-g", group, "-r", "3");
        ok(shows(group), "getConsumerConfig", "-g", group);
        ok(shows("success"), "deleteSubGroup", "-b", ADDRESS, "-g", group);
    }

    private static void users() throws Exception {
        String user = "tools-" + Harness.RUN;
        String subject = "User:" + user;
        ok(shows("success"), "createUser", "-b", ADDRESS, "-u", user, "-p", "12345678", "-t", "Normal");
        ok(shows(user, "Normal", "enable"), "getUser", "-b", ADDRESS, "-u", user);
        ok(shows("success"), "updateUser", "-b", ADDRESS, "-u", user, "-s", "disable");
        ok(shows(user, "disable"), "listUser", "-b", ADDRESS, "-f", user);
        ok(shows("success"), "updateUser", "-b", ADDRESS, "-u", user, "-p", "87654321");
        ok(shows("success"), "createAcl", "-b", ADDRESS, "-s", subject, "-r", "Topic:a*,Group:*", "-a", "Pub,Sub",
            "-d", "Allow", "-i", "127.0.0.1");
        ok(shows(subject, "Custom", "Topic:a*", "Group:*", "127.0.0.1/32", "Allow"), "getAcl", "-b", ADDRESS, "-s",
            subject);
        ok(shows("success"), "updateAcl", "-b", ADDRESS, "-s", subject, "-r", "Topic:a*", "-a", "Sub", "-d", "Deny");
        ok(shows("Topic:a*", "Deny"), "listAcl", "-b", ADDRESS, "-s", subject, "-r", "Topic");
        ok(shows("success"), "deleteAcl", "-b", ADDRESS, "-s", subject, "-r", "Topic:a*");
        String rest = ok(shows("Group:*"), "listAcl", "-b", ADDRESS, "-s", subject);
        Harness.expect(rest.contains("Topic:a*"), false, "the rule is gone: " + rest);
        ok(shows("success"), "deleteUser", "-b", ADDRESS, "-u", user);
        String text = run("updateUser", "-b", ADDRESS, "-u", "admin", "-t", "Normal");
        Harness.expect(text.contains("CODE: 29"), true, "another type: " + text);
        text = run("createAcl", "-b", ADDRESS, "-s", subject, "-r", "Queue:a", "-a", "Pub", "-d", "Allow");
        Harness.expect(text.contains("CODE: 29"), true, "no such resource: " + text);
    }

    private static void messages() throws Exception {
        String topic = topic("MESSAGES");
        String sent = ok(shows("SEND_OK"), "sendMessage", "-t", topic, "-p", "hello", "-k", "key1");
        Matcher unique = Pattern.compile("\\b[0-9A-F]{32,}\\b").matcher(sent);
        Harness.expect(unique.find(), true, "the message's id: " + sent);
        ok(shows(unique.group()), "queryMsgByKey", "-t", topic, "-k", "key1");
        String found = ok(shows(topic, "key1"), "queryMsgByUniqueKey", "-t", topic, "-i", unique.group());
        ok(shows("hello"), "printMsg", "-t", topic);
        ok(shows("hello"), "consumeMessage", "-t", topic);
        int queue = Integer.parseInt(value(found, "Queue ID"));
        ok(shows(topic, "key1"), "queryMsgByOffset", "-t", topic, "-b", name(), "-i", "" + queue, "-o", "0");
        SendResult other = send(topic, "two");
        ok(shows(topic, "key-two"), byId(topic, other));
        ok(shows("max: "), "queryCq", "-t", topic, "-b", ADDRESS, "-q", "0", "-i", "0", "-c", "1");
    }

    private static String name() throws Exception {
        return ok(shows(), "clusterList").lines()
            .filter(line -> line.contains(ADDRESS)).findFirst().orElseThrow().trim().split(" +")[1];
    }

    private static String value(String text, String name) {
        Matcher found = Pattern.compile(name + ": +(\\S+)").matcher(text);
        Harness.expect(found.find(), true, name + " in " + text);
        return found.group(1);
    }

    private static void consumers() throws Exception {
        String topic = topic("CONSUMERS");
        String group = "consumers-" + Harness.RUN;
        SendResult sent = send(topic, "one");
        List<String> bodies = consume(topic, group);
        Harness.eventually(() -> bodies.size() == 1, 30, "the message is consumed");
        ok(shows(group, topic, "CONSUME_PASSIVELY"), "consumerConnection", "-g", group);
        shown(topic, "consumerProgress", "-g", group);
        ok(shows(group), "consumerProgress");
        ok(shows("Rebalance OK"), "consumerStatus", "-g", group);
        ok(shows(topic, group), "statsAll", "-t", topic);
        ok(shows("producers-" + topic), "producerConnection", "-g", "producers-" + topic, "-t", topic);
        ok(shows(topic), "resetOffsetByTime", "-g", group, "-t", topic, "-s", "0");
        Harness.eventually(() -> bodies.size() == 2, 60, "the message is consumed again after the reset");
        ok(shows("success"), "updateSubGroup", "-b", ADDRESS, "-g", "clone-" + group);
        ok(shows("clone group offset success"), "cloneGroupOffset", "-s", group, "-d", "clone-" + group, "-t",
            topic, "-o", "true");
        ok(shows("#offset"), "skipAccumulatedMessage", "-g", group, "-t", topic);
        ok(shows("CR_SUCCESS"), byId(topic, sent, "-g", group, "-d", member(group)));
        Harness.eventually(() -> bodies.size() == 3, 10, "the message is consumed directly");
    }

    /** From 5.0 on the command asks for the topic. */
    private static String[] byId(String topic, SendResult sent, String... more) {
        List<String> words = new ArrayList<>(List.of("queryMsgById", "-i", sent.getOffsetMsgId()));
        if (MQVersion.CURRENT_VERSION >= MQVersion.Version.V5_0_0.ordinal()) {
            words.addAll(List.of("-t", topic));
        }
        words.addAll(List.of(more));
        return words.toArray(new String[0]);
    }

    private static String member(String group) throws Exception {
        String text = ok(shows(group), "consumerConnection", "-g", group);
        Matcher found = Pattern.compile("(\\S+@\\S+)").matcher(text);
        Harness.expect(found.find(), true, "the member: " + text);
        return found.group(1);
    }

    private static void refusals() throws Exception {
        String text = run("topicStatus", "-t", "absent-" + Harness.RUN);
        Harness.expect(text.contains("CODE: 17"), true, "an absent topic: " + text);
        text = run("updateTopic", "-b", ADDRESS, "-t", "TOOLS_SHRUNK_" + Harness.RUN, "-r", "0", "-w", "0");
        Harness.expect(text.contains("CODE: 29"), true, "no queues: " + text);
        text = run("updateBrokerConfig", "-b", ADDRESS, "-k", "nothing", "-v", "1");
        Harness.expect(text.contains("CODE: 16"), true, "an unknown setting: " + text);
        text = run("consumerConnection", "-g", "absent-" + Harness.RUN);
        Harness.expect(text.contains("CODE: 206") || text.contains("CODE: 17"), true, "no member: " + text);
    }

    public static void main(String[] chosen) throws Exception {
        PrintStream perThread = new PrintStream(new PerThread(), true, StandardCharsets.UTF_8);
        System.setOut(perThread);
        System.setErr(perThread);
        if (SIGNATURES == null) {
            Harness.define("tools-topics", Suite::topics);
            Harness.define("tools-broker", Suite::broker);
            Harness.define("tools-groups", Suite::groups);
            Harness.define("tools-messages", Suite::messages);
            Harness.define("tools-consumers", Suite::consumers);
            Harness.define("tools-refusals", Suite::refusals);
        } else {
            Harness.define("tools-users", Suite::users);
        }
        Harness.main(chosen);
    }
}
