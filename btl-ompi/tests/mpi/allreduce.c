/* Allreduce of integers (sum, max and xor) over vectors of 1 to 262144 elements; every rank checks every element.
 *
 *   allreduce [--iters N]     N rounds per length (10)
 *
 * Prints one line "OK allreduce ..." on rank 0. */
#include "check.h"

static uint64_t element(uint64_t round, int rank, size_t i)
{
    return check_mix(round * 131071 + (uint64_t)rank * 7919 + i) >> 16;
}

static void round_of(MPI_Op op, const char *name, uint64_t round, int rank, int n, uint64_t *in, uint64_t *out,
                     size_t len)
{
    for (size_t i = 0; i < len; i++)
        in[i] = element(round, rank, i);
    memset(out, 0xee, len * sizeof *out);
    MPI_Allreduce(in, out, (int)len, MPI_UINT64_T, op, MPI_COMM_WORLD);
    for (size_t i = 0; i < len; i++) {
        uint64_t want = element(round, 0, i);
        for (int r = 1; r < n; r++) {
            uint64_t x = element(round, r, i);
            want = op == MPI_SUM ? want + x : op == MPI_MAX ? (x > want ? x : want) : want ^ x;
        }
        if (out[i] != want)
            CHECK_DIE("allreduce %s: element %zu of %zu is %llx, not %llx, on rank %d", name, i, len,
                      (unsigned long long)out[i], (unsigned long long)want, rank);
    }
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"--iters", NULL};
    static const size_t lengths[] = {1, 2, 17, 1000, 1535, 8192, 65536, 262144};
    MPI_Init(&argc, &argv);
    check_arguments(argc, argv, names);
    long iters = check_option(argc, argv, "--iters", 10);
    int rank, n;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    unsigned long long rounds = 0;

    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        size_t len = lengths[l];
        uint64_t *in = (uint64_t *)check_alloc(len * 8), *out = (uint64_t *)check_alloc(len * 8);
        for (long i = 0; i < iters; i++) {
            uint64_t round = (uint64_t)i * 100 + l;
            round_of(MPI_SUM, "sum", round, rank, n, in, out, len);
            round_of(MPI_MAX, "max", round, rank, n, in, out, len);
            round_of(MPI_BXOR, "xor", round, rank, n, in, out, len);
            rounds += 3;
        }
        free(in);
        free(out);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("OK allreduce ranks=%d rounds=%llu verified\n", n, rounds);
    MPI_Finalize();
    return 0;
}
