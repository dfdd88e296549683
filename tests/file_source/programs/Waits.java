// Prints that it is ready, waits for a line, and works.
import java.util.Scanner;

public class Waits {
    public static void main(String[] words) {
        System.out.println("ready");
        new Scanner(System.in).nextLine();
        long sum = 0;
        for (int i = 0; i < 1_000_000; i++) sum = sum * 31 + Integer.toString(i).hashCode();
        System.out.println("sums to " + sum);
    }
}
