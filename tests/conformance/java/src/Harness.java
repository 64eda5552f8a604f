import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/**
 * Runs cases side by side, AT_ONCE of them at a time, and prints one line each: {@code ok NAME} or
 * {@code not ok NAME: why}, then the count. PATIENCE lengthens their time limits. A case throws when something
 * is not as it should be; its tags are its own.
 */
final class Harness {
    interface Case {
        void run() throws Exception;
    }

    static final String RUN = UUID.randomUUID().toString().substring(0, 8);
    private static final long TIME_MAX_MS = 1000 * Long.parseLong(setting("TIME_MAX_S", "100"));
    private static final int PATIENCE = Integer.parseInt(setting("PATIENCE", "1"));
    private static final Semaphore PLACES = new Semaphore(Integer.parseInt(setting("AT_ONCE", "1000")));
    private static final Map<String, Case> CASES = new LinkedHashMap<>();
    private static final List<AutoCloseable> CLIENTS = new CopyOnWriteArrayList<>();
    private static final Map<String, String> OUTCOMES = new LinkedHashMap<>();

    private Harness() {}

    static String setting(String name, String otherwise) {
        String value = System.getenv(name);
        return value == null || value.isEmpty() ? otherwise : value;
    }

    static void define(String name, Case action) {
        CASES.put(name, action);
    }

    static <T extends AutoCloseable> T closing(T client) {
        CLIENTS.add(client);
        return client;
    }

    static void expect(Object found, Object wanted, String what) {
        if (!Objects.equals(found, wanted)) {
            throw new AssertionError(what + ": " + found + ", and not " + wanted);
        }
    }

    static void eventually(BooleanSupplier condition, int withinSeconds, String what) throws InterruptedException {
        int seconds = withinSeconds * PATIENCE;
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > end) {
                throw new AssertionError(what + ": not within " + seconds + " s");
            }
            Thread.sleep(50);
        }
    }

    static void refused(Callable<?> action, String what) {
        try {
            action.call();
        } catch (Throwable expected) {
            return;
        }
        throw new AssertionError(what + " was not refused");
    }

    private static synchronized void report(String name, String fault, long milliseconds) {
        if (!OUTCOMES.containsKey(name)) {
            OUTCOMES.put(name, fault);
            String text = fault == null ? "ok " + name : "not ok " + name + ": " + fault;
            System.out.printf("%s (%.1f s)%n", text, milliseconds / 1000.0);
        }
    }

    private static void runOne(String name, CountDownLatch left) {
        PLACES.acquireUninterruptibly();
        long begin = System.currentTimeMillis();
        String fault = null;
        try {
            CASES.get(name).run();
        } catch (Throwable error) {
            String text = String.valueOf(error).replaceAll("\\s+", " ");
            fault = text.substring(0, Math.min(300, text.length()));
        }
        PLACES.release();
        report(name, fault, System.currentTimeMillis() - begin);
        left.countDown();
    }

    static void main(String[] chosen) throws Exception {
        List<String> names = chosen.length > 0 ? List.of(chosen) : new ArrayList<>(CASES.keySet());
        CountDownLatch left = new CountDownLatch(names.size());
        for (String name : names) {
            start(() -> runOne(name, left));
            Thread.sleep(50); // clients do not all start in one instant
        }
        left.await(TIME_MAX_MS, TimeUnit.MILLISECONDS);
        names.forEach(name -> report(name, "out of time", TIME_MAX_MS));
        start(Harness::closeAll).join(4000);
        long failed = OUTCOMES.values().stream().filter(Objects::nonNull).count();
        System.out.println(OUTCOMES.size() - failed + " passed, " + failed + " failed");
        System.out.flush();
        Runtime.getRuntime().halt(failed == 0 ? 0 : 1); // clients leave threads behind
    }

    private static Thread start(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static void closeAll() {
        for (AutoCloseable client : CLIENTS) {
            try {
                client.close();
            } catch (Exception ended) {
                continue; // the run is over
            }
        }
    }
}
