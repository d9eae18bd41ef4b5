/* Ping-pong between ranks 0 and 1 from 0 B to 4 MiB. First every byte of some exchanges is checked both ways, then
 * the time is taken, then the last message is checked again.
 *
 *   pingpong [--iters N] [--max BYTES]     N timed round trips per size up to 64 KiB, fewer above (100)
 *
 * Prints on rank 0, parseable:
 *   size_bytes latency_us bandwidth_MBps
 *   0 12.34 0.00
 *   ...
 *   OK pingpong ... */
#include "check.h"

enum { CHECKED = 3 };

static void exchange(int rank, unsigned char *out, unsigned char *in, size_t len, int tag)
{
    MPI_Status status;
    int peer = 1 - rank, got;
    if (rank == 0)
        MPI_Send(out, (int)len, MPI_BYTE, peer, tag, MPI_COMM_WORLD);
    MPI_Recv(in, (int)len, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &status);
    if (rank == 1)
        MPI_Send(out, (int)len, MPI_BYTE, peer, tag, MPI_COMM_WORLD);
    MPI_Get_count(&status, MPI_BYTE, &got);
    if ((size_t)got != len)
        CHECK_DIE("pingpong: %d bytes instead of %zu", got, len);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"--iters", "--max", NULL};
    MPI_Init(&argc, &argv);
    check_arguments(argc, argv, names);
    long iters = check_option(argc, argv, "--iters", 100);
    size_t max = (size_t)check_option(argc, argv, "--max", 4194304);
    int rank, n;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    if (n < 2)
        CHECK_DIE("pingpong needs at least 2 ranks");
    if (iters < 1)
        CHECK_DIE("--iters must be at least 1");
    unsigned long long checked = 0;

    if (rank == 0)
        printf("size_bytes latency_us bandwidth_MBps\n");
    for (size_t len = 0; rank < 2 && len <= max; len = len == 0 ? 1 : len * 2) {
        unsigned char *out = check_alloc(len), *in = check_alloc(len);
        long rounds = len <= 65536 ? iters : iters * 65536 / (long)len;
        if (rounds < 4)
            rounds = 4;
        for (int i = 0; i < CHECKED; i++) {
            check_fill(out, len, len * 8 + (uint64_t)(i * 2 + rank));
            memset(in, 0xee, len);
            exchange(rank, out, in, len, i);
            check_verify(in, len, len * 8 + (uint64_t)(i * 2 + 1 - rank), "pingpong");
            checked++;
        }
        double start = MPI_Wtime();
        for (long i = 0; i < rounds; i++)
            exchange(rank, out, in, len, CHECKED);
        double seconds = (MPI_Wtime() - start) / (double)rounds / 2;
        check_verify(in, len, len * 8 + (uint64_t)((CHECKED - 1) * 2 + 1 - rank), "pingpong after timing");
        if (rank == 0) {
            printf("%zu %.2f %.2f\n", len, seconds * 1e6, seconds > 0 ? (double)len / seconds / 1e6 : 0.0);
            fflush(stdout);
        }
        free(out);
        free(in);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("OK pingpong ranks=%d max=%zu checked=%llu verified\n", n, max, checked);
    MPI_Finalize();
    return 0;
}
