/* Messages that ob1 carries by put, get or in pieces, according to its parameters: sizes around every limit, both
 * directions at once, buffers that are used again, memory that may only be read, datatypes with gaps on either side or
 * both, and memory that was unmapped and mapped again at the same address, where a registration that was kept would name
 * the old pages. Every byte is checked, also those in gaps and around the buffers.
 *
 *   large [--rounds N] [--max BYTES]     N rounds (2) over all sizes up to BYTES (3145735)
 *
 * Prints one line "OK large ..." on rank 0. */
#define _DEFAULT_SOURCE /* mmap, MAP_ANONYMOUS */
#include "check.h"
#include <sys/mman.h>
#include <unistd.h>

enum { GUARD = 64, BLOCK = 1000, STRIDE = 1400 };

static int rank, peer;
static unsigned long long messages, bytes;

static uint64_t seed_of(int sender, size_t len, long round)
{
    return (uint64_t)sender * 1000003 + (uint64_t)len * 31 + (uint64_t)round * 7919 + 1;
}

/* Sends out and receives in, at once. */
static void exchange(const void *out, int out_count, MPI_Datatype out_type, void *in, int in_count,
                     MPI_Datatype in_type, int synchronous)
{
    MPI_Request requests[2];
    MPI_Irecv(in, in_count, in_type, peer, 5, MPI_COMM_WORLD, &requests[0]);
    if (synchronous)
        MPI_Issend(out, out_count, out_type, peer, 5, MPI_COMM_WORLD, &requests[1]);
    else
        MPI_Isend(out, out_count, out_type, peer, 5, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    messages++;
}

static void check_guard(const unsigned char *p, const char *what)
{
    for (int i = 0; i < GUARD; i++)
        if (p[i] != 0xa5)
            CHECK_DIE("%s: bytes outside of the buffer were written", what);
}

/* One piece of memory to one piece of memory, not at the start of a page. */
static void contiguous(size_t len, long round)
{
    unsigned char *out = check_alloc(len + 2 * GUARD), *in = check_alloc(len + 2 * GUARD);
    check_fill(out + GUARD, len, seed_of(rank, len, round));
    for (int again = 0; again < 2; again++) {
        memset(in, 0xa5, len + 2 * GUARD);
        exchange(out + GUARD, (int)len, MPI_BYTE, in + GUARD, (int)len, MPI_BYTE, again);
        check_verify(in + GUARD, len, seed_of(peer, len, round), "contiguous");
        check_guard(in, "contiguous");
        check_guard(in + GUARD + len, "contiguous");
    }
    bytes += 2 * len;
    free(out);
    free(in);
}

/* Blocks with gaps on the sending side (1), the receiving side (2) or both (3). */
static void with_gaps(size_t len, int sides, long round)
{
    size_t blocks = len / BLOCK;
    if (blocks == 0)
        return;
    len = blocks * BLOCK;
    size_t room = blocks * STRIDE;
    MPI_Datatype vector;
    MPI_Type_vector((int)blocks, BLOCK, STRIDE, MPI_BYTE, &vector);
    MPI_Type_commit(&vector);
    unsigned char *plain = check_alloc(len), *out = check_alloc(room), *in = check_alloc(room);
    check_fill(plain, len, seed_of(rank, len, round));
    memset(out, 0x11, room);
    memset(in, 0xa5, room);
    for (size_t i = 0; i < blocks; i++)
        memcpy(out + i * ((sides & 1) ? STRIDE : BLOCK), plain + i * BLOCK, BLOCK);
    exchange(out, (sides & 1) ? 1 : (int)len, (sides & 1) ? vector : MPI_BYTE, in, (sides & 2) ? 1 : (int)len,
             (sides & 2) ? vector : MPI_BYTE, 0);
    for (size_t i = 0; i < blocks; i++) {
        size_t at = i * ((sides & 2) ? STRIDE : BLOCK);
        memcpy(plain + i * BLOCK, in + at, BLOCK);
        if ((sides & 2) && i + 1 < blocks)
            for (size_t k = BLOCK; k < STRIDE; k++)
                if (in[at + k] != 0xa5)
                    CHECK_DIE("a gap was written");
    }
    check_verify(plain, len, seed_of(peer, len, round), "with gaps");
    bytes += len;
    MPI_Type_free(&vector);
    free(plain);
    free(out);
    free(in);
}

static unsigned char *map_at(void *where, size_t len)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (where != NULL ? MAP_FIXED : 0);
    unsigned char *p = mmap(where, len, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED)
        CHECK_DIE("cannot map %zu bytes", len);
    return p;
}

/* Memory that goes away and comes back: other pages at the same address. */
static void remapped(size_t len, long round)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (len + page - 1) / page * page;
    unsigned char *out = map_at(NULL, room), *in = map_at(NULL, room);
    for (int i = 0; i < 4; i++) {
        if (i > 0) {
            /* Unmapped, then mapped; once by one call that does both. */
            if (i != 2) {
                munmap(out, room);
                munmap(in, room);
            }
            out = map_at(out, room);
            in = map_at(in, room);
        }
        check_fill(out, len, seed_of(rank, len, round * 4 + i));
        memset(in, 0xee, len);
        exchange(out, (int)len, MPI_BYTE, in, (int)len, MPI_BYTE, 0);
        check_verify(in, len, seed_of(peer, len, round * 4 + i), "mapped again");
        bytes += len;
    }
    munmap(out, room);
    munmap(in, room);
}

/* A source that may not be written: its registration must not ask for that. */
static void read_only(size_t len, long round)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (len + page - 1) / page * page;
    unsigned char *out = map_at(NULL, room), *in = check_alloc(len);
    check_fill(out, len, seed_of(rank, len, round));
    if (mprotect(out, room, PROT_READ) != 0)
        CHECK_DIE("mprotect failed");
    memset(in, 0xee, len);
    exchange(out, (int)len, MPI_BYTE, in, (int)len, MPI_BYTE, 0);
    check_verify(in, len, seed_of(peer, len, round), "read only");
    bytes += len;
    munmap(out, room);
    free(in);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"--rounds", "--max", NULL};
    static const size_t sizes[] = {12000,  12280,  12281,  20000,   65536,   65537,   100000,
                                   262144, 262145, 300001, 1048576, 1060864, 1060865, 1500000, 3145735};
    MPI_Init(&argc, &argv);
    check_arguments(argc, argv, names);
    long rounds = check_option(argc, argv, "--rounds", 2);
    size_t max = (size_t)check_option(argc, argv, "--max", 3145735);
    int n;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    if (n != 2)
        CHECK_DIE("large needs exactly 2 ranks");
    peer = 1 - rank;
    for (long round = 0; round < rounds; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            if (sizes[i] > max)
                continue;
            contiguous(sizes[i], round);
            for (int sides = 1; sides <= 3; sides++)
                with_gaps(sizes[i], sides, round);
            remapped(sizes[i], round);
            read_only(sizes[i], round);
        }
    unsigned long long mine[2] = {messages, bytes}, all[2] = {0, 0};
    MPI_Reduce(mine, all, 2, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("OK large messages=%llu bytes=%llu verified\n", all[0], all[1]);
    MPI_Finalize();
    return 0;
}
