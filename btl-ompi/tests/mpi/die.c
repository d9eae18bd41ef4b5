/* Rank 1 ends badly while the others wait for it: the job must end too.
 *
 *   die [--how N]     0: MPI_Abort (default), 1: SIGKILL, 2: exit without MPI_Finalize
 *
 * Never prints OK. */
#include "check.h"
#include <signal.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static const char *const names[] = {"--how", NULL};
    int rank, n, value = 0;
    MPI_Init(&argc, &argv);
    check_arguments(argc, argv, names);
    long how = check_option(argc, argv, "--how", 0);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    /* Everybody is connected to rank 1. */
    if (rank == 1) {
        for (int from = 0; from < n; from++)
            if (from != 1)
                MPI_Recv(&value, 1, MPI_INT, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int to = 0; to < n; to++)
            if (to != 1)
                MPI_Send(&value, 1, MPI_INT, to, 0, MPI_COMM_WORLD);
        if (how == 0)
            MPI_Abort(MPI_COMM_WORLD, 17);
        if (how == 1)
            kill(getpid(), SIGKILL);
        _exit(3);
    }
    MPI_Send(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
    MPI_Recv(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    /* This one never comes. */
    MPI_Recv(&value, 1, MPI_INT, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("FAILED: die: rank %d came back\n", rank);
    MPI_Finalize();
    return 0;
}
