/* Every pair of processes exchanges one message each way, one pair after the other, first those who never spoke before.
 *
 *   connectivity [--bytes N]     size of a message (4096)
 *
 * Prints one line "OK connectivity ..." on rank 0. */
#include "check.h"

int main(int argc, char **argv)
{
    static const char *const names[] = {"--bytes", NULL};
    MPI_Init(&argc, &argv);
    check_arguments(argc, argv, names);
    size_t len = (size_t)check_option(argc, argv, "--bytes", 4096);
    int rank, n;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    unsigned char *out = check_alloc(len), *in = check_alloc(len);
    long pairs = 0;
    for (int a = 0; a < n; a++) {
        for (int b = a + 1; b < n; b++) {
            int peer = rank == a ? b : a;
            if (rank == a || rank == b) {
                check_fill(out, len, (uint64_t)(rank * n + peer));
                memset(in, 0xee, len);
                if (rank == a) {
                    MPI_Send(out, (int)len, MPI_BYTE, peer, b, MPI_COMM_WORLD);
                    MPI_Recv(in, (int)len, MPI_BYTE, peer, b, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                } else {
                    MPI_Recv(in, (int)len, MPI_BYTE, peer, b, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                    MPI_Send(out, (int)len, MPI_BYTE, peer, b, MPI_COMM_WORLD);
                }
                check_verify(in, len, (uint64_t)(peer * n + rank), "connectivity");
            }
            pairs++;
        }
    }
    free(out);
    free(in);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("OK connectivity ranks=%d pairs=%ld verified\n", n, pairs);
    MPI_Finalize();
    return 0;
}
