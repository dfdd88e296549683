import java.util.HashMap;

/** Merges numbers into a map of as many keys. */
public class Merge {
    private static final int KEYS = 3_000_000;

    public static void main(String[] words) {
        HashMap<Integer, Integer> table = new HashMap<>();
        long place = 1;
        for (int round = 0; round < KEYS; round++) {
            place = (place * 48_271) % 2_147_483_647L;
            table.merge((int) (place % KEYS), 1, Integer::sum);
        }
        System.out.println(table.size());
    }
}
