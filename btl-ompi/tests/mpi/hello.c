/* Every process tells rank 0 who it is, on which host, and with which MPI library: all must be there, and of one library.
 *
 *   hello
 *
 * Prints one line "OK hello ..." on rank 0. */
#include "check.h"

struct greeting {
    int rank, size;
    char host[MPI_MAX_PROCESSOR_NAME];
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
};

int main(int argc, char **argv)
{
    static const char *const names[] = {NULL};
    MPI_Init(&argc, &argv);
    check_arguments(argc, argv, names);
    struct greeting mine;
    int length;
    memset(&mine, 0, sizeof mine);
    MPI_Comm_rank(MPI_COMM_WORLD, &mine.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mine.size);
    MPI_Get_processor_name(mine.host, &length);
    MPI_Get_library_version(mine.library, &length);
    mine.library[strcspn(mine.library, ",\n")] = '\0';

    if (mine.rank != 0) {
        MPI_Send(&mine, (int)sizeof mine, MPI_BYTE, 0, 7, MPI_COMM_WORLD);
    } else {
        unsigned char *seen = check_alloc((size_t)mine.size);
        memset(seen, 0, (size_t)mine.size);
        for (int i = 1; i < mine.size; i++) {
            struct greeting other;
            MPI_Status status;
            MPI_Recv(&other, (int)sizeof other, MPI_BYTE, MPI_ANY_SOURCE, 7, MPI_COMM_WORLD, &status);
            if (other.rank != status.MPI_SOURCE || other.size != mine.size || seen[other.rank])
                CHECK_DIE("hello: rank %d of %d greets as %d of %d", status.MPI_SOURCE, mine.size, other.rank, other.size);
            if (other.host[0] == '\0' || strcmp(other.library, mine.library) != 0)
                CHECK_DIE("hello: rank %d is on \"%s\" with %s, rank 0 has %s", other.rank, other.host, other.library,
                          mine.library);
            seen[other.rank] = 1;
        }
        free(seen);
        printf("OK hello ranks=%d library=%s\n", mine.size, mine.library);
    }
    MPI_Finalize();
    return 0;
}
