import java.util.HashMap;

/** A HashMap of a million boxed numbers, and random look-ups in it. */
class LookUps {
    public static void main(String[] words) {
        int count = 1_000_000;
        HashMap<Long, Long> table = new HashMap<>();
        for (long number = 0; number < count; number++) table.put(number * 7919, number);
        long state = 1, total = 0;
        for (int step = 0; step < 4 * count; step++) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            total += table.get((state >>> 33) % count * 7919);
        }
        System.out.println(total);
    }
}
