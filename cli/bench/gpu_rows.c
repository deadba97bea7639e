/*
 * gpu_rows.c - invar bench --device cuda: ops that move data, compared with a copy.
 *
 * The work of a row is the number of bytes that the op must read and write, so the ratio to the
 * copy is the fraction of the achievable bandwidth.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/bench/gpu.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

/* ---- one row --------------------------------------------------------------------------------- */

enum { TOKENS = 16384, HIDDEN = 4096, VOCABULARY = 151936 };

static invar_gpu_compare_case make_copy_case(invar_op op, const void *args, const char *shape,
                                             double bytes)
{
    return (invar_gpu_compare_case){
        .op = op, .type = "bf16", .shape = shape, .args = {args}, .sets = 1, .work = bytes};
}

static invar_status compare_with_copy(invar_gpu_bench *b, invar_gpu_compare_case *row)
{
    size_t half = (size_t)(row->work / 2);

    INVAR_TRY(invar_gpu_bench_device_alloc(&row->copy_to, b, half));
    INVAR_TRY(invar_gpu_bench_device_alloc(&row->copy_from, b, half));
    INVAR_TRY(invar_gpu_bench_fill(b, row->copy_from, half));
    return invar_gpu_bench_time(b, row);
}

invar_status invar_gpu_bench_moves(invar_gpu_bench *b, const invar_gpu_row_check *s, invar_op op,
                                   const void *args, const char *shape, double bytes)
{
    invar_gpu_compare_case row = make_copy_case(op, args, shape, bytes);

    INVAR_TRY(invar_gpu_bench_compare(&row, b, s));
    return compare_with_copy(b, &row);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Makes two activations and an uninitialized result. */
static invar_status make_activations(invar_gpu_bench *b, invar_tensor *out, invar_tensor *x,
                                     invar_tensor *y)
{
    INVAR_TRY(invar_gpu_bench_make(x, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    INVAR_TRY(invar_gpu_bench_make(y, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    return invar_gpu_bench_alloc(out, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN);
}

static invar_status bench_add(invar_gpu_bench *b)
{
    invar_add_args a = {0}, part;
    invar_gpu_row_check s = {&part, 2, 3, 1, {&part.out, &part.a, &part.b}};

    INVAR_TRY(make_activations(b, &a.out, &a.a, &a.b));
    part = a;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_ADD, &a, "16384x4096", 3.0 * TOKENS * HIDDEN * 2);
}

static invar_status bench_rmsnorm(invar_gpu_bench *b)
{
    invar_rmsnorm_fwd_args a = {.eps = 1e-6f}, part;
    invar_gpu_row_check s = {&part, 2, 3, 1, {&part.y, &part.x, &part.weight}};

    INVAR_TRY(invar_gpu_bench_make(&a.x, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    INVAR_TRY(invar_gpu_bench_alloc(&a.y, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    INVAR_TRY(invar_gpu_bench_make(&a.weight, b, INVAR_DTYPE_BF16, 1, HIDDEN));
    a.x = invar_tensor_3d(a.x.data, INVAR_DTYPE_BF16, TOKENS, 1, HIDDEN);
    a.y = invar_tensor_3d(a.y.data, INVAR_DTYPE_BF16, TOKENS, 1, HIDDEN);
    a.weight = invar_tensor_1d(a.weight.data, INVAR_DTYPE_BF16, HIDDEN);
    part = a;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_RMSNORM_FWD, &a, "16384x4096",
                                 2.0 * TOKENS * HIDDEN * 2);
}

static invar_status bench_swiglu(invar_gpu_bench *b)
{
    invar_swiglu_fwd_args a = {0}, part;
    invar_gpu_row_check s = {&part, 2, 3, 1, {&part.y, &part.gate, &part.up}};

    INVAR_TRY(make_activations(b, &a.y, &a.gate, &a.up));
    part = a;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_SWIGLU_FWD, &a, "16384x4096",
                                 3.0 * TOKENS * HIDDEN * 2);
}

/*
 * Benchmarks the quantization of activations with one scale per row and block. Scales are compared
 * separately.
 */
static invar_status bench_quantize_format(invar_gpu_bench *b, invar_dtype dtype)
{
    static float here[2 * HIDDEN / INVAR_FP8_BLOCK], there[2 * HIDDEN / INVAR_FP8_BLOCK];
    invar_quantize_args a = {.q = invar_tensor_quantized(NULL, NULL, dtype, 1, TOKENS, HIDDEN)};
    invar_quantize_args part;
    invar_gpu_row_check s = {&part, 2, 2, 1, {&part.q, &part.x}};
    size_t bytes = invar_tensor_scale_bytes(&a.q), row_bytes = bytes / TOKENS;
    invar_gpu_compare_case row =
        make_copy_case(INVAR_OP_QUANTIZE, &a, "16384x4096", 3.0 * TOKENS * HIDDEN + (double)bytes);

    row.type = invar_dtype_name(dtype);
    INVAR_TRY(invar_gpu_bench_make(&a.x, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    INVAR_TRY(
        invar_gpu_bench_device_alloc(&a.q.data, b, invar_gpu_bench_bytes(dtype, TOKENS, HIDDEN)));
    INVAR_TRY(invar_gpu_bench_device_alloc(&a.q.scale, b, bytes));
    part = a;
    part.q.scale = here;
    INVAR_TRY(invar_gpu_bench_compare(&row, b, &s));
    INVAR_TRY(invar_device_download(
        &b->gpu, there,
        (char *)a.q.scale + (size_t)invar_gpu_row_check_first(TOKENS, s.rows) * row_bytes,
        (size_t)s.rows * row_bytes));
    row.compared++;
    row.different += memcmp(here, there, (size_t)s.rows * row_bytes) != 0;
    return compare_with_copy(b, &row);
}

static invar_status bench_quantize(invar_gpu_bench *b)
{
    INVAR_TRY(bench_quantize_format(b, INVAR_DTYPE_FP8));
    INVAR_TRY(invar_gpu_bench_end_row(b, INVAR_OK));
    return bench_quantize_format(b, INVAR_DTYPE_MXFP8);
}

/*
 * Runs an op of a complete tensor on the CPU. `args` point to *x, whose data is a host copy
 * meanwhile.
 */
static invar_status run_on_cpu(invar_gpu_bench *b, invar_op op, const void *args, invar_tensor *x)
{
    size_t bytes = invar_gpu_bench_bytes(x->dtype, x->shape[0], x->shape[1]);
    void *far = x->data;
    invar_status status;

    INVAR_TRY(invar_alloc(&x->data, bytes, 1, "a tensor of a benchmark"));
    status = invar_device_download(&b->gpu, x->data, far, bytes);
    if (status == INVAR_OK)
        status = invar_gpu_bench_run(&b->cpu, op, args);
    invar_free(x->data);
    x->data = far;
    return status;
}

/* Compares the digest of the complete tensor. */
static invar_status compare_digest(invar_gpu_compare_case *row, invar_gpu_bench *b, invar_tensor *x,
                                   const invar_hash_tree_args *a)
{
    invar_hash_tree_args near = *a;
    invar_digest here, there;

    near.digest = &here;
    INVAR_TRY(run_on_cpu(b, row->op, &near, x));
    INVAR_TRY(invar_gpu_bench_run(&b->gpu, row->op, a));
    INVAR_TRY(invar_device_download(&b->gpu, &there, a->digest, sizeof there));
    row->compared = 1;
    row->different = !invar_digest_equal(&here, &there);
    return INVAR_OK;
}

static invar_status bench_hash(invar_gpu_bench *b)
{
    invar_tensor x;
    invar_hash_tree_args a = {.x = &x, .count = 1, .shards = 1};
    invar_gpu_compare_case row;
    void *digest;

    INVAR_TRY(invar_gpu_bench_make(&x, b, INVAR_DTYPE_BF16, 4 * TOKENS, HIDDEN));
    INVAR_TRY(invar_gpu_bench_device_alloc(&digest, b, sizeof *a.digest));
    a.digest = digest;
    row = make_copy_case(INVAR_OP_HASH_TREE, &a, "65536x4096", 4.0 * TOKENS * HIDDEN * 2);
    INVAR_TRY(compare_digest(&row, b, &x, &a));
    return compare_with_copy(b, &row);
}

enum { PARAMETERS = 1 << 28 };

/* The op synchronizes with the device, because its results are on the host. */
static invar_status bench_grad_norm(invar_gpu_bench *b)
{
    float there[2], here[2];
    invar_digest there_digest, here_digest;
    invar_tensor grad;
    invar_grad_norm_args a = {
        .norm = &there[0], .clip = &there[1], .grads = &grad, .count = 1, .max_norm = 1.0f};
    invar_grad_norm_args near = a;
    invar_gpu_compare_case row =
        make_copy_case(INVAR_OP_GRAD_NORM, &a, "268435456", 4.0 * PARAMETERS);

    row.type = "f32";
    near.norm = &here[0];
    near.clip = &here[1];
    near.digest = &here_digest;
    INVAR_TRY(invar_gpu_bench_make(&grad, b, INVAR_DTYPE_F32, 1, PARAMETERS));
    INVAR_TRY(run_on_cpu(b, row.op, &near, &grad));
    INVAR_TRY(invar_gpu_bench_run(&b->gpu, row.op, &a));
    row.compared = 2;
    row.different = (here[0] != there[0]) + (here[1] != there[1]);
    INVAR_TRY(compare_with_copy(b, &row));
    a.digest = &there_digest;
    INVAR_TRY(invar_gpu_bench_run(&b->gpu, row.op, &a));
    row.shape = "268435456 hashed";
    row.compared = 3;
    row.different += memcmp(&here_digest, &there_digest, sizeof here_digest) != 0;
    return compare_with_copy(b, &row);
}

static invar_status bench_adamw(invar_gpu_bench *b)
{
    invar_adamw_args a = {.clip = 1.0f,
                          .lr = 1e-6f,
                          .beta1 = 0.9f,
                          .beta2 = 0.98f,
                          .eps = 1e-8f,
                          .beta1_power = 0.5f,
                          .beta2_power = 0.5f};
    invar_adamw_args part;
    invar_gpu_row_check s = {
        &part, 64, 5, 4, {&part.weight, &part.master, &part.m, &part.v, &part.grad}};
    invar_tensor *f32[] = {&a.master, &a.m, &a.v, &a.grad};
    void *digest;

    for (size_t i = 0; i < sizeof f32 / sizeof *f32; i++) {
        INVAR_TRY(invar_gpu_bench_make(f32[i], b, INVAR_DTYPE_F32, 1, PARAMETERS));
        *f32[i] = invar_tensor_1d(f32[i]->data, INVAR_DTYPE_F32, PARAMETERS);
    }
    INVAR_TRY(invar_device_zero(&b->gpu, a.v.data, (size_t)PARAMETERS * sizeof(float)));
    INVAR_TRY(invar_gpu_bench_make(&a.weight, b, INVAR_DTYPE_BF16, 1, PARAMETERS));
    a.weight = invar_tensor_1d(a.weight.data, INVAR_DTYPE_BF16, PARAMETERS);
    part = a;
    INVAR_TRY(invar_gpu_bench_moves(b, &s, INVAR_OP_ADAMW, &a, "268435456", 30.0 * PARAMETERS));
    INVAR_TRY(invar_gpu_bench_device_alloc(&digest, b, sizeof *a.digest));
    part = a; // invar_gpu_bench_moves has replaced the tensors by host copies
    a.digest = digest;
    a.end = &a.master.shape[0];
    a.tensors = 1;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_ADAMW, &a, "268435456 hashed", 30.0 * PARAMETERS);
}

enum { LOGIT_ROWS = 4096 };

static invar_status make_logprob(invar_logprob_fwd_args *out, invar_gpu_bench *b)
{
    static int32_t targets[LOGIT_ROWS];
    invar_tensor *f32[] = {&out->logp, &out->entropy, &out->max, &out->logsum};
    void *ids;

    *out = (invar_logprob_fwd_args){.temperature = 1.0f};
    for (int i = 0; i < LOGIT_ROWS; i++)
        targets[i] = i * 37 % VOCABULARY;
    INVAR_TRY(invar_gpu_bench_make(&out->logits, b, INVAR_DTYPE_F32, LOGIT_ROWS, VOCABULARY));
    for (size_t i = 0; i < sizeof f32 / sizeof *f32; i++) {
        INVAR_TRY(invar_gpu_bench_make(f32[i], b, INVAR_DTYPE_F32, 1, LOGIT_ROWS));
        *f32[i] = invar_tensor_1d(f32[i]->data, INVAR_DTYPE_F32, LOGIT_ROWS);
    }
    INVAR_TRY(invar_gpu_bench_array(&ids, b, targets, sizeof targets));
    out->targets = invar_tensor_1d(ids, INVAR_DTYPE_I32, LOGIT_ROWS);
    return INVAR_OK;
}

static invar_status bench_logprob(invar_gpu_bench *b)
{
    invar_logprob_fwd_args a, part;
    invar_gpu_row_check s = {
        &part,
        2,
        6,
        4,
        {&part.logp, &part.entropy, &part.max, &part.logsum, &part.logits, &part.targets}};

    INVAR_TRY(make_logprob(&a, b));
    part = a;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_LOGPROB_FWD, &a, "4096x151936",
                                 4.0 * LOGIT_ROWS * VOCABULARY);
}

/* Benchmarks the part of one of two ranks. */
static invar_status bench_logprob_sum(invar_gpu_bench *b)
{
    enum { IDS = VOCABULARY / 2 };
    invar_logprob_sum_args a = {.temperature = 1.0f}, part;
    invar_gpu_row_check s = {&part, 2, 3, 1, {&part.sums, &part.logits, &part.targets}};

    INVAR_TRY(invar_gpu_bench_make(&a.logits, b, INVAR_DTYPE_F32, LOGIT_ROWS, IDS));
    INVAR_TRY(invar_gpu_bench_alloc(&a.sums, b, INVAR_DTYPE_F32, LOGIT_ROWS,
                                    invar_logprob_sum_columns(VOCABULARY, 2)));
    INVAR_TRY(invar_gpu_bench_indices(&a.targets, b, LOGIT_ROWS, IDS, 37));
    part = a;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_LOGPROB_SUM, &a, "4096x75968",
                                 4.0 * LOGIT_ROWS * IDS);
}

static invar_status bench_sample(invar_gpu_bench *b)
{
    enum { ROWS = 256 };
    static invar_sample_coords coords[ROWS];
    invar_sample_args a = {.temperature = 1.0f, .top_p = 1.0f}, part;
    invar_gpu_row_check s = {&part, 2, 2, 1, {&part.tokens, &part.logits}};
    void *at;

    for (int i = 0; i < ROWS; i++)
        coords[i] = (invar_sample_coords){7, (uint32_t)i, 1};
    INVAR_TRY(invar_gpu_bench_make(&a.logits, b, INVAR_DTYPE_F32, ROWS, VOCABULARY));
    INVAR_TRY(invar_gpu_bench_make(&a.tokens, b, INVAR_DTYPE_I32, 1, ROWS));
    a.tokens = invar_tensor_1d(a.tokens.data, INVAR_DTYPE_I32, ROWS);
    INVAR_TRY(invar_gpu_bench_array(&at, b, coords, sizeof coords));
    a.coords = at;
    part = a;
    part.coords = coords + invar_gpu_row_check_first(ROWS, s.rows);
    return invar_gpu_bench_moves(b, &s, INVAR_OP_SAMPLE, &a, "256x151936", 4.0 * ROWS * VOCABULARY);
}

/* ---- backward -------------------------------------------------------------------------------- */

enum { UNITS = 8 };

/* Divides the tokens into equal units, in offsets on the host and on the device. */
static invar_status make_units(int64_t start[UNITS + 1], invar_row_offsets *out, invar_gpu_bench *b)
{
    void *there;

    for (int i = 0; i <= UNITS; i++)
        start[i] = TOKENS / UNITS * i;
    INVAR_TRY(invar_gpu_bench_array(&there, b, start, (UNITS + 1) * sizeof *start));
    *out = (invar_row_offsets){there, UNITS};
    return INVAR_OK;
}

static invar_status bench_rmsnorm_bwd(invar_gpu_bench *b)
{
    static const int64_t few[] = {0, 2};
    int64_t start[UNITS + 1];
    invar_rmsnorm_bwd_args a = {.eps = 1e-6f}, part;
    invar_gpu_row_check s = {&part, 2, 4, 1, {&part.dx, &part.dy, &part.x, &part.weight}};
    invar_tensor *rows[] = {&a.dx, &a.dy, &a.x};

    INVAR_TRY(make_units(start, &a.units, b));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        INVAR_TRY(invar_gpu_bench_make(rows[i], b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
        *rows[i] = invar_tensor_3d(rows[i]->data, INVAR_DTYPE_BF16, TOKENS, 1, HIDDEN);
    }
    INVAR_TRY(invar_gpu_bench_make(&a.weight, b, INVAR_DTYPE_BF16, 1, HIDDEN));
    a.weight = invar_tensor_1d(a.weight.data, INVAR_DTYPE_BF16, HIDDEN);
    INVAR_TRY(invar_gpu_bench_make(&a.dweight, b, INVAR_DTYPE_F32, 1, HIDDEN));
    a.dweight = invar_tensor_1d(a.dweight.data, INVAR_DTYPE_F32, HIDDEN);
    part = a;
    part.dweight = (invar_tensor){0}; // a sum over all rows, which a few rows cannot check
    part.units = (invar_row_offsets){few, 1};
    return invar_gpu_bench_moves(b, &s, INVAR_OP_RMSNORM_BWD, &a, "16384x4096",
                                 3.0 * TOKENS * HIDDEN * 2);
}

static invar_status bench_swiglu_bwd(invar_gpu_bench *b)
{
    invar_swiglu_bwd_args a = {0}, part;
    invar_gpu_row_check s = {
        &part, 2, 5, 2, {&part.dgate, &part.dup, &part.dy, &part.gate, &part.up}};
    invar_tensor *all[] = {&a.dgate, &a.dup, &a.dy, &a.gate, &a.up};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        INVAR_TRY(invar_gpu_bench_make(all[i], b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    part = a;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_SWIGLU_BWD, &a, "16384x4096",
                                 5.0 * TOKENS * HIDDEN * 2);
}

/* Compares all columns, and therefore all rows. */
static invar_status bench_token_sum(invar_gpu_bench *b)
{
    int64_t start[UNITS + 1];
    invar_token_sum_args a = {0}, part;
    invar_gpu_row_check s = {&part, HIDDEN, 2, 1, {&part.out, &part.x}};

    INVAR_TRY(make_units(start, &a.units, b));
    INVAR_TRY(invar_gpu_bench_make(&a.x, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    INVAR_TRY(invar_gpu_bench_make(&a.out, b, INVAR_DTYPE_F32, 1, HIDDEN));
    a.out = invar_tensor_1d(a.out.data, INVAR_DTYPE_F32, HIDDEN);
    part = a;
    part.units.offsets = start;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_TOKEN_SUM, &a, "16384x4096",
                                 1.0 * TOKENS * HIDDEN * 2);
}

static invar_status bench_logprob_bwd(invar_gpu_bench *b)
{
    invar_logprob_fwd_args f;
    invar_logprob_bwd_args a = {.temperature = 1.0f}, part;
    invar_gpu_row_check s = {
        &part,
        2,
        6,
        1,
        {&part.dlogits, &part.dlogp, &part.max, &part.logsum, &part.logits, &part.targets}};

    INVAR_TRY(make_logprob(&f, b));
    INVAR_TRY(invar_gpu_bench_run(&b->gpu, INVAR_OP_LOGPROB_FWD, &f));
    a.max = f.max;
    a.logsum = f.logsum;
    a.logits = f.logits;
    a.targets = f.targets;
    a.dlogp = f.logp;
    INVAR_TRY(invar_gpu_bench_alloc(&a.dlogits, b, INVAR_DTYPE_BF16, LOGIT_ROWS, VOCABULARY));
    part = a;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_LOGPROB_BWD, &a, "4096x151936",
                                 6.0 * LOGIT_ROWS * VOCABULARY);
}

/* ---- indices --------------------------------------------------------------------------------- */

invar_status invar_gpu_bench_indices(invar_tensor *out, invar_gpu_bench *b, int64_t count,
                                     int64_t bound, int64_t step)
{
    int32_t *here = NULL;
    void *there;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(here, (size_t)count, "indices"));
    for (int64_t i = 0; i < count; i++)
        here[i] = (int32_t)(i * step % bound);
    status = invar_gpu_bench_array(&there, b, here, (size_t)count * sizeof *here);
    invar_free(here);
    if (status == INVAR_OK)
        *out = invar_tensor_1d(there, INVAR_DTYPE_I32, count);
    return status;
}

static invar_status bench_embedding(invar_gpu_bench *b)
{
    enum { WIDTH = 1024 };
    invar_embedding_fwd_args a = {0}, part;
    invar_gpu_row_check s = {&part, 2, 3, 1, {&part.out, &part.table, &part.ids}};

    INVAR_TRY(invar_gpu_bench_alloc(&a.out, b, INVAR_DTYPE_BF16, TOKENS, WIDTH));
    INVAR_TRY(invar_gpu_bench_make(&a.table, b, INVAR_DTYPE_BF16, VOCABULARY, WIDTH));
    INVAR_TRY(invar_gpu_bench_indices(&a.ids, b, TOKENS, VOCABULARY, 7919));
    part = a;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_EMBEDDING_FWD, &a, "16384x1024",
                                 2.0 * TOKENS * WIDTH * 2);
}

/*
 * Uses a table of which some rows are not requested and others several times. All of it is
 * compared.
 */
static invar_status bench_embedding_bwd(invar_gpu_bench *b)
{
    enum { WIDTH = 1024, ROWS = 32768, ASKED = 12289 };
    int64_t start[UNITS + 1];
    invar_embedding_bwd_args a = {0}, part;
    invar_gpu_row_check s = {&part, ROWS, 3, 1, {&part.dtable, &part.dout, &part.ids}};

    INVAR_TRY(invar_gpu_bench_make(&a.dtable, b, INVAR_DTYPE_F32, ROWS, WIDTH));
    INVAR_TRY(invar_gpu_bench_make(&a.dout, b, INVAR_DTYPE_BF16, TOKENS, WIDTH));
    INVAR_TRY(invar_gpu_bench_indices(&a.ids, b, TOKENS, ASKED, 7919));
    INVAR_TRY(make_units(start, &a.units, b));
    part = a;
    part.units.offsets = start;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_EMBEDDING_BWD, &a, "16384x1024",
                                 2.0 * TOKENS * WIDTH + 8.0 * ASKED * WIDTH);
}

static invar_status bench_rope_op(invar_gpu_bench *b, invar_op op)
{
    enum { HEADS = 16, DIM = 128, POSITIONS = 4096 };
    invar_rope_fwd_args a = {0}, part;
    invar_gpu_row_check s = {
        &part, 2, 5, 1, {&part.y, &part.x, &part.positions, &part.cosine, &part.sine}};
    invar_tensor *rows[] = {&a.y, &a.x}, *tables[] = {&a.cosine, &a.sine};

    for (int i = 0; i < 2; i++) {
        INVAR_TRY(invar_gpu_bench_make(rows[i], b, INVAR_DTYPE_BF16, TOKENS, HEADS * DIM));
        *rows[i] = invar_tensor_3d(rows[i]->data, INVAR_DTYPE_BF16, TOKENS, HEADS, DIM);
        INVAR_TRY(invar_gpu_bench_make(tables[i], b, INVAR_DTYPE_F32, POSITIONS, DIM / 2));
    }
    INVAR_TRY(invar_gpu_bench_indices(&a.positions, b, TOKENS, POSITIONS, 1));
    part = a;
    return invar_gpu_bench_moves(b, &s, op, &a, "16384x16x128", 2.0 * TOKENS * HEADS * DIM * 2);
}

static invar_status bench_rope(invar_gpu_bench *b)
{
    return bench_rope_op(b, INVAR_OP_ROPE_FWD);
}

static invar_status bench_rope_bwd(invar_gpu_bench *b)
{
    return bench_rope_op(b, INVAR_OP_ROPE_BWD);
}

/* Decoding over a KV cache: the bytes that count are those of keys and values. */
static invar_status bench_paged(invar_gpu_bench *b)
{
    enum { SEQUENCES = 256, CONTEXT = 512, PAGE = 16, PAGES = CONTEXT / PAGE };
    enum { HEADS = 16, KV_HEADS = 8, DIM = 128, CACHED = SEQUENCES * CONTEXT };
    int64_t start[SEQUENCES + 1], lengths[SEQUENCES];
    invar_attention_paged_args a = {.rows = {NULL, SEQUENCES}};
    invar_gpu_compare_case row = make_copy_case(
        INVAR_OP_ATTENTION_PAGED, &a, "B256 H16/8 S512 D128", 4.0 * CACHED * KV_HEADS * DIM);
    invar_tensor *queries[] = {&a.q, &a.o}, *cached[] = {&a.cache.k, &a.cache.v};
    void *at;

    for (int i = 0; i <= SEQUENCES; i++)
        start[i] = i;
    for (int i = 0; i < SEQUENCES; i++)
        lengths[i] = CONTEXT;
    for (int i = 0; i < 2; i++) {
        INVAR_TRY(invar_gpu_bench_make(queries[i], b, INVAR_DTYPE_BF16, SEQUENCES, HEADS * DIM));
        *queries[i] = invar_tensor_3d(queries[i]->data, INVAR_DTYPE_BF16, SEQUENCES, HEADS, DIM);
        INVAR_TRY(invar_gpu_bench_make(cached[i], b, INVAR_DTYPE_BF16, CACHED, KV_HEADS * DIM));
        *cached[i] = invar_tensor_4d(cached[i]->data, INVAR_DTYPE_BF16, SEQUENCES * PAGES, PAGE,
                                     KV_HEADS, DIM);
    }
    INVAR_TRY(
        invar_gpu_bench_indices(&a.cache.pages, b, SEQUENCES * PAGES, SEQUENCES * PAGES, 1021));
    a.cache.pages = invar_tensor_2d(a.cache.pages.data, INVAR_DTYPE_I32, SEQUENCES, PAGES);
    INVAR_TRY(invar_gpu_bench_array(&at, b, start, sizeof start));
    a.rows.offsets = at;
    INVAR_TRY(invar_gpu_bench_array(&at, b, lengths, sizeof lengths));
    a.lengths = at;
    INVAR_TRY(invar_gpu_bench_audit(&row, b));
    return compare_with_copy(b, &row);
}

/* Writes one prompt per sequence. All pages are compared. */
static invar_status bench_kv_write(invar_gpu_bench *b)
{
    enum { SEQUENCES = 64, LENGTH = TOKENS / SEQUENCES, PAGE = 16, PAGES = LENGTH / PAGE };
    enum { HEADS = 8, DIM = 128, ALL = SEQUENCES * PAGES };
    int64_t start[SEQUENCES + 1], lengths[SEQUENCES];
    invar_kv_write_args a = {.rows = {NULL, SEQUENCES}}, part;
    invar_gpu_row_check s = {
        &part, ALL, 5, 2, {&part.cache.k, &part.cache.v, &part.k, &part.v, &part.cache.pages}};
    invar_tensor *rows[] = {&a.k, &a.v}, *cached[] = {&a.cache.k, &a.cache.v};
    void *at;

    for (int i = 0; i <= SEQUENCES; i++)
        start[i] = i * LENGTH;
    for (int i = 0; i < SEQUENCES; i++)
        lengths[i] = LENGTH;
    for (int i = 0; i < 2; i++) {
        INVAR_TRY(invar_gpu_bench_make(rows[i], b, INVAR_DTYPE_BF16, TOKENS, HEADS * DIM));
        *rows[i] = invar_tensor_3d(rows[i]->data, INVAR_DTYPE_BF16, TOKENS, HEADS, DIM);
        INVAR_TRY(invar_gpu_bench_alloc(cached[i], b, INVAR_DTYPE_BF16, TOKENS, HEADS * DIM));
        *cached[i] = invar_tensor_4d(cached[i]->data, INVAR_DTYPE_BF16, ALL, PAGE, HEADS, DIM);
    }
    INVAR_TRY(invar_gpu_bench_indices(&a.cache.pages, b, ALL, ALL, 1021));
    a.cache.pages = invar_tensor_2d(a.cache.pages.data, INVAR_DTYPE_I32, SEQUENCES, PAGES);
    INVAR_TRY(invar_gpu_bench_array(&at, b, start, sizeof start));
    a.rows.offsets = at;
    INVAR_TRY(invar_gpu_bench_array(&at, b, lengths, sizeof lengths));
    a.lengths = at;
    part = a;
    part.rows.offsets = start;
    part.lengths = lengths;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_KV_WRITE, &a, "64x256 H8 D128",
                                 4.0 * TOKENS * HEADS * DIM * 2);
}

/* ---- list of benchmarks ---------------------------------------------------------------------- */

const invar_gpu_memory_bench invar_gpu_movers[] = {
    {INVAR_OP_ADD, bench_add},
    {INVAR_OP_QUANTIZE, bench_quantize},
    {INVAR_OP_TOKEN_SUM, bench_token_sum},
    {INVAR_OP_EMBEDDING_FWD, bench_embedding},
    {INVAR_OP_EMBEDDING_BWD, bench_embedding_bwd},
    {INVAR_OP_RMSNORM_FWD, bench_rmsnorm},
    {INVAR_OP_RMSNORM_BWD, bench_rmsnorm_bwd},
    {INVAR_OP_ROPE_FWD, bench_rope},
    {INVAR_OP_ROPE_BWD, bench_rope_bwd},
    {INVAR_OP_SWIGLU_FWD, bench_swiglu},
    {INVAR_OP_SWIGLU_BWD, bench_swiglu_bwd},
    {INVAR_OP_KV_WRITE, bench_kv_write},
    {INVAR_OP_ATTENTION_PAGED, bench_paged},
    {INVAR_OP_LOGPROB_FWD, bench_logprob},
    {INVAR_OP_LOGPROB_BWD, bench_logprob_bwd},
    {INVAR_OP_LOGPROB_SUM, bench_logprob_sum},
    {INVAR_OP_SAMPLE, bench_sample},
    {INVAR_OP_GRAD_NORM, bench_grad_norm},
    {INVAR_OP_ADAMW, bench_adamw},
    {INVAR_OP_HASH_TREE, bench_hash},
    {INVAR_OP_COUNT, NULL},
};
