import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Properties;

/** Runs a Debezium connector and prints what it captures, a batch at a time, until its standard input ends. */
public final class DebeziumFeed {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static final BufferedReader IN = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private static volatile boolean hasFailed;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader(arguments[0], StandardCharsets.UTF_8)) {
            settings.load(file);
        }
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
                .using(settings)
                .using((success, message, error) -> {
                    if (!success) {
                        hasFailed = true;
                        System.err.println("failed: " + message + (error == null ? "" : ": " + error));
                    }
                })
                .notifying(DebeziumFeed::handle)
                .build();
        engine.run();
        System.exit(hasFailed ? 1 : 0);
    }

    /** Prints a batch, and goes on once the reader has said that it is safely stored. */
    private static void handle(
            List<ChangeEvent<String, String>> events,
            DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) throws InterruptedException {
        for (ChangeEvent<String, String> event : events) {
            OUT.print("{\"key\":" + event.key() + ",\"value\":" + event.value() + "}\n");
        }
        OUT.print("\n");
        OUT.flush();
        try {
            if (IN.readLine() == null) {
                System.exit(0);
            }
        } catch (java.io.IOException error) {
            System.exit(1);
        }
        for (ChangeEvent<String, String> event : events) {
            committer.markProcessed(event);
        }
        committer.markBatchFinished();
    }
}
