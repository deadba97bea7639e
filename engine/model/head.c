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

static invar_tensor i32_of(const int32_t *values, int64_t count)
{
    return invar_tensor_1d((void *)(uintptr_t)values, INVAR_DTYPE_I32, count);
}

static invar_tensor f32_of(const float *values, int64_t count)
{
    return invar_tensor_1d((void *)(uintptr_t)values, INVAR_DTYPE_F32, count);
}

static invar_status note_rows(invar_pass *pass, const int64_t *row, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (row[i] < (i ? row[i - 1] + 1 : 0) || row[i] >= pass->rows.count)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "row %" PRId64 " of the head is %" PRId64
                              "; rows ascend and are below %" PRId64,
                              i, row[i], pass->rows.count);
        pass->tail.row[i] = (int32_t)row[i];
    }
    return INVAR_OK;
}

static invar_status choose(invar_pass *pass)
{
    invar_head_acts *h = &pass->tail;

    return INVAR_CALL(&pass->caller, EMBEDDING_FWD, embedding_fwd, .out = h->x,
                      .table = pass->x[pass->model->spec.layers],
                      .ids = i32_of(pass->head_given.row, h->x.shape[0]));
}

/* Where each of the rows is among the chosen; the row of zeros for the others. */
static void note_way_back(invar_pass *pass)
{
    invar_head_acts *h = &pass->tail;
    int32_t chosen = (int32_t)h->x.shape[0];

    for (int64_t i = 0; i < pass->rows.count; i++)
        h->back[i] = chosen;
    for (int32_t i = 0; i < chosen; i++)
        h->back[h->row[i]] = i;
}

/* The gradient at the last layer's output: zero for rows that were not chosen. */
static invar_status put_back(invar_pass *pass)
{
    invar_head_acts *h = &pass->tail;
    int64_t chosen = h->x.shape[0];
    invar_tensor zeros = invar_tensor_rows(&h->d_x, chosen, 1);
    size_t bytes = (size_t)zeros.shape[1] * (size_t)invar_dtype_bits(zeros.dtype) / 8;

    INVAR_TRY(invar_device_zero(&pass->caller.dev, zeros.data, bytes));
    return INVAR_CALL(&pass->caller, EMBEDDING_FWD, embedding_fwd, .out = pass->temps.d,
                      .table = h->d_x, .ids = i32_of(pass->head_given.back, pass->rows.count));
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Rows [first, first + rows) of the head: whole units [unit, unit + units). */
typedef struct piece {
    int64_t number; /* pieces before it */
    int64_t first, rows, unit, units;
} piece;

/* Units as the host and as ops read them. */
typedef struct both {
    invar_segments host, ops;
} both;

/*
 * Goes on to the next piece, from a zeroed one to the first: as many whole units as the limit
 * allows, at least one. False after the last.
 */
static bool next_piece(piece *p, const invar_pass *pass)
{
    const invar_segments *u = &pass->head.units;
    int64_t unit = p->unit + p->units;

    if (unit == u->count)
        return false;
    *p = (piece){p->number + (p->units > 0), u->start[unit], 0, unit, 0};
    do {
        p->units++;
        p->rows = u->start[unit + p->units] - p->first;
    } while (unit + p->units < u->count &&
             (pass->options.head_rows == 0 ||
              u->start[unit + p->units + 1] - p->first <= pass->options.head_rows));
    return true;
}

static int64_t largest_piece(const invar_pass *pass)
{
    int64_t most = 0;

    for (piece p = {0}; next_piece(&p, pass);)
        most = p.rows > most ? p.rows : most;
    return most;
}

static invar_tensor part_of(const invar_tensor *vector, const piece *p)
{
    return invar_tensor_1d((char *)vector->data + (size_t)p->first * 4, vector->dtype, p->rows);
}

/* Where the units of a piece begin in the list of all pieces. */
static int64_t part_at(const piece *p)
{
    return p->unit + p->number;
}

/* The units of every piece, counted from its first row. How many numbers. */
static int64_t note_parts(invar_pass *pass)
{
    invar_head_acts *h = &pass->tail;
    int64_t count = 0;

    INVAR_CHECK(pass->head.units.count <= h->x.shape[0]); // a unit has a row at least
    for (piece p = {0}; next_piece(&p, pass);)
        for (int64_t i = 0; i <= p.units; i++)
            h->parts[count++] = pass->head.units.start[p.unit + i] - p.first;
    return count;
}

static both units_of(const invar_pass *pass, const piece *p)
{
    return (both){{pass->tail.parts + part_at(p), p->units},
                  {pass->head_given.parts + part_at(p), p->units}};
}

static both all_units(const invar_pass *pass, const invar_segments *units)
{
    return (both){*units, {pass->head_given.units, units->count}};
}

static invar_tensor targets_of(const invar_pass *pass, const piece *p)
{
    return i32_of(pass->head_given.targets + p->first, p->rows);
}

static invar_status make_logits(invar_tensor *out, invar_pass *pass, const piece *p)
{
    invar_head_acts *h = &pass->tail;
    invar_tensor norm = invar_tensor_rows(&h->norm, p->first, p->rows);

    *out = invar_tensor_rows(&h->logits, 0, p->rows);
    return invar_block_linear(pass, out, &norm, pass->model->head, NULL, NULL);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* `parts` is how many numbers say where the units of pieces begin. */
static invar_status send_head(invar_pass *pass, int64_t parts)
{
    const invar_head_rows *head = &pass->head;
    invar_head_given *g = &pass->head_given;
    size_t rows = (size_t)head->count;
    const invar_staged arrays[] = {
        {(const void **)&g->row, rows * sizeof *g->row},
        {(const void **)&g->targets, rows * sizeof *g->targets},
        {(const void **)&g->units, (size_t)(head->units.count + 1) * sizeof *g->units},
        {(const void **)&g->parts, (size_t)parts * sizeof *g->parts},
    };

    *g = (invar_head_given){.row = pass->tail.row,
                            .targets = head->targets,
                            .units = head->units.start,
                            .parts = pass->tail.parts};
    return invar_staging_send(&pass->head_staging, &pass->caller.dev, arrays,
                              sizeof arrays / sizeof *arrays);
}

static invar_status begin(invar_pass *pass, int64_t piece_rows)
{
    const invar_head_rows *head = &pass->head;

    if (pass->state == INVAR_PASS_EMPTY)
        return INVAR_FAIL(INVAR_E_STATE, 0, "the head was asked before the layers ran");
    pass->state = INVAR_PASS_RUN; // what an earlier head left is overwritten
    INVAR_TRY(invar_pass_lay_out_head(pass, head->count, piece_rows));
    INVAR_TRY(note_rows(pass, head->row, head->count));
    INVAR_TRY(send_head(pass, note_parts(pass)));
    INVAR_TRY(choose(pass));
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
    invar_segments units = units_of(pass, p).host;
    invar_tensor none = {0}, logits;

    INVAR_TRY(make_logits(&logits, pass, p));
    INVAR_TRY(INVAR_SHOW(pass, -1, "head.logits", LINEAR_FWD, &logits, .samples = &units,
                         .inputs = {"head.norm"}));
    return INVAR_CALL(&pass->caller, LOGPROB_FWD, logprob_fwd, .logp = part_of(&h->logp, p),
                      .entropy = entropy ? part_of(&h->entropy, p) : none,
                      .max = part_of(&h->max, p), .logsum = part_of(&h->logsum, p),
                      .logits = logits, .targets = targets_of(pass, p),
                      .temperature = pass->head.temperature);
}

/* In one go: a device is waited for once. */
static invar_status fetch_results(invar_pass *pass, float *logp_out, float *entropy_out)
{
    const invar_head_acts *h = &pass->tail;
    size_t count = (size_t)pass->head.count, bytes = count * sizeof *logp_out;

    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(
        invar_caller_get(&pass->caller, h->fetched, h->logp.data, entropy_out ? 2 * bytes : bytes));
    memcpy(logp_out, h->fetched, bytes);
    if (entropy_out)
        memcpy(entropy_out, h->fetched + count, bytes);
    return INVAR_OK;
}

invar_status invar_pass_head(invar_pass *pass, const invar_head_rows *head, float *logp_out,
                             float *entropy_out)
{
    pass->head = *head;
    INVAR_TRY(begin(pass, largest_piece(pass)));
    INVAR_TRY(show_norm(pass, &head->units));
    for (piece p = {0}; next_piece(&p, pass);)
        INVAR_TRY(log_probabilities(pass, &p, true));
    INVAR_TRY(fetch_results(pass, logp_out, entropy_out));
    pass->state = INVAR_PASS_LOGPROBS;
    return INVAR_OK;
}

invar_status invar_pass_logits(invar_tensor *out, invar_pass *pass, const int64_t *row,
                               int64_t count)
{
    piece whole = {.rows = count};

    pass->head = (invar_head_rows){.count = count, .row = row};
    INVAR_TRY(begin(pass, count));
    INVAR_TRY(make_logits(out, pass, &whole));
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

/* Where no piece is there to write it. */
static invar_status zero_head_gradient(invar_pass *pass, invar_grads *grads)
{
    invar_tensor dw = head_gradient(pass, grads);

    return invar_device_zero(&pass->caller.dev, dw.data,
                             (size_t)(dw.shape[0] * dw.row_stride) * sizeof(float));
}

/* From d_logits of a piece to d_norm of its rows, and the head's gradient. */
static invar_status project_back(invar_pass *pass, const piece *p, const both *units,
                                 invar_grads *grads)
{
    invar_head_acts *h = &pass->tail;
    invar_tensor d_logits = invar_tensor_rows(&h->d_logits, 0, p->rows);
    invar_linear_dx_args dx = {
        .dx = invar_tensor_rows(&h->d_norm, p->first, p->rows), .n_parts = 1, .k_shards = 1};

    dx.parts[0] = (invar_linear_part){d_logits, pass->model->head->weight};
    INVAR_TRY(INVAR_SHOW_BACK(pass, -1, "head.dlogits", LOGPROB_BWD, &d_logits,
                              .samples = &units->host,
                              .inputs = {"head.dlogp", "head.dentropy", "head.logits"}));
    INVAR_TRY(INVAR_CALL(&pass->caller, LINEAR_DW, linear_dw, .dw = head_gradient(pass, grads),
                         .dy = d_logits, .x = invar_tensor_rows(&h->norm, p->first, p->rows),
                         .units = units->ops, .fresh = grads->fresh && p->number == 0));
    return invar_caller_run(&pass->caller, INVAR_OP_LINEAR_DX, &dx);
}

static invar_status norm_back(invar_pass *pass, const both *units, invar_grads *grads)
{
    invar_head_acts *h = &pass->tail;
    invar_tensor d_x = invar_tensor_rows(&h->d_x, 0, h->x.shape[0]);

    INVAR_TRY(INVAR_SHOW_BACK(pass, -1, "head.dnorm", LINEAR_DX, &h->d_norm,
                              .samples = &units->host, .inputs = {"head.dlogits"}));
    INVAR_TRY(invar_block_norm_backward(pass, &d_x, &h->d_norm, &h->x, pass->model->norm, 1,
                                        &units->ops, grads));
    INVAR_TRY(put_back(pass));
    return INVAR_SHOW_BACK(pass, -1, "head.dx", RMSNORM_BWD, &pass->temps.d,
                           .inputs = {"head.dnorm", "in"}, .stream = true);
}

/* What a backward is given: with values `dentropy` is NULL, and the units are new. */
static invar_status send_back(invar_pass *pass, const float *dlogp, const float *dentropy,
                              const invar_segments *units)
{
    invar_head_given *g = &pass->head_given;
    size_t rows = (size_t)pass->tail.x.shape[0];
    const invar_staged arrays[] = {
        {(const void **)&g->dlogp, rows * sizeof *dlogp},
        {(const void **)&g->dentropy, rows * sizeof *dentropy},
        {(const void **)&g->back, (size_t)pass->rows.count * sizeof *g->back},
        {(const void **)&g->units, (size_t)(units->count + 1) * sizeof *units->start},
    };

    note_way_back(pass);
    g->dlogp = dlogp;
    g->dentropy = dentropy;
    g->back = pass->tail.back;
    g->units = units->start;
    return invar_staging_send(&pass->back_staging, &pass->caller.dev, arrays,
                              sizeof arrays / sizeof *arrays);
}

/* Gradients that the loss has handed in. */
static invar_status show_given(invar_pass *pass, const char *point, const float *values,
                               const invar_segments *units)
{
    invar_tensor rows = f32_of(values, pass->tail.x.shape[0]);

    return invar_pass_show(pass, &(invar_forward_value){.point = point,
                                                        .layer = -1,
                                                        .op = "loss",
                                                        .backward = true,
                                                        .rows = &rows,
                                                        .samples = units});
}

static invar_status piece_back(invar_pass *pass, const piece *p, invar_grads *grads)
{
    const invar_head_given *given = &pass->head_given;
    invar_head_acts *h = &pass->tail;
    both units = units_of(pass, p);
    invar_tensor logits = invar_tensor_rows(&h->logits, 0, p->rows);
    invar_logprob_bwd_args args = {.dlogits = invar_tensor_rows(&h->d_logits, 0, p->rows),
                                   .dlogp = f32_of(given->dlogp + p->first, p->rows),
                                   .max = part_of(&h->max, p),
                                   .logsum = part_of(&h->logsum, p),
                                   .targets = targets_of(pass, p),
                                   .temperature = pass->head.temperature};

    if (!h->whole)
        INVAR_TRY(make_logits(&logits, pass, p));
    args.logits = logits;
    if (given->dentropy) {
        args.dentropy = f32_of(given->dentropy + p->first, p->rows);
        args.entropy = part_of(&h->entropy, p);
    }
    INVAR_TRY(invar_caller_run(&pass->caller, INVAR_OP_LOGPROB_BWD, &args));
    return project_back(pass, p, &units, grads);
}

invar_status invar_head_backward(invar_pass *pass, const float *dlogp, const float *dentropy,
                                 invar_grads *grads)
{
    both units;

    if (pass->state != INVAR_PASS_LOGPROBS || !pass->options.train)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "a backward needs a training pass whose head has just run");
    INVAR_TRY(send_back(pass, dlogp, dentropy, &pass->head.units));
    INVAR_TRY(show_given(pass, "head.dlogp", pass->head_given.dlogp, &pass->head.units));
    if (dentropy)
        INVAR_TRY(show_given(pass, "head.dentropy", pass->head_given.dentropy, &pass->head.units));
    if (grads->fresh && pass->head.units.count == 0)
        INVAR_TRY(zero_head_gradient(pass, grads));
    for (piece p = {0}; next_piece(&p, pass);)
        INVAR_TRY(piece_back(pass, &p, grads));
    pass->state = INVAR_PASS_EMPTY;
    units = all_units(pass, &pass->head.units);
    return norm_back(pass, &units, grads);
}

/* The gradient of the head's only column, rounded to storage. */
static invar_status give_values(invar_pass *pass, const float *dvalue)
{
    const invar_tensor *to = &pass->tail.d_logits;
    size_t rows = (size_t)to->shape[0];
    uint16_t *rounded = pass->tail.values;

    if (to->dtype == INVAR_DTYPE_F32)
        return invar_device_put(&pass->caller.dev, to->data, dvalue, rows * sizeof *dvalue);
    for (size_t i = 0; i < rows; i++)
        rounded[i] = invar_bf16_from_f32(dvalue[i]);
    return invar_device_put(&pass->caller.dev, to->data, rounded, rows * sizeof *rounded);
}

invar_status invar_head_backward_values(invar_pass *pass, const float *dvalue,
                                        const invar_segments *units, invar_grads *grads)
{
    invar_head_acts *h = &pass->tail;
    piece whole = {.rows = h->x.shape[0], .units = units->count};
    both all;

    if (pass->state != INVAR_PASS_LOGITS || !pass->options.train || pass->model->head->rows != 1)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "a backward of values needs a training pass of a critic");
    // the units were not known to the forward
    INVAR_TRY(send_back(pass, dvalue, NULL, units));
    all = all_units(pass, units);
    INVAR_TRY(show_norm(pass, units));
    INVAR_TRY(INVAR_SHOW(pass, -1, "head.logits", LINEAR_FWD, &h->logits, .samples = units,
                         .inputs = {"head.norm"}));
    INVAR_TRY(show_given(pass, "head.dlogp", pass->head_given.dlogp, units));
    INVAR_TRY(give_values(pass, dvalue));
    INVAR_TRY(project_back(pass, &whole, &all, grads));
    pass->state = INVAR_PASS_EMPTY;
    return norm_back(pass, &all, grads);
}
