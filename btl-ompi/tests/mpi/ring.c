/* Passes messages of 0 B to 4 MiB around a ring; every rank checks every byte.
 *
 *   ring [--iters N]     N rounds per size (10)
 *
 * Prints one line "OK ring ..." on rank 0. */
#include "check.h"

static const size_t sizes[] = {0, 1, 7, 8, 100, 1023, 4096, 12216, 12280, 12281, 16384, 65535, 65536, 65537,
                               262144, 1048576, 4194304};

int main(int argc, char **argv)
{
    static const char *const names[] = {"--iters", NULL};
    MPI_Init(&argc, &argv);
    check_arguments(argc, argv, names);
    long iters = check_option(argc, argv, "--iters", 10);
    int rank, n;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    if (n < 2)
        CHECK_DIE("ring needs at least 2 ranks");
    int next = (rank + 1) % n, previous = (rank + n - 1) % n;
    unsigned long long bytes = 0, messages = 0;

    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t len = sizes[s];
        unsigned char *out = check_alloc(len), *in = check_alloc(len);
        for (long i = 0; i < iters; i++) {
            uint64_t seed = (uint64_t)i * 1000 + s;
            int tag = (int)(i % 1000);
            check_fill(out, len, seed * 64 + (uint64_t)rank);
            memset(in, 0xee, len);
            MPI_Request request;
            MPI_Status status;
            MPI_Irecv(in, (int)len, MPI_BYTE, previous, tag, MPI_COMM_WORLD, &request);
            MPI_Send(out, (int)len, MPI_BYTE, next, tag, MPI_COMM_WORLD);
            MPI_Wait(&request, &status);
            int got;
            MPI_Get_count(&status, MPI_BYTE, &got);
            if ((size_t)got != len || status.MPI_SOURCE != previous || status.MPI_TAG != tag)
                CHECK_DIE("ring: %d bytes from %d tag %d instead of %zu from %d tag %d", got, status.MPI_SOURCE,
                          status.MPI_TAG, len, previous, tag);
            check_verify(in, len, seed * 64 + (uint64_t)previous, "ring");
            bytes += len;
            messages++;
        }
        free(out);
        free(in);
    }
    unsigned long long mine[2] = {bytes, messages}, all[2] = {0, 0};
    MPI_Reduce(mine, all, 2, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("OK ring ranks=%d messages=%llu bytes=%llu verified\n", n, all[1], all[0]);
    MPI_Finalize();
    return 0;
}
