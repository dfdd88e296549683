// Answers GET /N with N * 7919 + 1, from a pool of threads, with garbage to collect; ends with its input.
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.LongStream;

public class HttpAnswers {
    public static void main(String[] arguments) throws Exception {
        AtomicLong served = new AtomicLong();
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.setExecutor(Executors.newFixedThreadPool(16));
        server.createContext("/", exchange -> {
            long n = Long.parseLong(exchange.getRequestURI().getPath().substring(1));
            long ones = LongStream.range(0, 2000).boxed().map(String::valueOf).filter("1"::equals).count();
            byte[] answer = Long.toString(n * 7919 + ones).getBytes();
            // Before the answer: the client may end the program as soon as it has the answer.
            served.incrementAndGet();
            exchange.sendResponseHeaders(200, answer.length);
            exchange.getResponseBody().write(answer);
            exchange.close();
        });
        server.start();
        System.out.println("port " + server.getAddress().getPort());
        while (System.in.read() >= 0) { }
        System.out.println("served " + served);
        System.exit(0);
    }
}
