/*
 * head.c - the end of the model: chosen rows, last norm, head, log-probabilities; and back.
 *
 * Rows without a target take no part: the last norm and the head see the chosen rows only, so the
 * units of their gradients are counted over those. Logits are the largest tensor by far; they are
 * made piece by piece, a piece being whole units, and kept for the backward only when one piece is
 * all. A second computation gives the same bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdint.h>
#include <string.h>

#include "engine/model/pass.h"
#include "kernels-deterministic/math/bf16.h"

#include "base/invar_banned.h"

/* ---- rows in and out ------------------------------------------------------------------------- */

static size_t row_bytes(const invar_tensor *t)
{
    return (size_t)t->shape[1] * (size_t)invar_dtype_bits(t->dtype) / 8;
}

static invar_status choose(invar_pass *pass, const int64_t *row, int64_t count)
{
    const invar_tensor *from = &pass->x[pass->model->spec.layers];
    invar_head_acts *h = &pass->tail;
    size_t bytes = row_bytes(from);

    for (int64_t i = 0; i < count; i++) {
        if (row[i] < (i ? row[i - 1] + 1 : 0) || row[i] >= pass->rows.count)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "row %" PRId64 " of the head is %" PRId64
                              "; rows ascend and are below %" PRId64,
                              i, row[i], pass->rows.count);
        h->row[i] = row[i];
        memcpy((char *)h->x.data + (size_t)i * bytes,
               (const char *)from->data + (size_t)row[i] * bytes, bytes);
    }
    return INVAR_OK;
}

/* The gradient at the last layer's output: zero for rows that were not chosen. */
static void put_back(invar_pass *pass)
{
    invar_head_acts *h = &pass->tail;
    invar_tensor *d = &pass->temps.d;
    size_t bytes = row_bytes(d);

    memset(d->data, 0, (size_t)d->shape[0] * bytes);
    for (int64_t i = 0; i < h->d_x.shape[0]; i++)
        memcpy((char *)d->data + (size_t)h->row[i] * bytes,
               (const char *)h->d_x.data + (size_t)i * bytes, bytes);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Rows [first, first + rows) of the head: whole units [unit, unit + units). */
typedef struct piece {
    int64_t first, rows, unit, units;
} piece;

/* As many whole units as the limit allows, at least one. */
static piece next_piece(const invar_pass *pass, int64_t unit)
{
    const invar_segments *u = &pass->head.units;
    piece p = {u->start[unit], 0, unit, 0};

    do {
        p.units++;
        p.rows = u->start[unit + p.units] - p.first;
    } while (unit + p.units < u->count &&
             (pass->options.head_rows == 0 ||
              u->start[unit + p.units + 1] - p.first <= pass->options.head_rows));
    return p;
}

static int64_t largest_piece(const invar_pass *pass)
{
    int64_t most = 0;

    for (int64_t unit = 0; unit < pass->head.units.count;) {
        piece p = next_piece(pass, unit);
        most = p.rows > most ? p.rows : most;
        unit += p.units;
    }
    return most;
}

static invar_tensor part_of(const invar_tensor *vector, const piece *p)
{
    return invar_tensor_1d((char *)vector->data + (size_t)p->first * 4, vector->dtype, p->rows);
}

/* The units of a piece, counted from its first row; until the next call. */
static invar_segments units_of(invar_pass *pass, const piece *p, const invar_segments *units)
{
    invar_head_acts *h = &pass->tail;

    INVAR_CHECK(p->units <= h->x.shape[0]); // a unit has a row at least
    for (int64_t i = 0; i <= p->units; i++)
        h->start[i] = units->start[p->unit + i] - p->first;
    return (invar_segments){h->start, p->units};
}

static invar_status make_logits(invar_tensor *out, invar_pass *pass, const piece *p)
{
    invar_head_acts *h = &pass->tail;
    invar_tensor norm = invar_tensor_rows(&h->norm, p->first, p->rows);

    *out = invar_tensor_rows(&h->logits, 0, p->rows);
    return invar_block_linear(pass, out, &norm, pass->model->head, NULL, NULL);
}

/* ---- forward --------------------------------------------------------------------------------- */

static invar_status begin(invar_pass *pass, const int64_t *row, int64_t count, int64_t piece_rows)
{
    if (pass->state == INVAR_PASS_EMPTY)
        return INVAR_FAIL(INVAR_E_STATE, 0, "the head was asked before the layers ran");
    pass->state = INVAR_PASS_RUN; // what an earlier head left is overwritten
    INVAR_TRY(invar_pass_lay_out_head(pass, count, piece_rows));
    INVAR_TRY(choose(pass, row, count));
    return invar_block_norm(pass, &pass->tail.norm, &pass->tail.x, pass->model->norm, 1);
}

static invar_status show_norm(invar_pass *pass, const invar_segments *units)
{
    return INVAR_SHOW(pass, -1, "head.norm", RMSNORM_FWD, &pass->tail.norm, .samples = units,
                      .inputs = {"in"});
}

static invar_status log_probabilities(invar_pass *pass, const piece *p, bool entropy)
{
    invar_head_acts *h = &pass->tail;
    invar_segments units = units_of(pass, p, &pass->head.units);
    invar_tensor none = {0}, logits;

    INVAR_TRY(make_logits(&logits, pass, p));
    INVAR_TRY(INVAR_SHOW(pass, -1, "head.logits", LINEAR_FWD, &logits, .samples = &units,
                         .inputs = {"head.norm"}));
    return INVAR_CALL(&pass->caller, LOGPROB_FWD, logprob_fwd, .logp = part_of(&h->logp, p),
                      .entropy = entropy ? part_of(&h->entropy, p) : none,
                      .max = part_of(&h->max, p), .logsum = part_of(&h->logsum, p),
                      .logits = logits, .targets = part_of(&h->targets, p),
                      .temperature = pass->head.temperature);
}

invar_status invar_pass_head(invar_pass *pass, const invar_head_rows *head, float *logp_out,
                             float *entropy_out)
{
    invar_head_acts *h = &pass->tail;
    int64_t rows = head->count;

    pass->head = *head;
    INVAR_TRY(begin(pass, head->row, rows, largest_piece(pass)));
    INVAR_TRY(show_norm(pass, &head->units));
    h->targets = invar_tensor_1d((void *)head->targets, INVAR_DTYPE_I32, rows);
    for (int64_t unit = 0; unit < head->units.count;) {
        piece p = next_piece(pass, unit);
        INVAR_TRY(log_probabilities(pass, &p, true));
        unit += p.units;
    }
    if (rows) {
        memcpy(logp_out, h->logp.data, (size_t)rows * sizeof *logp_out);
        if (entropy_out)
            memcpy(entropy_out, h->entropy.data, (size_t)rows * sizeof *entropy_out);
    }
    pass->state = INVAR_PASS_LOGPROBS;
    return INVAR_OK;
}

invar_status invar_pass_logits(invar_tensor *out, invar_pass *pass, const int64_t *row,
                               int64_t count)
{
    piece all = {0, count, 0, 1};

    INVAR_TRY(begin(pass, row, count, count));
    INVAR_TRY(make_logits(out, pass, &all));
    pass->state = INVAR_PASS_LOGITS;
    return INVAR_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

static invar_tensor head_gradient(const invar_pass *pass, invar_grads *grads)
{
    return pass->model->head == pass->model->embedding
               ? grads->tied_head
               : *invar_pass_grad(pass, grads, pass->model->head);
}

/* From d_logits of a piece to d_norm of its rows, and the head's gradient. */
static invar_status project_back(invar_pass *pass, const piece *p, const invar_segments *units,
                                 invar_grads *grads)
{
    invar_head_acts *h = &pass->tail;
    invar_tensor d_logits = invar_tensor_rows(&h->d_logits, 0, p->rows);
    invar_segments part = units_of(pass, p, units);
    invar_linear_dx_args dx = {
        .dx = invar_tensor_rows(&h->d_norm, p->first, p->rows), .n_parts = 1, .k_shards = 1};

    dx.parts[0] = (invar_linear_part){d_logits, pass->model->head->weight};
    INVAR_TRY(INVAR_SHOW_BACK(pass, -1, "head.dlogits", LOGPROB_BWD, &d_logits, .samples = &part,
                              .inputs = {"head.dlogp", "head.dentropy", "head.logits"}));
    INVAR_TRY(INVAR_CALL(&pass->caller, LINEAR_DW, linear_dw, .dw = head_gradient(pass, grads),
                         .dy = d_logits, .x = invar_tensor_rows(&h->norm, p->first, p->rows),
                         .units = part));
    return invar_caller_run(&pass->caller, INVAR_OP_LINEAR_DX, &dx);
}

static invar_status norm_back(invar_pass *pass, const invar_segments *units, invar_grads *grads)
{
    invar_head_acts *h = &pass->tail;

    INVAR_TRY(INVAR_SHOW_BACK(pass, -1, "head.dnorm", LINEAR_DX, &h->d_norm, .samples = units,
                              .inputs = {"head.dlogits"}));
    INVAR_TRY(invar_block_norm_backward(pass, &h->d_x, &h->d_norm, &h->x, pass->model->norm, 1,
                                        units, grads));
    put_back(pass);
    return INVAR_SHOW_BACK(pass, -1, "head.dx", RMSNORM_BWD, &pass->temps.d,
                           .inputs = {"head.dnorm", "in"}, .stream = true);
}

/* Gradients that the loss has handed in. */
static invar_status show_given(invar_pass *pass, const char *point, const float *values,
                               const invar_segments *units)
{
    invar_tensor rows =
        invar_tensor_1d((void *)(uintptr_t)values, INVAR_DTYPE_F32, pass->tail.x.shape[0]);

    return invar_pass_show(pass, &(invar_forward_value){.point = point,
                                                        .layer = -1,
                                                        .op = "loss",
                                                        .backward = true,
                                                        .rows = &rows,
                                                        .samples = units});
}

static invar_status piece_back(invar_pass *pass, const piece *p, const float *dlogp,
                               const float *dentropy, invar_grads *grads)
{
    invar_head_acts *h = &pass->tail;
    invar_tensor logits = invar_tensor_rows(&h->logits, 0, p->rows);
    invar_logprob_bwd_args args = {
        .dlogits = invar_tensor_rows(&h->d_logits, 0, p->rows),
        .dlogp = invar_tensor_1d((void *)(dlogp + p->first), INVAR_DTYPE_F32, p->rows),
        .max = part_of(&h->max, p),
        .logsum = part_of(&h->logsum, p),
        .targets = part_of(&h->targets, p),
        .temperature = pass->head.temperature};

    if (!h->whole)
        INVAR_TRY(make_logits(&logits, pass, p));
    args.logits = logits;
    if (dentropy) {
        args.dentropy = invar_tensor_1d((void *)(dentropy + p->first), INVAR_DTYPE_F32, p->rows);
        args.entropy = part_of(&h->entropy, p);
    }
    INVAR_TRY(invar_caller_run(&pass->caller, INVAR_OP_LOGPROB_BWD, &args));
    return project_back(pass, p, &pass->head.units, grads);
}

invar_status invar_head_backward(invar_pass *pass, const float *dlogp, const float *dentropy,
                                 invar_grads *grads)
{
    if (pass->state != INVAR_PASS_LOGPROBS || !pass->options.train)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "a backward needs a training pass whose head has just run");
    INVAR_TRY(show_given(pass, "head.dlogp", dlogp, &pass->head.units));
    if (dentropy)
        INVAR_TRY(show_given(pass, "head.dentropy", dentropy, &pass->head.units));
    for (int64_t unit = 0; unit < pass->head.units.count;) {
        piece p = next_piece(pass, unit);
        INVAR_TRY(piece_back(pass, &p, dlogp, dentropy, grads));
        unit += p.units;
    }
    pass->state = INVAR_PASS_EMPTY;
    return norm_back(pass, &pass->head.units, grads);
}

invar_status invar_head_backward_values(invar_pass *pass, const float *dvalue,
                                        const invar_segments *units, invar_grads *grads)
{
    invar_head_acts *h = &pass->tail;
    piece all = {0, h->x.shape[0], 0, units->count};
    int64_t rows = all.rows;

    if (pass->state != INVAR_PASS_LOGITS || !pass->options.train || pass->model->head->rows != 1)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "a backward of values needs a training pass of a critic");
    // the units were not known to the forward
    INVAR_TRY(show_norm(pass, units));
    INVAR_TRY(INVAR_SHOW(pass, -1, "head.logits", LINEAR_FWD, &h->logits, .samples = units,
                         .inputs = {"head.norm"}));
    INVAR_TRY(show_given(pass, "head.dlogp", dvalue, units));
    for (int64_t i = 0; i < rows; i++)
        if (h->d_logits.dtype == INVAR_DTYPE_F32)
            ((float *)h->d_logits.data)[i] = dvalue[i];
        else
            ((uint16_t *)h->d_logits.data)[i] = invar_bf16_from_f32(dvalue[i]);
    INVAR_TRY(project_back(pass, &all, units, grads));
    pass->state = INVAR_PASS_EMPTY;
    return norm_back(pass, units, grads);
}
