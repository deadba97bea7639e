/*
 * audit_element.c - downloads the operands of one output element and recomputes it with the CPU op.
 *
 * An element of a product needs a row of one operand and a row or column of the other; a row of
 * attention needs the keys and values that it sees. Quantized operands are downloaded in complete
 * scale blocks. Row offsets, lengths and page tables are read back from the device. If one is
 * invalid, the element is skipped (`compared` stays false): the device reports it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/audit/audit_element.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

#include "kernels-deterministic/math/shards.h"

#include "base/invar_banned.h"

#define ROOM ((size_t)1 << 22)   /* bytes of strided rows that are downloaded at once */
#define APART ((size_t)1 << 16)  /* rows with a stride of more bytes are downloaded one by one */
#define MOST_ROWS ((int64_t)512) /* rows of a sample of which the CPU computes all */
#define MOST_SEGMENTS ((int64_t)1 << 24)

/* ---- downloads ------------------------------------------------------------------------------- */

/* Allocates zeroed memory that is freed when the element is done. */
static invar_status alloc_operand(void **out, invar_audit_scratch *scratch, size_t bytes)
{
    INVAR_CHECK(scratch->n_operands < INVAR_AUDIT_MAX_OPERANDS);
    INVAR_TRY(invar_alloc(out, bytes, 1, "operands of an audit"));
    memset(*out, 0, bytes);
    scratch->operands[scratch->n_operands++] = *out;
    return INVAR_OK;
}

static void free_operands(invar_audit_scratch *scratch)
{
    while (scratch->n_operands > 0)
        invar_free(scratch->operands[--scratch->n_operands]);
}

/*
 * Downloads `bytes` bytes of each of `rows` rows with the given stride, and stores them
 * contiguously.
 */
static invar_status download_rows(void *to, invar_audit_scratch *scratch, const void *from,
                                  size_t stride, int64_t rows, size_t bytes)
{
    int64_t at_once = stride > APART ? 1 : (int64_t)(ROOM / (stride ? stride : 1));
    const char *source = from;
    char *out = to;

    if (stride == bytes || rows == 1)
        return invar_device_download(scratch->dev, to, from, (size_t)rows * bytes);
    if (!scratch->row_buffer)
        INVAR_TRY(invar_alloc(&scratch->row_buffer, ROOM, 1, "rows of an audit"));
    for (int64_t row = 0; row < rows; row += at_once) {
        int64_t n = rows - row < at_once ? rows - row : at_once;
        if (n == 1) {
            INVAR_TRY(invar_device_download(scratch->dev, out + (size_t)row * bytes,
                                            source + (size_t)row * stride, bytes));
            continue;
        }
        INVAR_TRY(invar_device_download(scratch->dev, scratch->row_buffer,
                                        source + (size_t)row * stride,
                                        (size_t)(n - 1) * stride + bytes));
        for (int64_t i = 0; i < n; i++)
            memcpy(out + (size_t)(row + i) * bytes,
                   (char *)scratch->row_buffer + (size_t)i * stride, bytes);
    }
    return INVAR_OK;
}

static size_t bytes_of(const invar_tensor *t, int64_t elements)
{
    return (size_t)elements * (size_t)invar_dtype_bits(t->dtype) / 8;
}

/* A rectangle of a tensor of rank 2. */
typedef struct cut {
    int64_t row, rows, col, cols;
} cut;

/*
 * Extends a rectangle to complete scale blocks. The original starts at the difference of the old
 * and the new `row` and `col`.
 */
static cut whole_blocks(const invar_tensor *t, cut c)
{
    int64_t block = invar_dtype_scale_block(t->dtype), end;
    invar_band first, last;

    if (!block || c.rows == 0)
        return c;
    first = invar_tensor_band(t, invar_tensor_band_index(t, c.row));
    last = invar_tensor_band(t, invar_tensor_band_index(t, c.row + c.rows - 1));
    c.row = first.first;
    c.rows = last.first + last.rows - c.row;
    end = (c.col + c.cols + block - 1) / block * block;
    c.col = c.col / block * block;
    c.cols = (end < t->shape[1] ? end : t->shape[1]) - c.col;
    return c;
}

/* *out = host copy of a rectangle that consists of complete scale blocks. */
static invar_status fetch_cut(invar_tensor *out, invar_audit_scratch *scratch,
                              const invar_tensor *t, cut c)
{
    int64_t block = invar_dtype_scale_block(t->dtype);
    invar_tensor one = *t;
    size_t size, width;

    *out = invar_tensor_2d(NULL, t->dtype, c.rows, c.cols);
    out->scale_rows = t->scale_rows;
    INVAR_TRY(alloc_operand(&out->data, scratch, bytes_of(t, c.rows * c.cols)));
    INVAR_TRY(download_rows(out->data, scratch,
                            (const char *)t->data + bytes_of(t, c.row * t->row_stride + c.col),
                            bytes_of(t, t->row_stride), c.rows, bytes_of(t, c.cols)));
    if (block == 0)
        return INVAR_OK;
    one.shape[0] = one.shape[1] = 1;
    size = invar_tensor_scale_bytes(&one);
    width = (size_t)invar_tensor_scale_blocks(t) * size;
    INVAR_TRY(alloc_operand(&out->scale, scratch, invar_tensor_scale_bytes(out)));
    return download_rows(
        out->scale, scratch,
        (const char *)t->scale + (size_t)invar_tensor_band_index(t, c.row) * width +
            (size_t)(c.col / block) * size,
        width, invar_tensor_bands(out), (size_t)invar_tensor_scale_blocks(out) * size);
}

/* View of (T, H, D) as (T, H * D). */
static invar_tensor flatten_heads(const invar_tensor *t)
{
    invar_tensor view = *t;

    view.rank = 2;
    view.shape[1] = invar_tensor_row_elements(t);
    return view;
}

/* Downloads heads [first, first + heads) of some rows as (rows, heads, D). */
static invar_status fetch_heads(invar_tensor *out, invar_audit_scratch *scratch,
                                const invar_tensor *t, int64_t row, int64_t rows, int64_t first,
                                int64_t heads)
{
    int64_t dim = t->shape[2];
    invar_tensor view = flatten_heads(t), got;

    INVAR_TRY(fetch_cut(&got, scratch, &view, (cut){row, rows, first * dim, heads * dim}));
    *out = invar_tensor_3d(got.data, t->dtype, rows, heads, dim);
    return INVAR_OK;
}

static invar_status fetch_numbers(int64_t **out, invar_audit_scratch *scratch, const int64_t *from,
                                  int64_t count)
{
    INVAR_TRY(alloc_operand((void **)out, scratch, (size_t)count * sizeof **out));
    return invar_device_download(scratch->dev, *out, from, (size_t)count * sizeof **out);
}

static invar_status alloc_tensor(invar_tensor *out, invar_audit_scratch *scratch, invar_dtype dtype,
                                 int64_t n0, int64_t n1, int64_t n2)
{
    *out = invar_tensor_3d(NULL, dtype, n0, n1, n2);
    return alloc_operand(&out->data, scratch, bytes_of(out, n0 * n1 * n2));
}

/* ---- row offsets ----------------------------------------------------------------------------- */

typedef struct offset_range {
    int64_t *start; /* offsets of all ranges, on the host */
    int64_t number, first, end;
} offset_range;

/* Finds the range that contains the row; `number` is -1 if none does or the offsets are invalid. */
static invar_status find_segment(offset_range *out, invar_audit_scratch *scratch,
                                 const invar_row_offsets *s, int64_t row)
{
    *out = (offset_range){.number = -1};
    if (s->count < 1 || s->count > MOST_SEGMENTS)
        return INVAR_OK;
    INVAR_TRY(fetch_numbers(&out->start, scratch, s->offsets, s->count + 1));
    for (int64_t i = 0; i < s->count; i++)
        if (out->start[i] >= 0 && out->start[i] <= row && row < out->start[i + 1]) {
            out->number = i;
            out->first = out->start[i];
            out->end = out->start[i + 1];
            return INVAR_OK;
        }
    return INVAR_OK;
}

/* ---- comparison ------------------------------------------------------------------------------ */

static int64_t scale_to_extent(uint32_t word, int64_t extent)
{
    return (int64_t)(((uint64_t)word * (uint64_t)extent) >> 32);
}

/* Values to compare: `count` of them from (row, col) of the device's tensor, which has rank 2. */
typedef struct compared_values {
    const char *name; /* name of the output */
    invar_tensor tensor;
    int64_t row, col, count;
    int64_t dim; /* head width, for names of elements; 0 if the tensor has no heads */
    const void *cpu;
} compared_values;

static uint32_t bits_of_value(const void *values, invar_dtype dtype, int64_t i)
{
    uint32_t wide;
    uint16_t narrow;

    if (dtype == INVAR_DTYPE_F32) {
        memcpy(&wide, (const char *)values + (size_t)i * sizeof wide, sizeof wide);
        return wide;
    }
    memcpy(&narrow, (const char *)values + (size_t)i * sizeof narrow, sizeof narrow);
    return narrow;
}

/* NaNs are equal whatever their payload: the contract does not define it. */
static bool is_nan(uint32_t bits, invar_dtype dtype)
{
    uint32_t wide = dtype == INVAR_DTYPE_F32 ? bits : bits << 16;

    return (wide & UINT32_C(0x7FFFFFFF)) > UINT32_C(0x7F800000);
}

static void name_element(invar_audit_finding *finding, const compared_values *s, int64_t col)
{
    if (s->dim)
        (void)snprintf(finding->element, sizeof finding->element,
                       "%s[%" PRId64 ", %" PRId64 ", %" PRId64 "]", s->name, s->row, col / s->dim,
                       col % s->dim);
    else
        (void)snprintf(finding->element, sizeof finding->element, "%s[%" PRId64 ", %" PRId64 "]",
                       s->name, s->row, col);
}

static invar_status compare_values(bool *differs, invar_audit_finding *finding,
                                   invar_audit_scratch *scratch, const compared_values *s)
{
    invar_dtype dtype = s->tensor.dtype;
    invar_tensor got;

    INVAR_TRY(fetch_cut(&got, scratch, &s->tensor, (cut){s->row, 1, s->col, s->count}));
    scratch->compared = true;
    for (int64_t i = 0; i < s->count; i++) {
        uint32_t device = bits_of_value(got.data, dtype, i), cpu = bits_of_value(s->cpu, dtype, i);
        if (device == cpu || (is_nan(device, dtype) && is_nan(cpu, dtype)))
            continue;
        *differs = true;
        finding->digits = invar_dtype_bits(dtype) / 4;
        finding->device = device;
        finding->cpu = cpu;
        name_element(finding, s, s->col + i);
        return INVAR_OK;
    }
    return INVAR_OK;
}

static const void *element(const invar_tensor *t, int64_t i)
{
    return (const char *)t->data + bytes_of(t, i);
}

/* ---- products -------------------------------------------------------------------------------- */

/*
 * *out = first row of the weights of the row's expert, which has `width` rows; 0 without experts,
 * -1 if the row belongs to no expert.
 */
static invar_status expert_rows(int64_t *out, invar_audit_scratch *scratch,
                                const invar_row_offsets *experts, int64_t row, int64_t width)
{
    offset_range expert;

    *out = 0;
    if (!experts)
        return INVAR_OK;
    INVAR_TRY(find_segment(&expert, scratch, experts, row));
    *out = expert.number < 0 ? -1 : expert.number * width;
    return INVAR_OK;
}

/* An output of linear.fwd. */
typedef struct forward_output {
    const char *name;
    invar_tensor y;
    invar_linear_output from;
    invar_linear_output up; /* second layer if the output is the activation of both; else zeroed */
} forward_output;

/* Picks one of the outputs: y, those of `more`, the activation. */
static forward_output choose_output(const invar_linear_fwd_args *a, uint32_t word)
{
    static const char *const names[] = {"y", "more[0].y", "more[1].y"};
    forward_output all[INVAR_LINEAR_MAX_PARTS + 1];
    int64_t count = 0;

    if (invar_tensor_present(&a->y))
        all[count++] = (forward_output){.name = names[0], a->y, .from = {a->y, a->w, a->bias}};
    for (int32_t i = 0; i < a->n_more; i++)
        if (invar_tensor_present(&a->more[i].y))
            all[count++] = (forward_output){names[i + 1], a->more[i].y, .from = a->more[i]};
    if (invar_tensor_present(&a->act))
        all[count++] = (forward_output){"act", a->act, {a->y, a->w, a->bias}, a->more[0]};
    return all[scale_to_extent(word, count)];
}

/* Downloads rows `c` of the weights and the matching elements of the bias. */
static invar_status fetch_layer(invar_linear_output *out, invar_audit_scratch *scratch,
                                const invar_linear_output *from, cut c)
{
    const invar_tensor *bias = &from->bias;
    invar_tensor line = invar_tensor_2d(bias->data, bias->dtype, 1, bias->shape[0]);

    *out = (invar_linear_output){0};
    INVAR_TRY(fetch_cut(&out->w, scratch, &from->w, c));
    if (!invar_tensor_present(bias))
        return INVAR_OK;
    INVAR_TRY(fetch_cut(&out->bias, scratch, &line, (cut){0, 1, c.row, c.rows}));
    out->bias = invar_tensor_1d(out->bias.data, bias->dtype, c.rows);
    return INVAR_OK;
}

/* Recomputes an element of a product; `experts` is NULL for a dense layer. */
static invar_status forward_element(bool *differs, invar_audit_finding *finding,
                                    invar_audit_scratch *scratch, const invar_linear_fwd_args *a,
                                    const invar_row_offsets *experts, const invar_audit_pick *pick)
{
    forward_output out = choose_output(a, pick->word[2]);
    compared_values s = {.name = out.name,
                         .tensor = out.y,
                         .row = scale_to_extent(pick->word[0], out.y.shape[0]),
                         .col = scale_to_extent(pick->word[1], out.y.shape[1]),
                         .count = 1};
    invar_linear_fwd_args own = {.k_shards = a->k_shards, .k_atom = a->k_atom};
    invar_linear_output layer;
    int64_t k = a->x.shape[1], first;
    invar_tensor *y = &own.y;
    cut c;

    INVAR_TRY(expert_rows(&first, scratch, experts, s.row, out.y.shape[1]));
    if (first < 0)
        return INVAR_OK;
    c = whole_blocks(&out.from.w, (cut){first + s.col, 1, 0, k});
    INVAR_TRY(fetch_cut(&own.x, scratch, &a->x, (cut){s.row, 1, 0, k}));
    INVAR_TRY(fetch_layer(&layer, scratch, &out.from, c));
    own.w = layer.w;
    own.bias = layer.bias;
    if (invar_tensor_present(&a->residual))
        INVAR_TRY(fetch_cut(&own.residual, scratch, &a->residual, (cut){s.row, 1, c.row, c.rows}));
    if (invar_tensor_present(&out.up.w)) {
        INVAR_TRY(fetch_layer(&own.more[0], scratch, &out.up, c));
        own.n_more = 1;
        y = &own.act;
    }
    *y = invar_tensor_2d(NULL, out.y.dtype, 1, c.rows);
    INVAR_TRY(alloc_operand(&y->data, scratch, bytes_of(y, c.rows)));
    INVAR_TRY(invar_op_runner_run(&scratch->cpu, INVAR_OP_LINEAR_FWD, &own));
    s.cpu = element(y, first + s.col - c.row);
    return compare_values(differs, finding, scratch, &s);
}

static invar_status input_gradient_element(bool *differs, invar_audit_finding *finding,
                                           invar_audit_scratch *scratch,
                                           const invar_linear_dx_args *a,
                                           const invar_row_offsets *experts,
                                           const invar_audit_pick *pick)
{
    compared_values s = {.name = "dx",
                         .tensor = a->dx,
                         .row = scale_to_extent(pick->word[0], a->dx.shape[0]),
                         .col = scale_to_extent(pick->word[1], a->dx.shape[1]),
                         .count = 1};
    invar_linear_dx_args own = {.n_parts = a->n_parts, .k_shards = a->k_shards};
    cut c = {0, 0, 0, 0};

    for (int32_t i = 0; i < a->n_parts; i++) {
        const invar_linear_part *p = &a->parts[i];
        int64_t width = p->dy.shape[1], first;

        own.k_atom[i] = a->k_atom[i];
        INVAR_TRY(expert_rows(&first, scratch, experts, s.row, width));
        if (first < 0)
            return INVAR_OK;
        c = whole_blocks(&p->w, (cut){first, width, s.col, 1});
        INVAR_TRY(fetch_cut(&own.parts[i].dy, scratch, &p->dy, (cut){s.row, 1, 0, width}));
        INVAR_TRY(fetch_cut(&own.parts[i].w, scratch, &p->w, c));
    }
    own.dx = invar_tensor_2d(NULL, a->dx.dtype, 1, c.cols);
    INVAR_TRY(alloc_operand(&own.dx.data, scratch, bytes_of(&own.dx, c.cols)));
    INVAR_TRY(invar_op_runner_run(&scratch->cpu, INVAR_OP_LINEAR_DX, &own));
    s.cpu = element(&own.dx, s.col - c.col);
    return compare_values(differs, finding, scratch, &s);
}

static compared_values weight_element(const invar_tensor *dw, const invar_audit_pick *pick)
{
    return (compared_values){.name = "dw",
                             .tensor = *dw,
                             .row = scale_to_extent(pick->word[0], dw->shape[0]),
                             .col = scale_to_extent(pick->word[1], dw->shape[1]),
                             .count = 1};
}

static invar_status weight_gradient_element(bool *differs, invar_audit_finding *finding,
                                            invar_audit_scratch *scratch,
                                            const invar_linear_dw_args *a,
                                            const invar_audit_pick *pick)
{
    compared_values s = weight_element(&a->dw, pick);
    float sum = pick->before;
    invar_linear_dw_args own = {.dw = invar_tensor_2d(&sum, INVAR_DTYPE_F32, 1, 1)};
    int64_t tokens = a->dy.shape[0], *units;

    if (a->units.count < 0 || a->units.count > MOST_SEGMENTS)
        return INVAR_OK;
    INVAR_TRY(fetch_numbers(&units, scratch, a->units.offsets, a->units.count + 1));
    INVAR_TRY(fetch_cut(&own.dy, scratch, &a->dy, (cut){0, tokens, s.row, 1}));
    INVAR_TRY(fetch_cut(&own.x, scratch, &a->x, (cut){0, tokens, s.col, 1}));
    own.units = (invar_row_offsets){units, a->units.count};
    own.fresh = a->fresh;
    INVAR_TRY(invar_op_runner_run(&scratch->cpu, INVAR_OP_LINEAR_DW, &own));
    s.cpu = &sum;
    return compare_values(differs, finding, scratch, &s);
}

static invar_status expert_gradient_element(bool *differs, invar_audit_finding *finding,
                                            invar_audit_scratch *scratch,
                                            const invar_moe_linear_dw_args *a,
                                            const invar_audit_pick *pick)
{
    compared_values s = weight_element(&a->dw, pick);
    float sum = pick->before;
    int64_t width = a->dy.shape[1], e = s.row / width, *starts, *units, rows, ends[2] = {0, 0};
    invar_moe_linear_dw_args own = {.dw = invar_tensor_2d(&sum, INVAR_DTYPE_F32, 1, 1)};

    if (a->units.count < 0 || a->units.count > MOST_SEGMENTS || a->experts.count > MOST_SEGMENTS)
        return INVAR_OK;
    INVAR_TRY(fetch_numbers(&units, scratch, a->units.offsets, a->units.count + 1));
    INVAR_TRY(fetch_numbers(&starts, scratch, a->experts.offsets, a->experts.count + 1));
    rows = starts[e + 1] - starts[e];
    if (starts[e] < 0 || rows < 0 || starts[e + 1] > a->dy.shape[0])
        return INVAR_OK;
    INVAR_TRY(fetch_cut(&own.dy, scratch, &a->dy, (cut){starts[e], rows, s.row % width, 1}));
    INVAR_TRY(fetch_cut(&own.x, scratch, &a->x, (cut){starts[e], rows, s.col, 1}));
    own.row_token = invar_tensor_1d(NULL, INVAR_DTYPE_I32, rows);
    INVAR_TRY(alloc_operand(&own.row_token.data, scratch, bytes_of(&own.row_token, rows)));
    INVAR_TRY(invar_device_download(scratch->dev, own.row_token.data,
                                    element(&a->row_token, starts[e]),
                                    bytes_of(&own.row_token, rows)));
    ends[1] = rows;
    own.experts = (invar_row_offsets){ends, 1};
    own.units = (invar_row_offsets){units, a->units.count};
    own.fresh = a->fresh;
    INVAR_TRY(invar_op_runner_run(&scratch->cpu, INVAR_OP_MOE_LINEAR_DW, &own));
    s.cpu = &sum;
    return compare_values(differs, finding, scratch, &s);
}

/* ---- attention ------------------------------------------------------------------------------- */

/*
 * Recomputes one query row over all of `keys` and `values`, (length, 1, D) each, as the last row of
 * its sequence.
 */
static invar_status attend_one_row(bool *differs, invar_audit_finding *finding,
                                   invar_audit_scratch *scratch, const invar_tensor *q,
                                   int64_t head, invar_tensor keys, invar_tensor values,
                                   const invar_attention_shape *shape, compared_values *s)
{
    int64_t rows[2] = {0, 1}, length = keys.shape[0], dim = q->shape[2];
    int32_t page = 0;
    invar_attention_paged_args own = {
        .cache = {.k = invar_tensor_4d(keys.data, keys.dtype, 1, length, 1, dim),
                  .v = invar_tensor_4d(values.data, values.dtype, 1, length, 1, dim),
                  .pages = invar_tensor_2d(&page, INVAR_DTYPE_I32, 1, 1)},
        .rows = {rows, 1},
        .lengths = &length,
        .shape = *shape};

    INVAR_TRY(fetch_heads(&own.q, scratch, q, s->row, 1, head, 1));
    INVAR_TRY(alloc_tensor(&own.o, scratch, q->dtype, 1, 1, dim));
    INVAR_TRY(invar_op_runner_run(&scratch->cpu, INVAR_OP_ATTENTION_PAGED, &own));
    s->cpu = own.o.data;
    s->col = head * dim;
    s->count = s->dim = dim;
    return compare_values(differs, finding, scratch, s);
}

/* Recomputes the last of `rows` rows of a sample with attention.fwd itself, to compare lse2 too. */
static invar_status attend_sample(bool *differs, invar_audit_finding *finding,
                                  invar_audit_scratch *scratch, const invar_attention_fwd_args *a,
                                  int64_t head, const invar_tensor *k, const invar_tensor *v,
                                  compared_values *s)
{
    int64_t rows = k->shape[0], start[2] = {0, rows}, dim = a->q.shape[2];
    invar_attention_fwd_args own = {.k = *k, .v = *v, .samples = {start, 1}, .shape = a->shape};

    INVAR_TRY(fetch_heads(&own.q, scratch, &a->q, s->row - rows + 1, rows, head, 1));
    INVAR_TRY(alloc_tensor(&own.o, scratch, a->o.dtype, rows, 1, dim));
    own.lse2 = invar_tensor_2d(NULL, INVAR_DTYPE_F32, rows, 1);
    INVAR_TRY(alloc_operand(&own.lse2.data, scratch, bytes_of(&own.lse2, rows)));
    INVAR_TRY(invar_op_runner_run(&scratch->cpu, INVAR_OP_ATTENTION_FWD, &own));
    s->cpu = element(&own.o, (rows - 1) * dim);
    s->col = head * dim;
    s->count = s->dim = dim;
    INVAR_TRY(compare_values(differs, finding, scratch, s));
    if (*differs)
        return INVAR_OK;
    *s = (compared_values){.name = "lse2",
                           .tensor = a->lse2,
                           .row = s->row,
                           .col = head,
                           .count = 1,
                           .cpu = element(&own.lse2, rows - 1)};
    return compare_values(differs, finding, scratch, s);
}

static invar_status packed_attention_row(bool *differs, invar_audit_finding *finding,
                                         invar_audit_scratch *scratch,
                                         const invar_attention_fwd_args *a,
                                         const invar_audit_pick *pick)
{
    compared_values s = {.name = "o",
                         .tensor = flatten_heads(&a->o),
                         .row = scale_to_extent(pick->word[0], a->q.shape[0])};
    int64_t head = scale_to_extent(pick->word[1], a->q.shape[1]);
    int64_t kv_head = head / (a->q.shape[1] / a->k.shape[1]);
    invar_tensor k, v;
    offset_range sample;

    INVAR_TRY(find_segment(&sample, scratch, &a->samples, s.row));
    if (sample.number < 0)
        return INVAR_OK;
    INVAR_TRY(fetch_heads(&k, scratch, &a->k, sample.first, s.row - sample.first + 1, kv_head, 1));
    INVAR_TRY(fetch_heads(&v, scratch, &a->v, sample.first, s.row - sample.first + 1, kv_head, 1));
    if (invar_tensor_present(&a->lse2) && k.shape[0] <= MOST_ROWS)
        return attend_sample(differs, finding, scratch, a, head, &k, &v, &s);
    return attend_one_row(differs, finding, scratch, &a->q, head, k, v, &a->shape, &s);
}

/* Downloads the head's keys or values of positions [0, length) from their pages. */
static invar_status fetch_pages(invar_tensor *out, invar_audit_scratch *scratch,
                                const invar_tensor *t, const int32_t *pages, int64_t length,
                                int64_t head)
{
    int64_t size = t->shape[1], dim = t->shape[3];
    size_t row = bytes_of(t, t->shape[2] * dim);

    INVAR_TRY(alloc_tensor(out, scratch, t->dtype, length, 1, dim));
    for (int64_t at = 0; at < length; at += size) {
        const char *page =
            (const char *)t->data + bytes_of(t, pages[at / size] * t->row_stride + head * dim);
        INVAR_TRY(download_rows((char *)out->data + bytes_of(t, at * dim), scratch, page, row,
                                length - at < size ? length - at : size, bytes_of(t, dim)));
    }
    return INVAR_OK;
}

/* *out = pages of positions [0, length); NULL if one is out of range. */
static invar_status fetch_page_table(int32_t **out, invar_audit_scratch *scratch,
                                     const invar_kv_pages *cache, int64_t sequence, int64_t length)
{
    int64_t count = (length + cache->k.shape[1] - 1) / cache->k.shape[1];
    int32_t *pages;

    *out = NULL;
    if (count > cache->pages.shape[1])
        return INVAR_OK;
    INVAR_TRY(alloc_operand((void **)&pages, scratch, (size_t)count * sizeof *pages));
    INVAR_TRY(invar_device_download(scratch->dev, pages,
                                    element(&cache->pages, sequence * cache->pages.row_stride),
                                    (size_t)count * sizeof *pages));
    for (int64_t i = 0; i < count; i++)
        if (pages[i] < 0 || pages[i] >= cache->k.shape[0])
            return INVAR_OK;
    *out = pages;
    return INVAR_OK;
}

static invar_status paged_attention_row(bool *differs, invar_audit_finding *finding,
                                        invar_audit_scratch *scratch,
                                        const invar_attention_paged_args *a,
                                        const invar_audit_pick *pick)
{
    compared_values s = {.name = "o",
                         .tensor = flatten_heads(&a->o),
                         .row = scale_to_extent(pick->word[0], a->q.shape[0])};
    int64_t head = scale_to_extent(pick->word[1], a->q.shape[1]), length;
    int64_t kv_head = head / (a->q.shape[1] / a->cache.k.shape[2]);
    invar_tensor k, v;
    int32_t *pages;
    offset_range rows;

    INVAR_TRY(find_segment(&rows, scratch, &a->rows, s.row));
    if (rows.number < 0)
        return INVAR_OK;
    INVAR_TRY(
        invar_device_download(scratch->dev, &length, a->lengths + rows.number, sizeof length));
    length -= rows.end - s.row - 1;
    if (length < 1)
        return INVAR_OK;
    INVAR_TRY(fetch_page_table(&pages, scratch, &a->cache, rows.number, length));
    if (!pages)
        return INVAR_OK;
    INVAR_TRY(fetch_pages(&k, scratch, &a->cache.k, pages, length, kv_head));
    INVAR_TRY(fetch_pages(&v, scratch, &a->cache.v, pages, length, kv_head));
    return attend_one_row(differs, finding, scratch, &a->q, head, k, v, &a->shape, &s);
}

/*
 * Runs attention.bwd on rows [first, first + rows) of a sample, for some query heads and their kv
 * heads.
 */
static invar_status run_attention_backward(invar_attention_bwd_args *own,
                                           invar_audit_scratch *scratch,
                                           const invar_attention_bwd_args *a, int64_t first,
                                           int64_t rows, int64_t head, int64_t heads)
{
    int64_t start[2] = {0, rows}, dim = a->q.shape[2], group = a->q.shape[1] / a->k.shape[1];
    int64_t kv_head = head / group, kv_heads = (heads + group - 1) / group;
    invar_dtype dtype = a->q.dtype;

    *own = (invar_attention_bwd_args){.samples = {start, 1}, .shape = a->shape};
    if (heads == a->q.shape[1]) { // shards are defined for all heads together
        own->head_shards = a->head_shards;
        own->head_atom = a->head_atom;
    }
    INVAR_TRY(fetch_heads(&own->q, scratch, &a->q, first, rows, head, heads));
    INVAR_TRY(fetch_heads(&own->o, scratch, &a->o, first, rows, head, heads));
    INVAR_TRY(fetch_heads(&own->d_o, scratch, &a->d_o, first, rows, head, heads));
    INVAR_TRY(fetch_cut(&own->lse2, scratch, &a->lse2, (cut){first, rows, head, heads}));
    INVAR_TRY(fetch_heads(&own->k, scratch, &a->k, first, rows, kv_head, kv_heads));
    INVAR_TRY(fetch_heads(&own->v, scratch, &a->v, first, rows, kv_head, kv_heads));
    INVAR_TRY(alloc_tensor(&own->dq, scratch, dtype, rows, heads, dim));
    INVAR_TRY(alloc_tensor(&own->dk, scratch, dtype, rows, kv_heads, dim));
    INVAR_TRY(alloc_tensor(&own->dv, scratch, dtype, rows, kv_heads, dim));
    INVAR_TRY(invar_op_runner_run(&scratch->cpu, INVAR_OP_ATTENTION_BWD, own));
    own->samples = (invar_row_offsets){NULL, 0};
    return INVAR_OK;
}

/*
 * Recomputes a row of dq, dk or dv. dq of a row needs the rows before it; dk and dv need the rows
 * after it and complete blocks. Therefore dq is checked in the first rows of a sample, dk and dv in
 * its last rows within one span of queries.
 */
static invar_status attention_backward_row(bool *differs, invar_audit_finding *finding,
                                           invar_audit_scratch *scratch,
                                           const invar_attention_bwd_args *a,
                                           const invar_audit_pick *pick)
{
    static const char *const names[] = {"dq", "dk", "dv"};
    const invar_tensor *outputs[] = {&a->dq, &a->dk, &a->dv};
    int64_t which = pick->word[1] % 3, group = a->q.shape[1] / a->k.shape[1];
    int64_t block = invar_attention_block(a->q.shape[2]), span = a->shape.q_span;
    int64_t most, at, first, head;
    bool alone; // the sums of a kv head do not depend on other heads
    compared_values s = {
        .name = names[which], .tensor = flatten_heads(outputs[which]), .dim = a->q.shape[2]};
    invar_attention_bwd_args own;
    offset_range sample;

    INVAR_TRY(
        find_segment(&sample, scratch, &a->samples, scale_to_extent(pick->word[0], a->q.shape[0])));
    if (sample.number < 0)
        return INVAR_OK;
    most = sample.end - sample.first < MOST_ROWS ? sample.end - sample.first : MOST_ROWS;
    if (which > 0 && span > 0 && most > (sample.end - sample.first - 1) % span + 1)
        most = (sample.end - sample.first - 1) % span + 1; // more would be split elsewhere
    at = scale_to_extent(pick->word[2], most); // relative to the first row that is downloaded
    if (which == 0) {
        first = sample.first;
        head = scale_to_extent(pick->word[3], a->q.shape[1]);
        INVAR_TRY(run_attention_backward(&own, scratch, a, first, at + 1, head, 1));
        s.cpu = element(&own.dq, at * s.dim);
    } else {
        at += sample.end - sample.first - most; // relative to the sample
        first = sample.first + at / block * block;
        at %= block;
        head = scale_to_extent(pick->word[3], a->k.shape[1]);
        alone = invar_shard_whole_groups(a->q.shape[1], group, a->head_atom, a->head_shards);
        INVAR_TRY(run_attention_backward(&own, scratch, a, first, sample.end - first,
                                         alone ? head * group : 0, alone ? group : a->q.shape[1]));
        s.cpu = element(which == 1 ? &own.dk : &own.dv,
                        (alone ? at : at * a->k.shape[1] + head) * s.dim);
    }
    s.row = first + at;
    s.col = head * s.dim;
    s.count = s.dim;
    return compare_values(differs, finding, scratch, &s);
}

/* ---- ops ------------------------------------------------------------------------------------- */

bool invar_audit_knows(invar_op op)
{
    switch (op) {
    case INVAR_OP_LINEAR_FWD:
    case INVAR_OP_LINEAR_DX:
    case INVAR_OP_LINEAR_DW:
    case INVAR_OP_MOE_LINEAR_FWD:
    case INVAR_OP_MOE_LINEAR_DX:
    case INVAR_OP_MOE_LINEAR_DW:
    case INVAR_OP_ATTENTION_FWD:
    case INVAR_OP_ATTENTION_BWD:
    case INVAR_OP_ATTENTION_PAGED: return true;
    default: return false;
    }
}

/* Every audited op has an output as its first field, but y of linear.fwd may be absent. */
static bool is_empty(invar_op op, const void *args)
{
    const invar_linear_fwd_args *linear = args;
    const invar_tensor *out = args;

    if (op == INVAR_OP_LINEAR_FWD && !invar_tensor_present(out))
        out = &linear->act;
    return out->shape[0] == 0 || invar_tensor_row_elements(out) == 0;
}

invar_status invar_audit_read_before(invar_audit_pick *pick, invar_audit_scratch *scratch,
                                     invar_op op, const void *args)
{
    const invar_tensor *dw = args;
    compared_values s;

    pick->before = 0.0f;
    if ((op != INVAR_OP_LINEAR_DW && op != INVAR_OP_MOE_LINEAR_DW) || is_empty(op, args))
        return INVAR_OK;
    s = weight_element(dw, pick);
    return invar_device_download(scratch->dev, &pick->before,
                                 element(dw, s.row * dw->row_stride + s.col), sizeof pick->before);
}

static invar_status compare_op(bool *differs, invar_audit_finding *finding,
                               invar_audit_scratch *scratch, invar_op op, const void *args,
                               const invar_audit_pick *pick)
{
    const invar_moe_linear_fwd_args *fwd = args;
    const invar_moe_linear_dx_args *dx = args;
    invar_linear_fwd_args dense;
    invar_linear_dx_args dense_dx;

    switch (op) {
    case INVAR_OP_LINEAR_FWD: return forward_element(differs, finding, scratch, args, NULL, pick);
    case INVAR_OP_MOE_LINEAR_FWD:
        dense = (invar_linear_fwd_args){.y = fwd->y,
                                        .x = fwd->x,
                                        .w = fwd->w,
                                        .k_shards = fwd->k_shards,
                                        .k_atom = fwd->k_atom};
        return forward_element(differs, finding, scratch, &dense, &fwd->experts, pick);
    case INVAR_OP_LINEAR_DX:
        return input_gradient_element(differs, finding, scratch, args, NULL, pick);
    case INVAR_OP_MOE_LINEAR_DX:
        dense_dx =
            (invar_linear_dx_args){.dx = dx->dx, .n_parts = dx->n_parts, .k_shards = dx->k_shards};
        memcpy(dense_dx.parts, dx->parts, sizeof dense_dx.parts);
        memcpy(dense_dx.k_atom, dx->k_atom, sizeof dense_dx.k_atom);
        return input_gradient_element(differs, finding, scratch, &dense_dx, &dx->experts, pick);
    case INVAR_OP_LINEAR_DW: return weight_gradient_element(differs, finding, scratch, args, pick);
    case INVAR_OP_MOE_LINEAR_DW:
        return expert_gradient_element(differs, finding, scratch, args, pick);
    case INVAR_OP_ATTENTION_FWD: return packed_attention_row(differs, finding, scratch, args, pick);
    case INVAR_OP_ATTENTION_PAGED:
        return paged_attention_row(differs, finding, scratch, args, pick);
    default: return attention_backward_row(differs, finding, scratch, args, pick);
    }
}

invar_status invar_audit_compare(bool *differs, invar_audit_finding *finding,
                                 invar_audit_scratch *scratch, invar_op op, const void *args,
                                 const invar_audit_pick *pick)
{
    invar_status status = INVAR_OK;

    *differs = scratch->compared = false;
    if (!is_empty(op, args))
        status = compare_op(differs, finding, scratch, op, args, pick);
    free_operands(scratch);
    return status;
}
