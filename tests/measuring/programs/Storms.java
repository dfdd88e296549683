// A Java heap that grows and shrinks: one thread fills it with garbage and collects it, while another thread is busy,
// so that its CPU is interrupted. Runs until SIGTERM. Prints that it is ready once the virtual machine has warmed up.
//
// build: mkdir -p $OUT && javac -nowarn -d $OUT $SRC

import sun.misc.Signal;

public class Storms {
    static final int WARM_UP = 10, BLOCKS = 128, BLOCK_BYTES = 1 << 18;
    static volatile boolean ended;
    static volatile byte[][] held;
    static volatile long counted;

    static void growAndShrink() {
        byte[][] blocks = new byte[BLOCKS][];
        held = blocks;
        for (int index = 0; index < BLOCKS; index++) blocks[index] = new byte[BLOCK_BYTES];
        held = null;
        System.gc();
    }

    public static void main(String[] words) throws Exception {
        Signal.handle(new Signal("TERM"), signal -> ended = true);
        Thread busy = new Thread(() -> {
            while (!ended) counted++;
        });
        busy.setDaemon(true);
        busy.start();
        long end = System.nanoTime() + 120_000_000_000L;
        for (int round = 0; !ended && System.nanoTime() < end; round++) {
            growAndShrink();
            if (round == WARM_UP) System.out.println("ready");
        }
        System.out.println("all right");
    }
}
