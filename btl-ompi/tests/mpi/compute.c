/* Both ranks start an exchange and then compute for a long time without one MPI call; the messages must arrive all the
 * same, and the connection must not break. This is what happens when set-up needs the application's CPU.
 *
 *   compute [--seconds N] [--size BYTES]     N seconds of computing (60), BYTES per message (8192, and 1 MiB always)
 *
 * Prints one line "OK compute ..." on rank 0. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "check.h"
#include <time.h>

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"--seconds", "--size", NULL};
    MPI_Init(&argc, &argv);
    check_arguments(argc, argv, names);
    double seconds = (double)check_option(argc, argv, "--seconds", 60);
    size_t lens[2] = {(size_t)check_option(argc, argv, "--size", 8192), 1048576};
    int rank, n;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    if (n != 2)
        CHECK_DIE("compute needs exactly 2 ranks");
    int peer = 1 - rank;
    unsigned char *out[2], *in[2];
    MPI_Request requests[4];

    for (int i = 0; i < 2; i++) {
        out[i] = check_alloc(lens[i]);
        in[i] = check_alloc(lens[i]);
        check_fill(out[i], lens[i], (uint64_t)(100 + i * 2 + rank));
        memset(in[i], 0xee, lens[i]);
        MPI_Irecv(in[i], (int)lens[i], MPI_BYTE, peer, i, MPI_COMM_WORLD, &requests[i]);
        MPI_Isend(out[i], (int)lens[i], MPI_BYTE, peer, i, MPI_COMM_WORLD, &requests[2 + i]);
    }
    volatile uint64_t work = 1;
    for (double end = now() + seconds; now() < end;)
        for (int i = 0; i < 100000; i++)
            work = check_mix(work);
    double waited = now();
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    waited = now() - waited;
    for (int i = 0; i < 2; i++)
        check_verify(in[i], lens[i], (uint64_t)(100 + i * 2 + peer), "compute");
    double longest = 0;
    MPI_Reduce(&waited, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("OK compute seconds=%.0f wait_s=%.3f verified\n", seconds, longest);
    MPI_Finalize();
    return 0;
}
