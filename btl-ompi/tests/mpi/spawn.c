/* Two processes start two more, all four exchange messages of 0 B to 300000 B around a ring, and they part again. While
 * it connects the jobs, Open MPI blocks one process outside of MPI: what it was told is sent must have left.
 *
 *   spawn     started by mpirun with 2 ranks
 *
 * Prints one line "OK spawn ..." on rank 0. */
#include "check.h"

static void ring(MPI_Comm all)
{
    static const size_t lens[] = {0, 1, 1000, 12280, 12281, 300000};
    int rank, n;
    MPI_Comm_rank(all, &rank);
    MPI_Comm_size(all, &n);
    int next = (rank + 1) % n, previous = (rank + n - 1) % n;
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        unsigned char *out = check_alloc(lens[i]), *in = check_alloc(lens[i]);
        check_fill(out, lens[i], i * 100 + (uint64_t)rank);
        memset(in, 0xee, lens[i]);
        MPI_Sendrecv(out, (int)lens[i], MPI_BYTE, next, 1, in, (int)lens[i], MPI_BYTE, previous, 1, all,
                     MPI_STATUS_IGNORE);
        check_verify(in, lens[i], i * 100 + (uint64_t)previous, "spawn");
        free(out);
        free(in);
    }
}

int main(int argc, char **argv)
{
    MPI_Comm parent, between, all;
    int rank, n, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_get_parent(&parent);
    if (parent == MPI_COMM_NULL)
        MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &between, MPI_ERRCODES_IGNORE);
    else
        between = parent;
    MPI_Intercomm_merge(between, parent != MPI_COMM_NULL, &all);
    MPI_Comm_rank(all, &rank);
    MPI_Comm_size(all, &n);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, all);
    if (sum != n * (n - 1) / 2)
        CHECK_DIE("spawn: the ranks of %d processes add up to %d", n, sum);
    ring(all);
    MPI_Barrier(all);
    if (rank == 0)
        printf("OK spawn ranks=%d verified\n", n);
    MPI_Comm_free(&all);
    MPI_Comm_disconnect(&between);
    MPI_Finalize();
    return 0;
}
