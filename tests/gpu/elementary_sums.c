/*
 * elementary_sums.c - checksums of math/ over all 2^32 inputs, on the host.
 *
 *   elementary_sums THREADS [STEP [STRIDE]]
 *
 * Prints `name hex` per entry of elementary_list.h; elementary_sums.cu prints the same lines on a
 * device. The inputs are split into 4096 chunks of 2^20; the sum of a chunk is that of word(i) * (2
 * i + 1) mod 2^64 over its inputs i = 0, 1, ..., so it depends on every bit and its position, but
 * not on the order of summation. With STEP only every STEP-th chunk is computed, with STRIDE only
 * every STRIDE-th block of 1024 inputs of a chunk. The lines of a full run are in
 * elementary_sums.txt.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/elementary_list.h"

enum { BLOCK = 1024, MAX_THREADS = 256 };

/* One loop per entry, so that each vectorizes. */
#define BLOCK_FUNCTION(name, expression)                                                           \
    static void block_##name(uint32_t *out, uint32_t first)                                        \
    {                                                                                              \
        for (uint32_t i = 0; i < BLOCK; i++)                                                       \
            out[i] = word_##name(first + i);                                                       \
    }
INVAR_ELEMENTARY_LIST(BLOCK_FUNCTION)

typedef struct entry {
    const char *name;
    void (*block)(uint32_t *out, uint32_t first);
} entry;

#define ENTRY(name, expression) {#name, block_##name},
static const entry entries[] = {INVAR_ELEMENTARY_LIST(ENTRY)};

typedef struct worker {
    pthread_t thread;
    const entry *entry;
    uint64_t *chunk_sums; /* (4096), shared; a worker writes only its own chunks */
    int first;
    int stride;
    uint32_t block_stride;
} worker;

static uint64_t sum_chunk(const entry *e, uint32_t chunk, uint32_t block_stride)
{
    uint32_t words[BLOCK];
    uint64_t sum = 0;

    for (uint32_t i = 0; i < INVAR_SUMS_CHUNK; i += BLOCK * block_stride) {
        e->block(words, chunk * INVAR_SUMS_CHUNK + i);
        for (uint32_t j = 0; j < BLOCK; j++)
            sum += (uint64_t)words[j] * (2 * (uint64_t)(i + j) + 1);
    }
    return sum;
}

static void *run_worker(void *argument)
{
    worker *self = argument;

    for (int chunk = self->first; chunk < INVAR_SUMS_CHUNKS; chunk += self->stride)
        self->chunk_sums[chunk] = sum_chunk(self->entry, (uint32_t)chunk, self->block_stride);
    return NULL;
}

static int print_checksum(const entry *e, int threads, int step, int block_stride)
{
    static uint64_t chunk_sums[INVAR_SUMS_CHUNKS];
    static worker workers[MAX_THREADS];
    uint64_t checksum = 0;

    for (int t = 0; t < threads; t++) {
        workers[t].entry = e;
        workers[t].chunk_sums = chunk_sums;
        workers[t].first = t * step;
        workers[t].stride = threads * step;
        workers[t].block_stride = (uint32_t)block_stride;
        if (pthread_create(&workers[t].thread, NULL, run_worker, &workers[t]) != 0) {
            fprintf(stderr, "elementary_sums: cannot start thread %d\n", t);
            return 1;
        }
    }
    for (int t = 0; t < threads; t++)
        pthread_join(workers[t].thread, NULL);
    for (int chunk = 0; chunk < INVAR_SUMS_CHUNKS; chunk += step)
        checksum = fold_chunk(checksum, chunk_sums[chunk]);
    printf("%s %016" PRIx64 "\n", e->name, checksum);
    return fflush(stdout) != 0;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    int step = argc > 2 ? atoi(argv[2]) : 1;
    int block_stride = argc > 3 ? atoi(argv[3]) : 1;

    if (threads < 1 || threads > MAX_THREADS || step < 1 || step > INVAR_SUMS_CHUNKS ||
        block_stride < 1 || block_stride > INVAR_SUMS_CHUNK / BLOCK) {
        fprintf(stderr, "usage: elementary_sums THREADS [STEP [STRIDE]]\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (print_checksum(&entries[i], threads, step, block_stride) != 0)
            return 1;
    }
    return 0;
}
