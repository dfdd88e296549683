# A HashMap of a million boxed numbers, and random look-ups in it.
. "$(dirname "$0")/common.sh"
prepare() {
    cat >LookUps.java <<'JAVA'
import java.util.HashMap;
class LookUps {
    public static void main(String[] words) {
        int count = 1000000;
        HashMap<Long, Long> table = new HashMap<>();
        for (long number = 0; number < count; number++) table.put(number * 7919, number);
        long state = 1, total = 0;
        for (int step = 0; step < 2000000; step++) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            total += table.get((state >>> 33) % count * 7919);
        }
        System.out.println(total);
    }
}
JAVA
    javac LookUps.java
}
run() { cpu $RUN java -Xms400m -Xmx400m -XX:+UseSerialGC -cp . LookUps; }
"$1"
