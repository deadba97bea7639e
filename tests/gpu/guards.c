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

static void exit_on_error(invar_status status)
{
    if (status == INVAR_OK)
        return;
    fprintf(stderr, "guards: %s\n", invar_error_last()->message);
    exit(1);
}

/* Copies to GPU memory, which is never freed; zeros if `from` is NULL. */
static void *to_gpu(const void *from, size_t bytes)
{
    void *block;

    exit_on_error(invar_device_alloc(&dev, &block, bytes, "guards"));
    exit_on_error(from ? invar_device_upload(&dev, block, from, bytes)
                       : invar_device_zero(&dev, block, bytes));
    return block;
}

/*
 * Runs the op and waits. The error must begin with `text`; if `text` is NULL, no error may occur.
 */
static void expect(const char *what, invar_op op, const void *args, const char *text)
{
    invar_device scratch_device = dev;
    size_t bytes = 0;
    invar_status status;
    bool valid;

    exit_on_error(invar_op_workspace(&bytes, &scratch_device, op, args));
    exit_on_error(invar_device_arena(&scratch_device.scratch, &dev, "guards"));
    exit_on_error(invar_arena_plan_scratch(scratch_device.scratch, bytes + 1));
    exit_on_error(invar_arena_reserve(scratch_device.scratch));
    status = invar_op_run(&scratch_device, op, args);
    if (status == INVAR_OK)
        status = invar_device_synchronize(&dev);
    valid = text ? status == INVAR_E_INVALID &&
                       strncmp(invar_error_last()->message, text, strlen(text)) == 0
                 : status == INVAR_OK;
    if (!valid) {
        fprintf(stderr, "guards: %s: \"%s\", expected \"%s\"\n", what,
                status == INVAR_OK ? "" : invar_error_last()->message, text ? text : "");
        failed = 1;
    }
    invar_arena_free(scratch_device.scratch);
}

/* An id of embedding.fwd that is too high or negative. */
static void ids(void)
{
    static const int32_t valid[] = {0, 3, 1}, high[] = {0, 4, 1}, low[] = {0, 3, -1};
    invar_embedding_fwd_args a = {
        .out = invar_tensor_2d(to_gpu(NULL, 3 * 8 * 4), INVAR_DTYPE_F32, 3, 8),
        .table = invar_tensor_2d(to_gpu(NULL, 4 * 8 * 4), INVAR_DTYPE_F32, 4, 8),
        .ids = invar_tensor_1d(NULL, INVAR_DTYPE_I32, 3)};

    a.ids.data = to_gpu(high, sizeof high);
    expect("an id too high", INVAR_OP_EMBEDDING_FWD, &a, "embedding.fwd: index out of range 4");
    a.ids.data = to_gpu(low, sizeof low);
    expect("an id below 0", INVAR_OP_EMBEDDING_FWD, &a, "embedding.fwd: index out of range -1");
    a.ids.data = to_gpu(valid, sizeof valid);
    expect("good ids", INVAR_OP_EMBEDDING_FWD, &a, NULL);
}

/*
 * Targets of logprob.sum for a part of 8 ids, in which 8 means another part; then of logprob.join
 * for all 300 ids.
 */
static void targets(void)
{
    static const int32_t other[] = {0, 8}, high[] = {0, 9}, last[] = {0, 299}, above[] = {0, 300};
    invar_tensor sums = invar_tensor_2d(to_gpu(NULL, 4 * 4 * 4), INVAR_DTYPE_F32, 4, 4);
    invar_logprob_sum_args part = {
        .sums = invar_tensor_rows(&sums, 0, 2),
        .logits = invar_tensor_2d(to_gpu(NULL, 2 * 8 * 4), INVAR_DTYPE_F32, 2, 8),
        .targets = invar_tensor_1d(to_gpu(high, sizeof high), INVAR_DTYPE_I32, 2),
        .temperature = 1.0f};
    invar_logprob_join_args all = {
        .logp = invar_tensor_1d(to_gpu(NULL, 2 * 4), INVAR_DTYPE_F32, 2),
        .max = invar_tensor_1d(to_gpu(NULL, 2 * 4), INVAR_DTYPE_F32, 2),
        .logsum = invar_tensor_1d(to_gpu(NULL, 2 * 4), INVAR_DTYPE_F32, 2),
        .sums = sums,
        .targets = invar_tensor_1d(to_gpu(above, sizeof above), INVAR_DTYPE_I32, 2),
        .vocabulary = 300,
        .parts = 2,
        .temperature = 1.0f};

    expect("a target too high", INVAR_OP_LOGPROB_SUM, &part, "logprob.sum: index out of range 9");
    part.targets.data = to_gpu(other, sizeof other);
    expect("a target of another part", INVAR_OP_LOGPROB_SUM, &part, NULL);
    expect("a target too high", INVAR_OP_LOGPROB_JOIN, &all,
           "logprob.join: index out of range 300");
    all.targets.data = to_gpu(last, sizeof last);
    expect("good targets", INVAR_OP_LOGPROB_JOIN, &all, NULL);
}

/* Units of token.sum that are not ascending, or do not end at the last row. */
static void units(void)
{
    static const int64_t valid[] = {0, 2, 5}, backwards[] = {0, 6, 5}, incomplete[] = {0, 2, 4};
    invar_token_sum_args a = {.out = invar_tensor_1d(to_gpu(NULL, 8 * 4), INVAR_DTYPE_F32, 8),
                              .x = invar_tensor_2d(to_gpu(NULL, 5 * 8 * 4), INVAR_DTYPE_F32, 5, 8),
                              .units = {to_gpu(backwards, sizeof backwards), 2}};

    expect("units backwards", INVAR_OP_TOKEN_SUM, &a, "token.sum: segments");
    a.units.offsets = to_gpu(incomplete, sizeof incomplete);
    expect("units of some rows", INVAR_OP_TOKEN_SUM, &a, "token.sum: segments");
    a.units.offsets = to_gpu(valid, sizeof valid);
    expect("good units", INVAR_OP_TOKEN_SUM, &a, NULL);
}

/* Units of token.fold that are not ascending, or do not end at the last row. */
static void check_block_units(void)
{
    static const int64_t valid[] = {0, 2, 5}, backwards[] = {0, 6, 5}, incomplete[] = {0, 2, 4};
    invar_token_fold_args a = {.out = invar_tensor_1d(to_gpu(NULL, 8 * 4), INVAR_DTYPE_F32, 8),
                               .sums =
                                   invar_tensor_2d(to_gpu(NULL, 2 * 8 * 4), INVAR_DTYPE_F32, 2, 8),
                               .units = {to_gpu(backwards, sizeof backwards), 2},
                               .tokens = 5};

    expect("units of blocks backwards", INVAR_OP_TOKEN_FOLD, &a, "token.fold: segments");
    a.units.offsets = to_gpu(incomplete, sizeof incomplete);
    expect("units of blocks of some rows", INVAR_OP_TOKEN_FOLD, &a, "token.fold: segments");
    a.units.offsets = to_gpu(valid, sizeof valid);
    expect("good units of blocks", INVAR_OP_TOKEN_FOLD, &a, NULL);
}

/*
 * Units of embedding.bwd that are not ascending, or do not begin at row 0 or end at the last row.
 */
static void check_embedding_units(void)
{
    static const int64_t valid[] = {0, 2, 3}, backwards[] = {0, 4, 3}, incomplete[] = {0, 1, 2},
                         from_row_1[] = {1, 2, 3};
    static const int32_t index[] = {0, 3, 1};
    invar_embedding_bwd_args a = {
        .dtable = invar_tensor_2d(to_gpu(NULL, 4 * 8 * 4), INVAR_DTYPE_F32, 4, 8),
        .dout = invar_tensor_2d(to_gpu(NULL, 3 * 8 * 4), INVAR_DTYPE_F32, 3, 8),
        .ids = invar_tensor_1d(to_gpu(index, sizeof index), INVAR_DTYPE_I32, 3),
        .units = {to_gpu(backwards, sizeof backwards), 2}};

    expect("units backwards", INVAR_OP_EMBEDDING_BWD, &a, "embedding.bwd: segments");
    a.units.offsets = to_gpu(incomplete, sizeof incomplete);
    expect("units of some rows", INVAR_OP_EMBEDDING_BWD, &a, "embedding.bwd: segments");
    a.units.offsets = to_gpu(from_row_1, sizeof from_row_1);
    expect("units from row 1 on", INVAR_OP_EMBEDDING_BWD, &a, "embedding.bwd: segments");
    a.units.offsets = to_gpu(valid, sizeof valid);
    expect("good units", INVAR_OP_EMBEDDING_BWD, &a, NULL);
}

/* Row offsets and number of leaves of hash.leaves, for two samples of one leaf each. */
static void leaves(void)
{
    static const int64_t valid[] = {0, 2, 5}, backwards[] = {0, 6, 5}, incomplete[] = {0, 2, 4},
                         from_row_1[] = {1, 5}, high[] = {0, INT64_MAX, 5},
                         low[] = {0, INT64_MIN, 5};
    invar_hash_leaves_args a = {.digest = to_gpu(NULL, 3 * sizeof(invar_digest)),
                                .x =
                                    invar_tensor_2d(to_gpu(NULL, 5 * 8 * 4), INVAR_DTYPE_F32, 5, 8),
                                .samples = {to_gpu(backwards, sizeof backwards), 2},
                                .leaves = 2};
    // rows of 1204 bytes: 16-byte accesses are aligned in the first row only
    invar_hash_leaves_args unaligned = {
        .digest = a.digest,
        .x = invar_tensor_2d(to_gpu(NULL, 5 * 301 * 4), INVAR_DTYPE_F32, 5, 301),
        .samples = {to_gpu(from_row_1, sizeof from_row_1), 1},
        .leaves = 1};

    expect("samples backwards", INVAR_OP_HASH_LEAVES, &a, "hash.leaves: segments");
    a.samples.offsets = to_gpu(incomplete, sizeof incomplete);
    expect("samples of some rows", INVAR_OP_HASH_LEAVES, &a, "hash.leaves: segments");
    a.samples.offsets = to_gpu(high, sizeof high);
    expect("samples far above the rows", INVAR_OP_HASH_LEAVES, &a, "hash.leaves: segments");
    a.samples.offsets = to_gpu(low, sizeof low);
    expect("samples far below the rows", INVAR_OP_HASH_LEAVES, &a, "hash.leaves: segments");
    expect("a sample from the second row on", INVAR_OP_HASH_LEAVES, &unaligned,
           "hash.leaves: segments");
    a.samples.offsets = to_gpu(valid, sizeof valid);
    a.leaves = 3;
    expect("more leaves than there are", INVAR_OP_HASH_LEAVES, &a, "hash.leaves: leaves: another");
    a.leaves = 1;
    expect("fewer leaves than there are", INVAR_OP_HASH_LEAVES, &a, "hash.leaves: leaves: another");
    a.leaves = 2;
    expect("good samples", INVAR_OP_HASH_LEAVES, &a, NULL);
}

/* Pages of kv.write, for two sequences with rows 2 to 5 and 0 to 1 and pages of four positions. */
static void check_slots(void)
{
    static const int32_t valid[] = {0, 1, 2, -1}, same_page[] = {0, 0, 2, -1},
                         same_slot[] = {0, 1, 1, -1}, shared_page[] = {0, 1, 0, -1},
                         no_such_page[] = {0, 4, 2, -1};
    static const int64_t rows[] = {0, 4, 6}, lengths[] = {6, 2};
    size_t cache = 4 * 4 * 8 * 4, row = 6 * 8 * 4;
    invar_kv_write_args a = {
        .cache = {.k = invar_tensor_4d(to_gpu(NULL, cache), INVAR_DTYPE_F32, 4, 4, 1, 8),
                  .v = invar_tensor_4d(to_gpu(NULL, cache), INVAR_DTYPE_F32, 4, 4, 1, 8),
                  .pages = invar_tensor_2d(to_gpu(valid, sizeof valid), INVAR_DTYPE_I32, 2, 2)},
        .k = invar_tensor_3d(to_gpu(NULL, row), INVAR_DTYPE_F32, 6, 1, 8),
        .v = invar_tensor_3d(to_gpu(NULL, row), INVAR_DTYPE_F32, 6, 1, 8),
        .rows = {to_gpu(rows, sizeof rows), 2},
        .lengths = to_gpu(lengths, sizeof lengths)};

    expect("good pages", INVAR_OP_KV_WRITE, &a, NULL);
    a.cache.pages.data = to_gpu(shared_page, sizeof shared_page);
    expect("other slots of a page", INVAR_OP_KV_WRITE, &a, NULL);
    a.cache.pages.data = to_gpu(same_slot, sizeof same_slot);
    expect("two sequences in a slot", INVAR_OP_KV_WRITE, &a, "kv.write: named twice");
    a.cache.pages.data = to_gpu(no_such_page, sizeof no_such_page);
    expect("a page too high", INVAR_OP_KV_WRITE, &a, "kv.write: index out of range 4");
    a.cache.pages.data = to_gpu(same_page, sizeof same_page);
    expect("other slots of an own page", INVAR_OP_KV_WRITE, &a, NULL);
}

int main(void)
{
    dev.backend = invar_backend_cuda();
    if (!dev.backend) {
        fprintf(stderr, "guards: this build has no CUDA\n");
        return 2;
    }
    exit_on_error(invar_device_open(&dev));
    ids();
    targets();
    units();
    check_block_units();
    check_embedding_units();
    leaves();
    check_slots();
    invar_device_close(&dev);
    return failed;
}
