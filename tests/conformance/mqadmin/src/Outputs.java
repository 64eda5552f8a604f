import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs the commands of standard input, one a line with its words divided by tabs; prints what each prints. */
public final class Outputs {
    private Outputs() {}

    public static void main(String[] ignored) throws Exception {
        PrintStream out = System.out;
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream text = new ByteArrayOutputStream();
            PrintStream captured = new PrintStream(text, true, StandardCharsets.UTF_8);
            System.setOut(captured);
            System.setErr(captured);
            MQAdminStartup.main0(line.split("\t"), null);
            out.println("\u0001" + line);
            out.print(text.toString(StandardCharsets.UTF_8));
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }
}
