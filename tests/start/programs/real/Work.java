// Work for a Java virtual machine: compiled code, garbage, threads, exceptions.
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.stream.IntStream;

public class Work {
    static long hot(int seed) {
        long sum = 0;
        for (int i = 0; i < 20_000_000; i++) sum = sum * 31 + (i ^ seed);
        return sum;
    }

    static int deep(int depth) {
        return depth == 0 ? new int[0][0].length : 1 + deep(depth - 1);
    }

    public static void main(String[] arguments) throws Exception {
        List<Thread> threads = new ArrayList<>();
        long[] sums = new long[4];
        for (int t = 0; t < 4; t++) {
            int id = t;
            threads.add(new Thread(() -> sums[id] = hot(id)));
        }
        for (Thread thread : threads) thread.start();
        for (Thread thread : threads) thread.join();
        for (long sum : sums) System.out.println(sum);
        TreeMap<String, Integer> map = new TreeMap<>();
        IntStream.range(0, 300_000).forEach(i -> map.merge(Integer.toString(i % 1000, 36), i, Integer::sum));
        System.out.println(map.hashCode());
        String nothing = arguments.length > 5 ? "x" : null;
        try {
            System.out.println(nothing.length()); // a signal inside, an exception outside
        } catch (NullPointerException e) {
            System.out.println("null is null");
        }
        try {
            System.out.println(deep(100_000_000));
        } catch (StackOverflowError e) {
            System.out.println("deep enough");
        }
        System.gc();
        System.out.println("done");
    }
}
