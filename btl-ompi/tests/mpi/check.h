/* Shared by the test programs: patterns that tell which byte of which message went wrong, and strict options. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A 64-bit mixer: every bit of the result depends on every bit of the input. */
static inline uint64_t check_mix(uint64_t x)
{
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 29;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ (x >> 32);
}

/* Fills a buffer with the pattern of a seed; no two seeds and no shift by a word look alike. */
static inline void check_fill(unsigned char *buf, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = check_mix(seed * UINT64_C(0x9e3779b97f4a7c15) + i);
        memcpy(buf + i, &word, len - i < 8 ? len - i : 8);
    }
}

/* Ends the job with a message that says where. */
#define CHECK_DIE(...)                            \
    do {                                          \
        fprintf(stderr, "FAILED: " __VA_ARGS__);  \
        fputc('\n', stderr);                      \
        MPI_Abort(MPI_COMM_WORLD, 1);             \
        exit(1);                                  \
    } while (0)

/* Compares a buffer with the pattern of a seed, byte for byte. */
static inline void check_verify(const unsigned char *buf, size_t len, uint64_t seed, const char *what)
{
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = check_mix(seed * UINT64_C(0x9e3779b97f4a7c15) + i);
        size_t n = len - i < 8 ? len - i : 8;
        if (memcmp(buf + i, &word, n) != 0) {
            CHECK_DIE("%s: wrong content within bytes %zu..%zu of %zu (seed %llu)", what, i, i + n - 1, len,
                      (unsigned long long)seed);
        }
    }
}

/* The value of "--name N", or the default. */
static inline long check_option(int argc, char **argv, const char *name, long fallback)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], name) != 0)
            continue;
        char *end = NULL;
        errno = 0;
        long value = i + 1 < argc ? strtol(argv[i + 1], &end, 10) : -1;
        if (i + 1 >= argc || end == argv[i + 1] || *end != '\0' || errno != 0 || value < 0)
            CHECK_DIE("%s needs a number", name);
        return value;
    }
    return fallback;
}

/* Refuses anything but "--name N" pairs of the names given (NULL ends the list). */
static inline void check_arguments(int argc, char **argv, const char *const *names)
{
    for (int i = 1; i < argc; i += 2) {
        int known = 0;
        for (const char *const *name = names; *name != NULL; name++)
            known |= strcmp(argv[i], *name) == 0;
        if (!known)
            CHECK_DIE("unknown argument %s", argv[i]);
    }
}

/* Memory, or the end of the job. At least one byte, so that 0-byte messages have an address. */
static inline unsigned char *check_alloc(size_t len)
{
    unsigned char *p = malloc(len > 0 ? len : 1);
    if (p == NULL)
        CHECK_DIE("no memory for %zu bytes", len);
    return p;
}

#endif
