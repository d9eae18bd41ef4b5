/* Many messages of random sizes and tags, a window of them at a time, from every rank to the next one; every byte is
 * checked. Sizes are mostly small, some at the edges of the buffer classes, few large.
 *
 *   stress [--messages N] [--window W] [--seed S]     N messages in all (100000), W in flight per rank (64)
 *
 * Prints one line "OK stress ..." on rank 0. */
#include "check.h"

enum { MAX_LEN = 300000, MAX_WINDOW = 4096 };

/* Length of message i of a rank: both ends compute it. */
static size_t length_of(uint64_t seed, int sender, long i)
{
    static const size_t edges[] = {0,     1,     4095,  4096,  12200, 12216, 12217, 12264, 12265, 12280,
                                   12281, 12288, 24576, 65500, 65514, 65528, 65529, 65536, 131072};
    uint64_t r = check_mix(seed + (uint64_t)sender * 1000003 + (uint64_t)i * 17);
    uint64_t kind = r % 1000;
    r >>= 10;
    if (kind < 900)
        return r % 600;
    if (kind < 970)
        return r % 12000;
    if (kind < 996)
        return edges[r % (sizeof edges / sizeof *edges)];
    return r % MAX_LEN;
}

static uint64_t seed_of(uint64_t seed, int sender, long i)
{
    return seed * 977 + (uint64_t)sender * UINT64_C(1000000007) + (uint64_t)i;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"--messages", "--window", "--seed", NULL};
    MPI_Init(&argc, &argv);
    check_arguments(argc, argv, names);
    long messages = check_option(argc, argv, "--messages", 100000);
    long window = check_option(argc, argv, "--window", 64);
    uint64_t seed = (uint64_t)check_option(argc, argv, "--seed", 1);
    int rank, n;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    if (n < 2 || window < 1 || window > MAX_WINDOW)
        CHECK_DIE("stress needs at least 2 ranks and a window of 1..%d", MAX_WINDOW);
    long each = (messages + n - 1) / n;
    int next = (rank + 1) % n, previous = (rank + n - 1) % n;
    unsigned char **out = malloc((size_t)window * sizeof *out), **in = malloc((size_t)window * sizeof *in);
    MPI_Request *requests = malloc((size_t)window * 2 * sizeof *requests);
    MPI_Status *statuses = malloc((size_t)window * 2 * sizeof *statuses);
    if (out == NULL || in == NULL || requests == NULL || statuses == NULL)
        CHECK_DIE("no memory");
    unsigned long long sent = 0, bytes = 0;

    for (long base = 0; base < each; base += window) {
        long batch = each - base < window ? each - base : window;
        for (long i = 0; i < batch; i++) {
            size_t len = length_of(seed, previous, base + i);
            in[i] = check_alloc(len);
            memset(in[i], 0xee, len);
            MPI_Irecv(in[i], (int)len, MPI_BYTE, previous, (int)((base + i) % 32000), MPI_COMM_WORLD, &requests[i]);
        }
        for (long i = 0; i < batch; i++) {
            /* Backwards within the window, so that matching has something to do. */
            long k = batch - 1 - i;
            size_t len = length_of(seed, rank, base + k);
            out[k] = check_alloc(len);
            check_fill(out[k], len, seed_of(seed, rank, base + k));
            MPI_Isend(out[k], (int)len, MPI_BYTE, next, (int)((base + k) % 32000), MPI_COMM_WORLD,
                      &requests[batch + k]);
            sent++;
            bytes += len;
        }
        MPI_Waitall((int)(2 * batch), requests, statuses);
        for (long i = 0; i < batch; i++) {
            size_t len = length_of(seed, previous, base + i);
            int got;
            MPI_Get_count(&statuses[i], MPI_BYTE, &got);
            if ((size_t)got != len)
                CHECK_DIE("stress: message %ld from %d has %d bytes instead of %zu", base + i, previous, got, len);
            check_verify(in[i], len, seed_of(seed, previous, base + i), "stress");
            free(in[i]);
            free(out[i]);
        }
    }
    free(out);
    free(in);
    free(requests);
    free(statuses);
    unsigned long long mine[2] = {sent, bytes}, all[2] = {0, 0};
    MPI_Reduce(mine, all, 2, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("OK stress ranks=%d messages=%llu bytes=%llu window=%ld verified\n", n, all[0], all[1], window);
    MPI_Finalize();
    return 0;
}
