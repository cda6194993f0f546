import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * Takes and releases one lock with Curator's InterProcessMutex. The commands are lines on standard
 * input. Arguments: host:port, the lock's path, the session timeout in milliseconds.
 */
public final class Holder {
    private Holder() {}

    public static void main(String[] args) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(
                args[0], Integer.parseInt(args[2]), 10_000, new RetryOneTime(1_000));
        client.start();
        client.blockUntilConnected();
        InterProcessMutex mutex = new InterProcessMutex(client, args[1]);
        System.out.println("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String command; (command = commands.readLine()) != null;) {
            switch (command) {
                case "acquire":
                    mutex.acquire();
                    System.out.println("acquired");
                    break;
                case "release":
                    mutex.release();
                    System.out.println("released");
                    break;
                default:
                    throw new IllegalArgumentException(command);
            }
        }
        client.close(); // standard input has ended: the test is over
    }
}
