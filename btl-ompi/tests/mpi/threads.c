/* MPI_THREAD_MULTIPLE: several threads of each rank exchange messages with the same thread of the other rank, all at
 * once, some small and some large; every byte is checked.
 *
 *   threads [--threads T] [--iters N]     T threads (4), N exchanges each (200)
 *
 * Prints one line "OK threads ..." on rank 0. */
#include "check.h"
#include <pthread.h>

enum { MAX_THREADS = 16 };

static long iters;
static int rank;

static void *exchange(void *argument)
{
    static const size_t lens[] = {0, 8, 100, 5000, 12280, 12281, 70000, 300000};
    int id = *(int *)argument;
    for (long i = 0; i < iters; i++) {
        size_t len = lens[(size_t)(i + id) % (sizeof lens / sizeof *lens)];
        unsigned char *out = check_alloc(len), *in = check_alloc(len);
        uint64_t seed = (uint64_t)(id * 1000000 + i) * 2;
        MPI_Request requests[2];
        check_fill(out, len, seed + (uint64_t)rank);
        memset(in, 0xee, len);
        MPI_Irecv(in, (int)len, MPI_BYTE, 1 - rank, id, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(out, (int)len, MPI_BYTE, 1 - rank, id, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        check_verify(in, len, seed + (uint64_t)(1 - rank), "threads");
        free(out);
        free(in);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"--threads", "--iters", NULL};
    int provided, n, ids[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    check_arguments(argc, argv, names);
    long count = check_option(argc, argv, "--threads", 4);
    iters = check_option(argc, argv, "--iters", 200);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    if (n != 2 || count < 1 || count > MAX_THREADS)
        CHECK_DIE("threads needs exactly 2 ranks and 1..%d threads", MAX_THREADS);
    if (provided != MPI_THREAD_MULTIPLE)
        CHECK_DIE("this MPI does not support MPI_THREAD_MULTIPLE");
    for (int i = 0; i < count; i++) {
        ids[i] = i;
        if (pthread_create(&threads[i], NULL, exchange, &ids[i]) != 0)
            CHECK_DIE("cannot start thread %d", i);
    }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("OK threads threads=%ld exchanges=%ld verified\n", count, count * iters);
    MPI_Finalize();
    return 0;
}
