import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Garbage, threads, direct buffers and mapped files. */
public class Work {
    static final int MAPPED = 4 << 20;

    static long garbage(int seed) {
        List<byte[]> kept = new ArrayList<>();
        long sum = 0;
        for (int i = 0; i < 3000; i++) {
            byte[] block = new byte[1 + (int) ((long) i * seed * 7919 % 65536)];
            block[block.length - 1] = (byte) i;
            if (i % 32 == 0) {
                kept.add(block);
            }
        }
        for (byte[] block : kept) {
            sum += block.length + block[block.length - 1];
        }
        return sum;
    }

    static long direct(int seed) {
        ByteBuffer buffer = ByteBuffer.allocateDirect(1 << 20);
        long sum = 0;
        while (buffer.hasRemaining()) {
            buffer.put((byte) (buffer.position() * seed));
        }
        buffer.flip();
        while (buffer.hasRemaining()) {
            sum += buffer.get() & 255;
        }
        return sum;
    }

    static long mapped(int seed) throws Exception {
        Path path = Files.createTempFile("work", ".map");
        try (RandomAccessFile file = new RandomAccessFile(path.toFile(), "rw")) {
            MappedByteBuffer map = file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, MAPPED);
            for (int i = 0; i < MAPPED; i += 512) {
                map.put(i, (byte) (i / 512 + seed));
            }
            map.force();
            byte[] back = Files.readAllBytes(path);
            long sum = 0;
            for (int i = 0; i < MAPPED; i += 512) {
                sum += back[i] & 255;
            }
            return sum;
        } finally {
            Files.delete(path);
        }
    }

    public static void main(String[] args) throws Exception {
        int rounds = Integer.parseInt(args[0]);
        long sum = 0;
        for (int round = 0; round < rounds; round++) {
            long[] sums = new long[6];
            List<Thread> threads = new ArrayList<>();
            for (int n = 0; n < sums.length; n++) {
                int me = n;
                Thread thread = new Thread(() -> {
                    try {
                        sums[me] = garbage(me + 1) + direct(me + 1) + mapped(me);
                    } catch (Exception e) {
                        throw new RuntimeException(e);
                    }
                });
                thread.start();
                threads.add(thread);
            }
            for (Thread thread : threads) {
                thread.join();
            }
            for (long s : sums) {
                sum += s;
            }
            System.gc();
        }
        System.out.println("sum " + sum);
    }
}
