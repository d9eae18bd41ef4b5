/* Opens MPI sessions, sends messages in them and closes them, again and again in one process: each time the transport is
 * started and ended anew. In every second cycle there are two sessions at a time.
 *
 *   sessions [--cycles N]     how often (3)
 *
 * Prints one line "OK sessions ..." on rank 0. */
#include "../check.h"

static MPI_Comm open_world(MPI_Session *session, const char *name)
{
    MPI_Group group;
    MPI_Comm world;
    if (MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, session) != MPI_SUCCESS ||
        MPI_Group_from_session_pset(*session, "mpi://WORLD", &group) != MPI_SUCCESS ||
        MPI_Comm_create_from_group(group, name, MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &world) != MPI_SUCCESS) {
        fprintf(stderr, "FAILED: sessions: no communicator %s\n", name);
        exit(1);
    }
    MPI_Group_free(&group);
    return world;
}

static void ring(MPI_Comm comm, uint64_t seed)
{
    static const size_t lens[] = {0, 1, 1000, 12280, 12281, 300000};
    int rank, n, sum = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &n);
    int next = (rank + 1) % n, previous = (rank + n - 1) % n;
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        uint64_t base = (seed * 100 + i) * 64;
        unsigned char *out = check_alloc(lens[i]), *in = check_alloc(lens[i]);
        check_fill(out, lens[i], base + (uint64_t)rank);
        memset(in, 0xee, lens[i]);
        MPI_Sendrecv(out, (int)lens[i], MPI_BYTE, next, 1, in, (int)lens[i], MPI_BYTE, previous, 1, comm,
                     MPI_STATUS_IGNORE);
        check_verify(in, lens[i], base + (uint64_t)previous, "sessions");
        free(out);
        free(in);
    }
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm);
    if (sum != n * (n - 1) / 2)
        CHECK_DIE("sessions: the ranks of %d processes add up to %d", n, sum);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"--cycles", NULL};
    check_arguments(argc, argv, names);
    long cycles = check_option(argc, argv, "--cycles", 3);
    int rank = -1, n = 0;
    for (long cycle = 0; cycle < cycles; cycle++) {
        MPI_Session first, second;
        MPI_Comm one = open_world(&first, "org.rdma-safe.one"), two;
        MPI_Comm_rank(one, &rank);
        MPI_Comm_size(one, &n);
        ring(one, (uint64_t)cycle * 2);
        if (cycle % 2 == 1) {
            two = open_world(&second, "org.rdma-safe.two");
            ring(two, (uint64_t)cycle * 2 + 1);
            ring(one, (uint64_t)cycle * 2);
            MPI_Comm_disconnect(&two);
            MPI_Session_finalize(&second);
            ring(one, (uint64_t)cycle * 2);
        }
        MPI_Comm_disconnect(&one);
        MPI_Session_finalize(&first);
    }
    if (rank == 0)
        printf("OK sessions ranks=%d cycles=%ld verified\n", n, cycles);
    return 0;
}
