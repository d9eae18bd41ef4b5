/* One-sided communication over windows of every kind, checked by content: put and get between fences, accumulate,
 * get_accumulate, fetch_and_op and compare_and_swap by all ranks at once, locks (shared, exclusive, of all), flush,
 * post/start/complete/wait, large transfers and datatypes with gaps.
 *
 *   windows [--iters N] [--max BYTES]     N rounds (20), transfers up to BYTES (1048576)
 *
 * Prints one line "OK windows ..." on rank 0. */
#include "check.h"

static int rank, n;
static long iters;
static size_t max_len;

/* A window of this kind over len bytes of zeros. */
static unsigned char *make(int kind, size_t len, MPI_Win *win)
{
    unsigned char *base = NULL;
    if (kind == 0) {
        base = check_alloc(len);
        MPI_Win_create(base, (MPI_Aint)len, 1, MPI_INFO_NULL, MPI_COMM_WORLD, win);
    } else {
        MPI_Win_allocate((MPI_Aint)len, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, win);
    }
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, *win);
    memset(base, 0, len);
    MPI_Win_unlock(rank, *win);
    MPI_Barrier(MPI_COMM_WORLD);
    return base;
}

static void unmake(int kind, unsigned char *base, MPI_Win *win)
{
    MPI_Win_free(win);
    if (kind == 0)
        free(base);
}

/* Every rank puts to the next, gets from the one before, between fences. */
static void fences(int kind)
{
    MPI_Win win;
    unsigned char *base = make(kind, 2 * max_len, &win), *mine = check_alloc(max_len), *got = check_alloc(max_len);
    int next = (rank + 1) % n, before = (rank + n - 1) % n;
    static const size_t lens[] = {1, 7, 8, 4096, 12281, 65537, 300000, 1048576};
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        size_t len = lens[i] < max_len ? lens[i] : max_len;
        uint64_t seed = (uint64_t)i * 100;
        check_fill(mine, len, seed + (uint64_t)rank);
        MPI_Win_fence(0, win);
        check_fill(base + max_len, len, seed + 50 + (uint64_t)rank);
        MPI_Win_fence(0, win);
        MPI_Put(mine, (int)len, MPI_BYTE, next, 0, (int)len, MPI_BYTE, win);
        MPI_Get(got, (int)len, MPI_BYTE, before, (MPI_Aint)max_len, (int)len, MPI_BYTE, win);
        MPI_Win_fence(0, win);
        check_verify(base, len, seed + (uint64_t)before, "put between fences");
        check_verify(got, len, seed + 50 + (uint64_t)before, "get between fences");
        MPI_Win_fence(0, win);
    }
    free(mine);
    free(got);
    unmake(kind, base, &win);
}

/* Counters that all ranks change at once: none of the changes may be lost. */
static void counters(int kind)
{
    enum { CELLS = 64 };
    MPI_Win win;
    unsigned char *base = make(kind, CELLS * 8, &win);
    int64_t one = 1, old, ones[CELLS], got[CELLS];
    int owner = n - 1;
    for (int i = 0; i < CELLS; i++)
        ones[i] = i + 1;
    MPI_Win_lock_all(0, win);
    for (long i = 0; i < iters; i++) {
        MPI_Fetch_and_op(&one, &old, MPI_INT64_T, owner, 0, MPI_SUM, win);
        MPI_Win_flush(owner, win);
        if (old < i || old > iters * n)
            CHECK_DIE("fetch_and_op: a counter went from %ld to %ld", i, (long)old);
        MPI_Accumulate(&ones[1], CELLS / 2, MPI_INT64_T, owner, 8, CELLS / 2, MPI_INT64_T, MPI_SUM, win);
        MPI_Get_accumulate(&ones[CELLS / 2 + 1], 8, MPI_INT64_T, got, 8, MPI_INT64_T, owner, (CELLS / 2 + 1) * 8, 8,
                           MPI_INT64_T, MPI_SUM, win);
        MPI_Win_flush(owner, win);
        /* A counter by compare and swap: try until nobody was between. */
        int64_t seen = 0;
        for (;;) {
            int64_t want = seen + 1, was;
            MPI_Compare_and_swap(&want, &seen, &was, MPI_INT64_T, owner, (CELLS - 1) * 8, win);
            MPI_Win_flush(owner, win);
            if (was == seen)
                break;
            seen = was;
        }
    }
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == owner) {
        MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, win);
        const int64_t *cells = (const int64_t *)(const void *)base;
        for (int i = 0; i < CELLS; i++) {
            int64_t each = i == 0 || i == CELLS - 1 ? 1 : i <= CELLS / 2 + 8 ? i + 1 : 0;
            if (cells[i] != each * iters * n)
                CHECK_DIE("counter %d is %ld instead of %ld", i, (long)cells[i], (long)(each * iters * n));
        }
        MPI_Win_unlock(rank, win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    unmake(kind, base, &win);
}

/* A record that is only ever changed as a whole, under an exclusive lock. */
static void locks(int kind)
{
    enum { WORDS = 500 };
    MPI_Win win;
    unsigned char *base = make(kind, WORDS * 8, &win);
    int64_t record[WORDS];
    for (long i = 0; i < iters; i++) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
        MPI_Get(record, WORDS, MPI_INT64_T, 0, 0, WORDS, MPI_INT64_T, win);
        MPI_Win_flush(0, win);
        for (int k = 1; k < WORDS; k++)
            if (record[k] != record[0])
                CHECK_DIE("a record was read in the middle of a change");
        for (int k = 0; k < WORDS; k++)
            record[k] += 1;
        MPI_Put(record, WORDS, MPI_INT64_T, 0, 0, WORDS, MPI_INT64_T, win);
        MPI_Win_unlock(0, win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
        if (((const int64_t *)(const void *)base)[0] != iters * n)
            CHECK_DIE("changes under a lock were lost");
        MPI_Win_unlock(0, win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    unmake(kind, base, &win);
}

/* Post, start, complete, wait with all others; the data have gaps. */
static void epochs(int kind)
{
    enum { BLOCKS = 300, EACH = 40, GAP = 24 };
    MPI_Win win;
    size_t part = (size_t)BLOCKS * (EACH + GAP);
    unsigned char *base = make(kind, part * (size_t)n, &win), *plain = check_alloc(BLOCKS * EACH);
    MPI_Group all, others;
    MPI_Datatype vector;
    MPI_Type_vector(BLOCKS, EACH, EACH + GAP, MPI_BYTE, &vector);
    MPI_Type_commit(&vector);
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_excl(all, 1, &rank, &others);
    check_fill(plain, BLOCKS * EACH, (uint64_t)rank + 1);
    MPI_Win_post(others, 0, win);
    MPI_Win_start(others, 0, win);
    for (int to = 0; to < n; to++)
        if (to != rank)
            MPI_Put(plain, BLOCKS * EACH, MPI_BYTE, to, (MPI_Aint)(part * (size_t)rank), 1, vector, win);
    MPI_Win_complete(win);
    MPI_Win_wait(win);
    for (int from = 0; from < n; from++) {
        if (from == rank)
            continue;
        for (size_t i = 0; i < BLOCKS; i++)
            memcpy(plain + i * EACH, base + part * (size_t)from + i * (EACH + GAP), EACH);
        check_verify(plain, BLOCKS * EACH, (uint64_t)from + 1, "put with gaps");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Group_free(&others);
    MPI_Group_free(&all);
    MPI_Type_free(&vector);
    free(plain);
    unmake(kind, base, &win);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"--iters", "--max", NULL};
    MPI_Init(&argc, &argv);
    check_arguments(argc, argv, names);
    iters = check_option(argc, argv, "--iters", 20);
    max_len = (size_t)check_option(argc, argv, "--max", 1048576);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    if (n < 2)
        CHECK_DIE("windows needs at least 2 ranks");
    for (int kind = 0; kind < 2; kind++) {
        fences(kind);
        counters(kind);
        locks(kind);
        epochs(kind);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("OK windows ranks=%d iters=%ld verified\n", n, iters);
    MPI_Finalize();
    return 0;
}
