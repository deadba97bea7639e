/*
 * tensorcore.c - compares the tensor core of this GPU with the reference step.
 *
 * For every family of step/tiles.h: mma.sync and wgmma (bf16) or wgmma (e4m3) on the GPU, the
 * integer reference on the CPU, compared output by output. Writes the results of the hardware:
 *   DIR/step_hashes.txt       form, family, tiles, hash of the outputs of TILES tiles
 *   DIR/step_hashes.2048.txt  the same columns for the first 2048 tiles
 *   DIR/step_vectors.bin      the first tiles of each family, inputs and outputs
 * Usage: tensorcore DIR [TILES]. Exit code 1 if an output differs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/pool.h"
#include "kernels-deterministic/cuda/sm90/hardware_check.h"
#include "tests/step_run.h"

enum { PREFIX = 2048, RECORDED = 40 };

typedef uint32_t outputs[INVAR_TILE_OUTPUTS];

/* The tiles of one family and the comparison of their outputs. */
typedef struct family_run {
    invar_tile_form form;
    int family;
    invar_step_tile *tiles;
    outputs *wgmma, *mma;
    uint32_t *wrong; /* (tiles) outputs that differ from the reference */
} family_run;

typedef struct records {
    FILE *hashes, *first_hashes, *vectors;
} records;

static void exit_on_error(invar_status status)
{
    if (status == INVAR_OK)
        return;
    fprintf(stderr, "tensorcore: %s\n", invar_error_last()->message);
    exit(2);
}

static invar_status make_tile(void *payload, int64_t n, int worker)
{
    family_run *r = payload;

    (void)worker;
    invar_tile_make(&r->tiles[n], r->form, r->family, (uint64_t)n);
    return INVAR_OK;
}

static invar_status check_tile(void *payload, int64_t n, int worker)
{
    family_run *r = payload;
    outputs expected;

    (void)worker;
    invar_hardware_check_expected(expected, &r->tiles[n], r->form);
    r->wrong[n] = 0;
    for (int i = 0; i < INVAR_TILE_OUTPUTS; i++)
        r->wrong[n] += r->wgmma[n][i] != expected[i];
    return INVAR_OK;
}

/* ---- records --------------------------------------------------------------------------------- */

static FILE *open_record(const char *dir, const char *name)
{
    char path[4096];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "wb");
    if (!f) {
        perror(path);
        exit(2);
    }
    return f;
}

static void write_or_die(const void *data, size_t size, FILE *f)
{
    if (fwrite(data, size, 1, f) != 1) {
        perror("tensorcore: write");
        exit(2);
    }
}

static void write_hash(FILE *f, const family_run *r, size_t tiles, uint64_t hash)
{
    fprintf(f, "%s %s %zu %016" PRIx64 "\n", r->form == INVAR_TILE_BF16 ? "bf16" : "e4m3",
            invar_tile_family_names[r->family], tiles, hash);
}

/* Writes the layout that tests/golden/step.c reads: form, family, length, then operands, c, d. */
static void write_vector(FILE *f, const family_run *r, size_t n)
{
    const invar_step_tile *t = &r->tiles[n];
    uint8_t head[4] = {(uint8_t)r->form, (uint8_t)r->family, (uint8_t)t->k, 0};
    size_t width = r->form == INVAR_TILE_BF16 ? 2 : 1;

    write_or_die(head, sizeof head, f);
    for (int i = 0; i < INVAR_TILE_ROWS; i++)
        for (int p = 0; p < t->k; p++)
            write_or_die(&t->a[i][p], width, f);
    for (int j = 0; j < INVAR_TILE_COLS; j++)
        for (int p = 0; p < t->k; p++)
            write_or_die(&t->b[j][p], width, f);
    write_or_die(t->c, sizeof t->c, f);
    write_or_die(r->wgmma[n], sizeof r->wgmma[n], f);
}

static void record_family(const records *to, const family_run *r, size_t count)
{
    uint64_t hash = 0;

    for (size_t n = 0; n < count; n++) {
        hash = tile_hash(hash, r->wgmma[n]);
        if (n + 1 == PREFIX)
            write_hash(to->first_hashes, r, n + 1, hash);
        if (n + 1 == count)
            write_hash(to->hashes, r, n + 1, hash);
        if (n < RECORDED)
            write_vector(to->vectors, r, n);
    }
}

/* ---- the families ---------------------------------------------------------------------------- */

/* Returns the number of outputs that differ from the reference or between the instructions. */
static uint64_t run_family(family_run *r, const invar_device *gpu, invar_pool *pool, size_t count)
{
    uint64_t wrong = 0, differ = 0;

    exit_on_error(invar_pool_run(pool, (int64_t)count, make_tile, r));
    exit_on_error(invar_hardware_check_tiles(r->wgmma, gpu, r->form, INVAR_HARDWARE_CHECK_WARPGROUP,
                                             r->tiles, count));
    if (r->form == INVAR_TILE_BF16) {
        exit_on_error(invar_hardware_check_tiles(r->mma, gpu, r->form, INVAR_HARDWARE_CHECK_WARP,
                                                 r->tiles, count));
        for (size_t n = 0; n < count; n++)
            for (int i = 0; i < INVAR_TILE_OUTPUTS; i++)
                differ += r->wgmma[n][i] != r->mma[n][i];
    }
    exit_on_error(invar_pool_run(pool, (int64_t)count, check_tile, r));
    for (size_t n = 0; n < count; n++)
        wrong += r->wrong[n];
    printf("%s %-10s %zu outputs: %" PRIu64 " differ from the reference, mma.sync and wgmma differ "
           "in %" PRIu64 "\n",
           r->form == INVAR_TILE_BF16 ? "bf16" : "e4m3", invar_tile_family_names[r->family],
           count * INVAR_TILE_OUTPUTS, wrong, differ);
    return wrong + differ;
}

int main(int argc, char **argv)
{
    size_t count = argc > 2 ? (size_t)strtoull(argv[2], NULL, 10) : 65536;
    long threads = sysconf(_SC_NPROCESSORS_ONLN);
    invar_device gpu = {.backend = invar_backend_cuda()};
    invar_pool *pool = NULL;
    uint64_t bad = 0;
    family_run r;
    records to;

    if (argc < 2 || count < PREFIX) {
        fprintf(stderr, "usage: tensorcore DIR [TILES >= %d]\n", PREFIX);
        return 129;
    }
    exit_on_error(invar_device_open(&gpu));
    exit_on_error(invar_pool_new(&pool, threads > 0 ? (int)threads : 1));
    exit_on_error(INVAR_ALLOC(r.tiles, count, "tiles"));
    exit_on_error(INVAR_ALLOC(r.wgmma, count, "outputs"));
    exit_on_error(INVAR_ALLOC(r.mma, count, "outputs"));
    exit_on_error(INVAR_ALLOC(r.wrong, count, "counts"));
    to = (records){open_record(argv[1], "step_hashes.txt"),
                   open_record(argv[1], "step_hashes.2048.txt"),
                   open_record(argv[1], "step_vectors.bin")};
    for (int form = 0; form < INVAR_TILE_FORMS; form++)
        for (int family = 0; family < INVAR_TILE_FAMILIES; family++) {
            r.form = (invar_tile_form)form;
            r.family = family;
            bad += run_family(&r, &gpu, pool, count);
            record_family(&to, &r, count);
        }
    if (fclose(to.hashes) != 0 || fclose(to.first_hashes) != 0 || fclose(to.vectors) != 0) {
        perror(argv[1]);
        return 2;
    }
    printf("%zu outputs, %" PRIu64 " differences\n",
           count * INVAR_TILE_OUTPUTS * INVAR_TILE_FORMS * INVAR_TILE_FAMILIES, bad);
    invar_free(r.tiles);
    invar_free(r.wgmma);
    invar_free(r.mma);
    invar_free(r.wrong);
    invar_pool_free(pool);
    invar_device_close(&gpu);
    return bad != 0;
}
