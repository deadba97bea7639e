/*
 * guards.c - invalid indices, pages and row offsets in GPU memory, which no host check can read.
 *
 * The next wait must report each with its op; the GPU continues, and the same call with valid
 * values passes. Usage: guards; exit code 1 if a check fails.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels-deterministic/ops.h"

static invar_device dev;
static int failed;

static void must(invar_status status)
{
    if (status == INVAR_OK)
        return;
    fprintf(stderr, "guards: %s\n", invar_error_last()->message);
    exit(1);
}

/* Copies to GPU memory, which is never freed; zeros if `from` is NULL. */
static void *there(const void *from, size_t bytes)
{
    void *block;

    must(invar_device_alloc(&dev, &block, bytes, "guards"));
    must(from ? invar_device_upload(&dev, block, from, bytes)
              : invar_device_zero(&dev, block, bytes));
    return block;
}

/*
 * Runs the op and waits. The error must begin with `text`; if `text` is NULL, there must be none.
 */
static void expect(const char *what, invar_op op, const void *args, const char *text)
{
    invar_device own = dev;
    size_t bytes = 0;
    invar_status status;
    bool good;

    must(invar_op_workspace(&bytes, &own, op, args));
    must(invar_device_arena(&own.scratch, &dev, "guards"));
    must(invar_arena_plan_scratch(own.scratch, bytes + 1));
    must(invar_arena_reserve(own.scratch));
    status = invar_op_run(&own, op, args);
    if (status == INVAR_OK)
        status = invar_device_synchronize(&dev);
    good = text ? status == INVAR_E_INVALID &&
                      strncmp(invar_error_last()->message, text, strlen(text)) == 0
                : status == INVAR_OK;
    if (!good) {
        fprintf(stderr, "guards: %s: \"%s\", expected \"%s\"\n", what,
                status == INVAR_OK ? "" : invar_error_last()->message, text ? text : "");
        failed = 1;
    }
    invar_arena_free(own.scratch);
}

static void ids(void)
{
    static const int32_t good[] = {0, 3, 1}, high[] = {0, 4, 1}, low[] = {0, 3, -1};
    invar_embedding_fwd_args a = {
        .out = invar_tensor_2d(there(NULL, 3 * 8 * 4), INVAR_DTYPE_F32, 3, 8),
        .table = invar_tensor_2d(there(NULL, 4 * 8 * 4), INVAR_DTYPE_F32, 4, 8),
        .ids = invar_tensor_1d(NULL, INVAR_DTYPE_I32, 3)};

    a.ids.data = there(high, sizeof high);
    expect("an id too high", INVAR_OP_EMBEDDING_FWD, &a, "embedding.fwd: index out of range 4");
    a.ids.data = there(low, sizeof low);
    expect("an id below 0", INVAR_OP_EMBEDDING_FWD, &a, "embedding.fwd: index out of range -1");
    a.ids.data = there(good, sizeof good);
    expect("good ids", INVAR_OP_EMBEDDING_FWD, &a, NULL);
}

/* Targets of a part of 8 ids, in which 8 means another part; then of all 300 ids. */
static void targets(void)
{
    static const int32_t other[] = {0, 8}, high[] = {0, 9}, last[] = {0, 299}, above[] = {0, 300};
    invar_tensor sums = invar_tensor_2d(there(NULL, 4 * 4 * 4), INVAR_DTYPE_F32, 4, 4);
    invar_logprob_sum_args part = {
        .sums = invar_tensor_rows(&sums, 0, 2),
        .logits = invar_tensor_2d(there(NULL, 2 * 8 * 4), INVAR_DTYPE_F32, 2, 8),
        .targets = invar_tensor_1d(there(high, sizeof high), INVAR_DTYPE_I32, 2),
        .temperature = 1.0f};
    invar_logprob_join_args all = {
        .logp = invar_tensor_1d(there(NULL, 2 * 4), INVAR_DTYPE_F32, 2),
        .max = invar_tensor_1d(there(NULL, 2 * 4), INVAR_DTYPE_F32, 2),
        .logsum = invar_tensor_1d(there(NULL, 2 * 4), INVAR_DTYPE_F32, 2),
        .sums = sums,
        .targets = invar_tensor_1d(there(above, sizeof above), INVAR_DTYPE_I32, 2),
        .vocabulary = 300,
        .parts = 2,
        .temperature = 1.0f};

    expect("a target too high", INVAR_OP_LOGPROB_SUM, &part, "logprob.sum: index out of range 9");
    part.targets.data = there(other, sizeof other);
    expect("a target of another part", INVAR_OP_LOGPROB_SUM, &part, NULL);
    expect("a target too high", INVAR_OP_LOGPROB_JOIN, &all,
           "logprob.join: index out of range 300");
    all.targets.data = there(last, sizeof last);
    expect("good targets", INVAR_OP_LOGPROB_JOIN, &all, NULL);
}

static void units(void)
{
    static const int64_t good[] = {0, 2, 5}, back[] = {0, 6, 5}, some[] = {0, 2, 4};
    invar_token_sum_args a = {.out = invar_tensor_1d(there(NULL, 8 * 4), INVAR_DTYPE_F32, 8),
                              .x = invar_tensor_2d(there(NULL, 5 * 8 * 4), INVAR_DTYPE_F32, 5, 8),
                              .units = {there(back, sizeof back), 2}};

    expect("units backwards", INVAR_OP_TOKEN_SUM, &a, "token.sum: segments");
    a.units.offsets = there(some, sizeof some);
    expect("units of some rows", INVAR_OP_TOKEN_SUM, &a, "token.sum: segments");
    a.units.offsets = there(good, sizeof good);
    expect("good units", INVAR_OP_TOKEN_SUM, &a, NULL);
}

static void units_of_blocks(void)
{
    static const int64_t good[] = {0, 2, 5}, back[] = {0, 6, 5}, some[] = {0, 2, 4};
    invar_token_fold_args a = {.out = invar_tensor_1d(there(NULL, 8 * 4), INVAR_DTYPE_F32, 8),
                               .sums =
                                   invar_tensor_2d(there(NULL, 2 * 8 * 4), INVAR_DTYPE_F32, 2, 8),
                               .units = {there(back, sizeof back), 2},
                               .tokens = 5};

    expect("units of blocks backwards", INVAR_OP_TOKEN_FOLD, &a, "token.fold: segments");
    a.units.offsets = there(some, sizeof some);
    expect("units of blocks of some rows", INVAR_OP_TOKEN_FOLD, &a, "token.fold: segments");
    a.units.offsets = there(good, sizeof good);
    expect("good units of blocks", INVAR_OP_TOKEN_FOLD, &a, NULL);
}

static void units_of_ids(void)
{
    static const int64_t good[] = {0, 2, 3}, back[] = {0, 4, 3}, some[] = {0, 1, 2},
                         late[] = {1, 2, 3};
    static const int32_t index[] = {0, 3, 1};
    invar_embedding_bwd_args a = {
        .dtable = invar_tensor_2d(there(NULL, 4 * 8 * 4), INVAR_DTYPE_F32, 4, 8),
        .dout = invar_tensor_2d(there(NULL, 3 * 8 * 4), INVAR_DTYPE_F32, 3, 8),
        .ids = invar_tensor_1d(there(index, sizeof index), INVAR_DTYPE_I32, 3),
        .units = {there(back, sizeof back), 2}};

    expect("units backwards", INVAR_OP_EMBEDDING_BWD, &a, "embedding.bwd: segments");
    a.units.offsets = there(some, sizeof some);
    expect("units of some rows", INVAR_OP_EMBEDDING_BWD, &a, "embedding.bwd: segments");
    a.units.offsets = there(late, sizeof late);
    expect("units from row 1 on", INVAR_OP_EMBEDDING_BWD, &a, "embedding.bwd: segments");
    a.units.offsets = there(good, sizeof good);
    expect("good units", INVAR_OP_EMBEDDING_BWD, &a, NULL);
}

/* Two samples of one leaf each. */
static void leaves(void)
{
    static const int64_t good[] = {0, 2, 5}, back[] = {0, 6, 5}, some[] = {0, 2, 4},
                         late[] = {1, 5}, high[] = {0, INT64_MAX, 5}, low[] = {0, INT64_MIN, 5};
    invar_hash_leaves_args a = {.digest = there(NULL, 3 * sizeof(invar_digest)),
                                .x = invar_tensor_2d(there(NULL, 5 * 8 * 4), INVAR_DTYPE_F32, 5, 8),
                                .samples = {there(back, sizeof back), 2},
                                .leaves = 2};
    // rows of 1204 bytes: only in the first row 16-byte accesses are aligned
    invar_hash_leaves_args odd = {
        .digest = a.digest,
        .x = invar_tensor_2d(there(NULL, 5 * 301 * 4), INVAR_DTYPE_F32, 5, 301),
        .samples = {there(late, sizeof late), 1},
        .leaves = 1};

    expect("samples backwards", INVAR_OP_HASH_LEAVES, &a, "hash.leaves: segments");
    a.samples.offsets = there(some, sizeof some);
    expect("samples of some rows", INVAR_OP_HASH_LEAVES, &a, "hash.leaves: segments");
    a.samples.offsets = there(high, sizeof high);
    expect("samples far above the rows", INVAR_OP_HASH_LEAVES, &a, "hash.leaves: segments");
    a.samples.offsets = there(low, sizeof low);
    expect("samples far below the rows", INVAR_OP_HASH_LEAVES, &a, "hash.leaves: segments");
    expect("a sample from the second row on", INVAR_OP_HASH_LEAVES, &odd, "hash.leaves: segments");
    a.samples.offsets = there(good, sizeof good);
    a.leaves = 3;
    expect("more leaves than there are", INVAR_OP_HASH_LEAVES, &a, "hash.leaves: leaves: another");
    a.leaves = 1;
    expect("fewer leaves than there are", INVAR_OP_HASH_LEAVES, &a, "hash.leaves: leaves: another");
    a.leaves = 2;
    expect("good samples", INVAR_OP_HASH_LEAVES, &a, NULL);
}

/* Two sequences with rows 2 to 5 and 0 to 1, in pages of four positions. */
static void slots(void)
{
    static const int32_t good[] = {0, 1, 2, -1}, twice[] = {0, 0, 2, -1}, both[] = {0, 1, 1, -1},
                         shared[] = {0, 1, 0, -1}, none[] = {0, 4, 2, -1};
    static const int64_t rows[] = {0, 4, 6}, lengths[] = {6, 2};
    size_t cache = 4 * 4 * 8 * 4, row = 6 * 8 * 4;
    invar_kv_write_args a = {
        .cache = {.k = invar_tensor_4d(there(NULL, cache), INVAR_DTYPE_F32, 4, 4, 1, 8),
                  .v = invar_tensor_4d(there(NULL, cache), INVAR_DTYPE_F32, 4, 4, 1, 8),
                  .pages = invar_tensor_2d(there(good, sizeof good), INVAR_DTYPE_I32, 2, 2)},
        .k = invar_tensor_3d(there(NULL, row), INVAR_DTYPE_F32, 6, 1, 8),
        .v = invar_tensor_3d(there(NULL, row), INVAR_DTYPE_F32, 6, 1, 8),
        .rows = {there(rows, sizeof rows), 2},
        .lengths = there(lengths, sizeof lengths)};

    expect("good pages", INVAR_OP_KV_WRITE, &a, NULL);
    a.cache.pages.data = there(shared, sizeof shared);
    expect("other slots of a page", INVAR_OP_KV_WRITE, &a, NULL);
    a.cache.pages.data = there(both, sizeof both);
    expect("two sequences in a slot", INVAR_OP_KV_WRITE, &a, "kv.write: named twice");
    a.cache.pages.data = there(none, sizeof none);
    expect("a page too high", INVAR_OP_KV_WRITE, &a, "kv.write: index out of range 4");
    a.cache.pages.data = there(twice, sizeof twice);
    expect("other slots of an own page", INVAR_OP_KV_WRITE, &a, NULL);
}

int main(void)
{
    dev.backend = invar_backend_cuda();
    if (!dev.backend) {
        fprintf(stderr, "guards: this build has no CUDA\n");
        return 2;
    }
    must(invar_device_open(&dev));
    ids();
    targets();
    units();
    units_of_blocks();
    units_of_ids();
    leaves();
    slots();
    invar_device_close(&dev);
    return failed;
}
