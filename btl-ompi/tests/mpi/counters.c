/* Reads the component's MPI_T performance variables around a known number of messages.
 *
 *   counters [--messages N]     N messages from rank 0 to rank 1 and back (100)
 *
 * Prints one line "OK counters ..." on rank 0. */
#include "check.h"

static MPI_T_pvar_session session;

/* The handle of btl_verbs_NAME, or the end of the job. */
static MPI_T_pvar_handle handle_of(const char *wanted)
{
    int n;
    if (MPI_T_pvar_get_num(&n) != MPI_SUCCESS)
        CHECK_DIE("counters: no performance variables");
    for (int i = 0; i < n; i++) {
        char name[256], text[1024];
        int name_len = sizeof name, text_len = sizeof text, verbosity, class, bind, readonly, continuous, atomic, count;
        MPI_Datatype type;
        MPI_T_enum values;
        if (MPI_T_pvar_get_info(i, name, &name_len, &verbosity, &class, &type, &values, text, &text_len, &bind,
                                &readonly, &continuous, &atomic) != MPI_SUCCESS)
            continue;
        if (strcmp(name, wanted) != 0)
            continue;
        if (class != MPI_T_PVAR_CLASS_COUNTER || type != MPI_UNSIGNED_LONG_LONG || !readonly || !continuous ||
            bind != MPI_T_BIND_NO_OBJECT || text_len <= 1)
            CHECK_DIE("counters: %s is not what it should be", wanted);
        MPI_T_pvar_handle handle;
        if (MPI_T_pvar_handle_alloc(session, i, NULL, &handle, &count) != MPI_SUCCESS || count != 1)
            CHECK_DIE("counters: no handle of %s", wanted);
        return handle;
    }
    CHECK_DIE("counters: there is no %s among %d variables", wanted, n);
}

static unsigned long long value_of(MPI_T_pvar_handle handle)
{
    unsigned long long value = 0;
    if (MPI_T_pvar_read(session, handle, &value) != MPI_SUCCESS)
        CHECK_DIE("counters: a variable cannot be read");
    return value;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"--messages", NULL};
    int provided, rank;
    MPI_Init(&argc, &argv);
    if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS)
        CHECK_DIE("counters: MPI_T does not start");
    check_arguments(argc, argv, names);
    long messages = check_option(argc, argv, "--messages", 100);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (MPI_T_pvar_session_create(&session) != MPI_SUCCESS)
        CHECK_DIE("counters: no session");
    MPI_T_pvar_handle sent = handle_of("btl_verbs_messages_sent"), received = handle_of("btl_verbs_messages_received"),
                      bytes = handle_of("btl_verbs_bytes_sent"), lanes = handle_of("btl_verbs_lanes_up"),
                      failed = handle_of("btl_verbs_peers_failed");
    unsigned long long before = value_of(sent);
    char data[64] = {0};
    for (long i = 0; rank < 2 && i < messages; i++) {
        if (rank == 0)
            MPI_Send(data, sizeof data, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(data, sizeof data, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1)
            MPI_Send(data, sizeof data, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    }
    unsigned long long n = value_of(sent) - before, got = value_of(received), up = value_of(lanes);
    if (rank < 2 && (n < (unsigned long long)messages || n > (unsigned long long)messages * 2 + 100))
        CHECK_DIE("counters: %llu messages sent, not %ld", n, messages);
    if (rank < 2 && (got < (unsigned long long)messages || value_of(bytes) < (unsigned long long)messages * 64))
        CHECK_DIE("counters: %llu messages received, %llu bytes sent", got, value_of(bytes));
    if (rank < 2 && (up < 1 || value_of(failed) != 0))
        CHECK_DIE("counters: %llu connections came up, %llu peers failed", up, value_of(failed));
    MPI_T_pvar_session_free(&session);
    if (rank == 0)
        printf("OK counters messages=%ld sent=%llu received=%llu lanes=%llu\n", messages, n, got, up);
    MPI_T_finalize();
    MPI_Finalize();
    return 0;
}
