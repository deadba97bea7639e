/*
 * head.c - the end of the model: chosen rows, last norm, head, log-probabilities; and back.
 *
 * Rows without a target take no part: the last norm and the head see the chosen rows only, so the
 * units of their gradients are counted over those. Logits are the largest tensor by far; they are
 * made piece by piece, a piece being whole units, and kept for the backward only when one piece is
 * all. A second computation gives the same bits. Where ranks divide the vocabulary, each has the
 * logits of its own ids: log-probabilities come from what all know of their chunks. Only who wants
 * logits gets them whole.
 *
 * The backward is written here and not derived as that of layers is: pieces go back in the order of
 * the forward, because the units of the head's gradient are added in that order, and each makes its
 * logits again first. A walk from the end would begin with the last piece, and give other bits.
 *
 * Context-parallel ranks each have some of the chosen rows; all get all of them, and their norm. Of
 * a piece each takes a share of the rows to log-probabilities and back, so that no rank has more to
 * do because its rows are those of responses. Of the head's gradient each makes a share of the ids.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/carve.h"
#include "engine/model/pass.h"
#include "engine/program/verb/context.h"
#include "kernels-deterministic/math/bf16.h"

#include "base/invar_banned.h"

/* What points begin with that no call of a program makes. */
const invar_point invar_head_stream = {.name = "head.dx", .layer = -1};
static const invar_point given_dlogp = {.name = "head.dlogp", .layer = -1};
static const invar_point given_dentropy = {.name = "head.dentropy", .layer = -1};

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Rows [first, first + rows) of the head: whole units [unit, unit + units). */
typedef struct piece {
    int64_t number; /* pieces before it */
    int64_t first, rows, unit, units;
    bool shared;            /* context-parallel ranks have a share of its rows each */
    invar_layout_share own; /* this rank's, counted from the first */
} piece;

static bool divides_rows(const invar_pass *pass)
{
    return pass->division.context.size > 1;
}

static void share_rows(piece *p, const invar_pass *pass)
{
    p->shared = divides_rows(pass);
    p->own = p->shared ? invar_layout_share_of(p->rows, pass->division.context.size,
                                               pass->division.context.rank)
                       : (invar_layout_share){0, p->rows};
}

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
    *p = (piece){.number = p->number + (p->units > 0), .first = u->start[unit], .unit = unit};
    do {
        p->units++;
        p->rows = u->start[unit + p->units] - p->first;
    } while (unit + p->units < u->count &&
             (pass->options.head_rows == 0 ||
              u->start[unit + p->units + 1] - p->first <= pass->options.head_rows));
    share_rows(p, pass);
    return true;
}

/* Rows of logits; the first rank has most. */
static int64_t largest_piece(const invar_pass *pass)
{
    int64_t most = 0;

    for (piece p = {0}; next_piece(&p, pass);)
        most = p.rows > most ? p.rows : most;
    return divides_rows(pass) ? invar_layout_share_of(most, pass->division.context.size, 0).count
                              : most;
}

static int64_t count_pieces(const invar_pass *pass)
{
    int64_t count = 0;

    for (piece p = {0}; next_piece(&p, pass);)
        count++;
    return count;
}

/* Where the units of a piece begin in the list of all pieces. */
static int64_t part_at(const piece *p)
{
    return p->unit + p->number;
}

/* ---- arrays of the host ---------------------------------------------------------------------- */

static void carve_arrays(invar_pass *pass, invar_carver *c)
{
    invar_head_arrays *a = &pass->arrays;
    size_t rows = (size_t)pass->head.count;

    a->row = invar_carve(c, rows * sizeof *a->row);
    a->parts = invar_carve(c, 2 * (rows + 1) * sizeof *a->parts);
    a->fetched = invar_carve(c, 2 * rows * sizeof *a->fetched);
    // a piece has a row at least, but the one of values
    a->samples = invar_carve(c, (rows + 3) * sizeof *a->samples);
    a->there = invar_carve(c, (rows + 3) * sizeof *a->there);
    if (!pass->options.train)
        return;
    a->back = invar_carve(c, (size_t)pass->rows.count * sizeof *a->back);
    a->values = invar_carve(c, rows * sizeof(float));
}

static invar_status make_arrays(invar_pass *pass)
{
    invar_carver c = {NULL, 0};

    carve_arrays(pass, &c);
    if (c.used > pass->array_bytes) {
        size_t room = c.used + c.used / 8;
        invar_free(pass->array_memory);
        pass->array_memory = NULL;
        pass->array_bytes = 0;
        INVAR_TRY(invar_alloc(&pass->array_memory, room, 1, "the list of the head's rows"));
        pass->array_bytes = room;
    }
    c = (invar_carver){pass->array_memory, 0};
    carve_arrays(pass, &c);
    return INVAR_OK;
}

/* Of the chosen rows, where those of each context-parallel rank begin. */
static void note_chosen(invar_pass *pass, const int64_t *row, int64_t count)
{
    int64_t next = 0;

    for (int32_t r = 0; r <= pass->division.context.size; r++) {
        while (next < count && row[next] < pass->division.context.row[r])
            next++;
        pass->chosen[r] = next;
    }
}

/* Chosen rows are counted from the first of this rank's. */
static invar_status note_rows(invar_pass *pass, const int64_t *row, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (row[i] < (i ? row[i - 1] + 1 : 0) || row[i] >= pass->rows.count)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "row %" PRId64 " of the head is %" PRId64
                              "; rows ascend and are below %" PRId64,
                              i, row[i], pass->rows.count);
        pass->arrays.row[i] = (int32_t)(row[i] - invar_row_first(&pass->division.context));
    }
    note_chosen(pass, row, count);
    return INVAR_OK;
}

/* Of the chosen rows, this rank's. */
static invar_layout_share chosen_rows(const invar_pass *pass)
{
    const int64_t *start = &pass->chosen[pass->division.context.rank];

    return (invar_layout_share){start[0], start[1] - start[0]};
}

/* The units of every piece, counted from its first row. How many numbers. */
static int64_t note_parts(invar_pass *pass)
{
    invar_head_arrays *a = &pass->arrays;
    int64_t count = 0, pieces = 0;

    INVAR_CHECK(pass->head.units.count <= pass->head.count); // a unit has a row at least
    a->samples[pieces++] = pass->head.units;
    for (piece p = {0}; next_piece(&p, pass);) {
        a->samples[pieces++] = (invar_segments){a->parts + count, p.units};
        for (int64_t i = 0; i <= p.units; i++)
            a->parts[count++] = pass->head.units.start[p.unit + i] - p.first;
    }
    a->samples[pieces] = pass->rows.samples;
    return count;
}

/* Where ops read the lists of samples, once these have been sent. */
static void note_there(invar_pass *pass)
{
    const int64_t *parts = pass->given[INVAR_GIVEN_PARTS];
    invar_head_arrays *a = &pass->arrays;

    a->there[0] = (invar_segments){pass->given[INVAR_GIVEN_HEAD_UNITS], pass->head.units.count};
    for (piece p = {0}; next_piece(&p, pass) && p.number < pass->acts.pieces;)
        a->there[1 + p.number] = (invar_segments){parts + part_at(&p), p.units};
    a->there[1 + pass->acts.pieces] = pass->samples;
}

/* Where each of this rank's rows is among the chosen; the row of zeros for the others. */
static void note_way_back(invar_pass *pass)
{
    invar_head_arrays *a = &pass->arrays;
    invar_layout_share own = chosen_rows(pass);

    for (int64_t i = 0; i < invar_row_count(&pass->division.context); i++)
        a->back[i] = (int32_t)pass->head.count;
    for (int64_t i = own.first; i < own.first + own.count; i++)
        a->back[a->row[i]] = (int32_t)i;
}

/* ---- its program ----------------------------------------------------------------------------- */

static invar_tensor array(invar_builder *b, invar_given_memory which, invar_dtype dtype,
                          int64_t first, int64_t count)
{
    invar_tensor t = invar_build_array(b, which, dtype, count);

    t.data = (char *)t.data + (size_t)first * 4;
    return t;
}

/* This rank's rows of a piece. */
static invar_tensor part_of(const invar_tensor *vector, const piece *p)
{
    return invar_tensor_1d((char *)vector->data + (size_t)(p->first + p->own.first) * 4,
                           vector->dtype, p->own.count);
}

static invar_tensor rows_of(const invar_tensor *t, const piece *p)
{
    return invar_tensor_rows(t, p->first + p->own.first, p->own.count);
}

static invar_tensor array_of(invar_builder *b, invar_given_memory which, invar_dtype dtype,
                             const piece *p)
{
    return array(b, which, dtype, p->first + p->own.first, p->own.count);
}

/* All rows of a piece, after the call that made this rank's. */
static void gather_piece(invar_builder *b, const invar_tensor *t, const piece *p)
{
    invar_tensor table = t->rank == 1 ? invar_tensor_2d(t->data, t->dtype, t->shape[0], 1) : *t;

    if (p->shared)
        invar_program_move(b->program,
                           &(invar_move){.kind = INVAR_MOVE_SHARES,
                                         .axis = INVAR_MOVE_CONTEXT,
                                         .whole = invar_tensor_rows(&table, p->first, p->rows)});
}

static invar_weight head_weight(invar_builder *b, const invar_model *model)
{
    invar_weight w = invar_build_weight(b, model->head);

    if (invar_tensor_present(&model->tied_grad)) {
        w.dw = model->tied_grad;
        w.dw.data =
            (char *)invar_program_given(b->program, INVAR_GIVEN_GRADS) + (uintptr_t)w.dw.data;
    }
    return w;
}

static void show(invar_builder *b, const char *name, const invar_tensor *rows, int64_t samples,
                 bool backward)
{
    invar_program_point(b->program, &(invar_point){.name = name,
                                                   .backward = backward,
                                                   .layer = -1,
                                                   .samples = (int32_t)samples,
                                                   .rows = *rows});
}

/* Columns of logits beside a rank's own: where the targets of other ranks point. */
#define SPARE_COLUMNS 8

/* Logits of a rank's own ids, and with `values` of all; else sums of chunks, its own and of all. */
static void make_divided_rooms(invar_pass *pass, invar_builder *b, int64_t rows, bool values)
{
    const invar_param *head = pass->model->head;
    int64_t sums = invar_logprob_sums_of(head->rows, b->tensors);
    // whole chunks, whatever the vocabulary ends with
    int64_t own = invar_vocab_part_chunks(head, &pass->model->part) * INVAR_VOCAB_CHUNK;
    int64_t all = invar_vocab_chunks(head) * INVAR_VOCAB_CHUNK;
    invar_head_acts *h = &pass->acts;

    h->own = invar_program_room(b->program, INVAR_DTYPE_F32, rows, own);
    h->parts =
        invar_program_room(b->program, INVAR_DTYPE_F32, b->tensors * rows, values ? own : sums);
    if (values) {
        h->logits = invar_program_room(b->program, INVAR_DTYPE_F32, rows, all);
        h->logits = invar_tensor_columns(&h->logits, 0, head->rows);
    } else {
        h->sums = invar_program_room(b->program, INVAR_DTYPE_F32, rows, sums);
    }
    if (pass->options.train)
        h->d_logits =
            invar_program_room(b->program, b->storage, rows, head->own.rows + SPARE_COLUMNS);
}

static void make_logit_rooms(invar_pass *pass, invar_builder *b, int64_t rows)
{
    int64_t width = pass->model->head->rows;
    invar_head_acts *h = &pass->acts;

    h->logits = invar_program_room(b->program, INVAR_DTYPE_F32, rows, width);
    if (pass->options.train)
        h->d_logits = b->storage == INVAR_DTYPE_F32
                          ? h->logits
                          : invar_program_room(b->program, b->storage, rows, width);
}

static void make_rooms(invar_pass *pass, invar_builder *b, bool values)
{
    int64_t rows = pass->head.count, piece_rows = values ? rows : largest_piece(pass);
    int64_t hidden = pass->model->spec.hidden;
    invar_program *p = b->program;
    invar_head_acts *h = &pass->acts;
    invar_tensor both;

    memset(h, 0, sizeof *h);
    h->x = invar_program_room(p, b->storage, rows, hidden);
    h->norm = invar_program_room(p, b->storage, rows, hidden);
    if (invar_vocab_divided(pass->model->head))
        make_divided_rooms(pass, b, piece_rows, values);
    else
        make_logit_rooms(pass, b, piece_rows);
    both = invar_program_room(p, INVAR_DTYPE_F32, 2 * rows, 0); // they are fetched together
    h->logp = invar_tensor_1d(both.data, INVAR_DTYPE_F32, rows);
    h->entropy = invar_tensor_1d((char *)both.data + rows * 4, INVAR_DTYPE_F32, rows);
    h->max = invar_program_room(p, INVAR_DTYPE_F32, rows, 0);
    h->logsum = invar_program_room(p, INVAR_DTYPE_F32, rows, 0);
    if (!pass->options.train)
        return;
    h->d_norm = invar_program_room(p, b->storage, rows, hidden);
    h->d_x = invar_program_room(p, b->storage, rows + 1, hidden);
}

static void choose(invar_pass *pass, invar_builder *b, const invar_weight *norm)
{
    invar_head_acts *h = &pass->acts;
    invar_layout_share own = chosen_rows(pass);
    invar_tensor stream =
        invar_tensor_2d(invar_program_given(b->program, INVAR_GIVEN_STREAM), b->storage,
                        invar_row_count(&pass->division.context), pass->model->spec.hidden);

    pass->stream = (invar_point){.name = "mlp", .layer = pass->model->spec.layers - 1};
    invar_program_source(b->program, stream.data, &pass->stream);
    INVAR_APPEND(b->program, -1, EMBEDDING_FWD, embedding_fwd,
                 .out = invar_tensor_rows(&h->x, own.first, own.count), .table = stream,
                 .ids = array(b, INVAR_GIVEN_ROWS, INVAR_DTYPE_I32, own.first, own.count));
    if (divides_rows(pass))
        invar_program_move(b->program, &(invar_move){.kind = INVAR_MOVE_SHARES,
                                                     .axis = INVAR_MOVE_CONTEXT,
                                                     .whole = h->x,
                                                     .start = pass->chosen});
    INVAR_APPEND(b->program, -1, RMSNORM_FWD, rmsnorm_fwd, .y = invar_build_heads(&h->norm, 1),
                 .x = invar_build_heads(&h->x, 1), .weight = norm->w, .eps = b->norm_eps);
}

/* This rank's logits of a piece; with one rank all of them. */
static invar_tensor own_logits(const invar_pass *pass, const piece *p, int64_t spare)
{
    const invar_head_acts *h = &pass->acts;
    invar_tensor own;

    if (!invar_tensor_present(&h->own))
        return invar_tensor_rows(&h->logits, 0, p->own.count);
    own = invar_tensor_columns(&h->own, 0, pass->model->head->own.rows + spare);
    return invar_tensor_rows(&own, 0, p->own.count);
}

static void make_own_logits(invar_pass *pass, invar_builder *b, const invar_weight *w,
                            const piece *p)
{
    INVAR_APPEND(b->program, -1, LINEAR_FWD, linear_fwd, .y = own_logits(pass, p, 0),
                 .x = rows_of(&pass->acts.norm, p), .w = w->w, .k_shards = 1);
}

/* Rows of f32 as rows of chunks. */
static invar_tensor as_chunks(const invar_tensor *t, int64_t rows)
{
    return invar_tensor_2d(t->data, INVAR_DTYPE_F32, rows * (t->row_stride / INVAR_VOCAB_CHUNK),
                           INVAR_VOCAB_CHUNK);
}

/* All ids' logits of all rows. */
static void make_logits(invar_pass *pass, invar_builder *b, const invar_weight *w, const piece *p)
{
    invar_head_acts *h = &pass->acts;
    invar_tensor out;

    make_own_logits(pass, b, w, p);
    if (!invar_tensor_present(&h->own))
        return;
    out = as_chunks(&h->logits, p->own.count);
    invar_program_move(b->program,
                       &(invar_move){.kind = INVAR_MOVE_PARTS, .whole = h->parts, .own = h->own});
    INVAR_APPEND(b->program, -1, EMBEDDING_FWD, embedding_fwd, .out = out,
                 .table = as_chunks(&h->parts, h->parts.shape[0]),
                 .ids = array(b, INVAR_GIVEN_CHUNKS, INVAR_DTYPE_I32, 0, out.shape[0]));
}

/* The log-probabilities of a piece, from what all ranks know of their chunks. */
static void join_logprobs(invar_pass *pass, invar_builder *b, const invar_tensor *own,
                          const piece *p)
{
    invar_head_acts *h = &pass->acts;
    invar_tensor sums = invar_tensor_rows(&h->sums, 0, p->own.count);
    invar_tensor parts = invar_tensor_rows(&h->parts, 0, b->tensors * p->own.count);

    INVAR_APPEND(b->program, -1, LOGPROB_SUM, logprob_sum, .sums = sums, .logits = *own,
                 .targets = array_of(b, INVAR_GIVEN_OWN_TARGETS, INVAR_DTYPE_I32, p),
                 .temperature = pass->head.temperature);
    invar_program_move(b->program,
                       &(invar_move){.kind = INVAR_MOVE_PARTS, .whole = parts, .own = sums});
    INVAR_APPEND(b->program, -1, LOGPROB_JOIN, logprob_join, .logp = part_of(&h->logp, p),
                 .entropy = part_of(&h->entropy, p), .max = part_of(&h->max, p),
                 .logsum = part_of(&h->logsum, p), .sums = parts,
                 .targets = array_of(b, INVAR_GIVEN_TARGETS, INVAR_DTYPE_I32, p),
                 .vocabulary = pass->model->head->rows, .parts = b->tensors,
                 .temperature = pass->head.temperature);
}

static void score_piece(invar_pass *pass, invar_builder *b, const invar_weight *w, const piece *p)
{
    invar_head_acts *h = &pass->acts;
    invar_tensor logits = own_logits(pass, p, 0);

    make_own_logits(pass, b, w, p);
    show(b, "head.logits", &logits, 1 + p->number, false);
    if (invar_tensor_present(&h->own)) {
        join_logprobs(pass, b, &logits, p);
        return;
    }
    INVAR_APPEND(b->program, -1, LOGPROB_FWD, logprob_fwd, .logp = part_of(&h->logp, p),
                 .entropy = part_of(&h->entropy, p), .max = part_of(&h->max, p),
                 .logsum = part_of(&h->logsum, p), .logits = logits,
                 .targets = array_of(b, INVAR_GIVEN_TARGETS, INVAR_DTYPE_I32, p),
                 .temperature = pass->head.temperature);
}

static void piece_forward(invar_pass *pass, invar_builder *b, const invar_weight *w, const piece *p)
{
    if (p->own.count > 0)
        score_piece(pass, b, w, p);
    gather_piece(b, &pass->acts.logp, p);
    gather_piece(b, &pass->acts.entropy, p);
}

/* From d_logits of a piece to d_norm of its rows, and the head's gradient. */
static void project_back(invar_pass *pass, invar_builder *b, const invar_weight *w, const piece *p,
                         const invar_segments *units)
{
    invar_head_acts *h = &pass->acts;
    invar_tensor columns = invar_tensor_columns(&h->d_logits, 0, w->w.shape[0]);
    invar_tensor d_logits = invar_tensor_rows(&columns, 0, p->own.count), dy = d_logits;
    invar_tensor d_norm = rows_of(&h->d_norm, p), dw = w->dw;

    if (p->shared) {
        invar_layout_share ids = invar_context_columns(b, dw.shape[0]);
        dy = invar_context_spread(b, &d_logits, p->rows, NULL);
        dw = invar_tensor_rows(&dw, ids.first, ids.count);
    }
    INVAR_APPEND(b->program, -1, LINEAR_DW, linear_dw, .dw = dw, .dy = dy,
                 .x = invar_tensor_rows(&h->norm, p->first, p->rows), .units = *units);
    if (p->number == 0)
        invar_program_fresh(b->program, offsetof(invar_linear_dw_args, fresh));
    if (p->own.count > 0)
        invar_build_input_gradient(b, &d_norm, &d_logits, w);
    gather_piece(b, &h->d_norm, p);
}

/* d_logits of this rank's rows of a piece. */
static void score_back(invar_pass *pass, invar_builder *b, const invar_weight *w, const piece *p,
                       bool entropy)
{
    invar_head_acts *h = &pass->acts;
    invar_logprob_bwd_args args = {
        .dlogits = invar_tensor_rows(&h->d_logits, 0, p->own.count),
        .dlogp = array_of(b, INVAR_GIVEN_DLOGP, INVAR_DTYPE_F32, p),
        .max = part_of(&h->max, p),
        .logsum = part_of(&h->logsum, p),
        .logits = own_logits(pass, p, SPARE_COLUMNS),
        .targets = array_of(
            b, invar_tensor_present(&h->own) ? INVAR_GIVEN_OWN_TARGETS : INVAR_GIVEN_TARGETS,
            INVAR_DTYPE_I32, p),
        .temperature = pass->head.temperature};

    // what a point is computed from does not depend on the number of pieces
    if (h->pieces > 1) {
        make_own_logits(pass, b, w, p);
        invar_program_point(b->program, &(invar_point){.name = "head.logits",
                                                       .layer = -1,
                                                       .again = true,
                                                       .rows = own_logits(pass, p, 0)});
    }
    if (entropy) {
        args.dentropy = array_of(b, INVAR_GIVEN_DENTROPY, INVAR_DTYPE_F32, p);
        args.entropy = part_of(&h->entropy, p);
    }
    invar_program_call(b->program, INVAR_OP_LOGPROB_BWD, &args, -1);
    show(b, "head.dlogits", &args.dlogits, 1 + p->number, true);
}

static void piece_back(invar_pass *pass, invar_builder *b, const invar_weight *w, const piece *p,
                       bool entropy)
{
    invar_segments units = {
        (int64_t *)invar_program_given(b->program, INVAR_GIVEN_PARTS) + part_at(p), p->units};

    if (p->own.count > 0)
        score_back(pass, b, w, p, entropy);
    project_back(pass, b, w, p, &units);
}

/* The gradient at the last layer's output: zero for rows that were not chosen. */
static void norm_back(invar_pass *pass, invar_builder *b, const invar_weight *norm)
{
    invar_head_acts *h = &pass->acts;
    invar_layout_share own = invar_pass_own_rows(pass);
    invar_tensor d_x = invar_tensor_rows(&h->d_x, 0, h->x.shape[0]);
    invar_tensor stream = invar_tensor_2d(invar_program_given(b->program, INVAR_GIVEN_D_STREAM),
                                          b->storage, own.count, h->d_x.shape[1]);

    if (h->pieces > 0)
        show(b, "head.dnorm", &h->d_norm, 0, true);
    INVAR_APPEND(b->program, -1, RMSNORM_BWD, rmsnorm_bwd, .dx = invar_build_heads(&d_x, 1),
                 .dweight = norm->dw, .dy = invar_build_heads(&h->d_norm, 1),
                 .x = invar_build_heads(&h->x, 1), .weight = norm->w, .units = b->units,
                 .eps = b->norm_eps);
    show(b, "head.drows", &d_x, 0, true);
    INVAR_APPEND(b->program, -1, EMBEDDING_FWD, embedding_fwd, .out = stream, .table = h->d_x,
                 .ids = array(b, INVAR_GIVEN_BACK, INVAR_DTYPE_I32, own.first, own.count));
    invar_program_point(b->program,
                        &(invar_point){.name = invar_head_stream.name,
                                       .backward = true,
                                       .stream = true,
                                       .layer = -1,
                                       .samples = (int32_t)(1 + h->pieces),
                                       .rows = stream,
                                       .shares = invar_row_shares(&pass->division.stream)});
}

/*
 * Segment 0: forward, to log-probabilities or to `values`, the logits. Segment 1, with a backward:
 * the row of zeros is there already, and of values d_logits.
 */
static invar_status build(invar_pass *pass, bool values, bool entropy)
{
    const invar_head_rows *head = &pass->head;
    invar_builder *b = &pass->tail.builder;
    piece whole = {.rows = head->count, .units = head->units.count, .own = {0, head->count}};
    invar_weight norm, w;

    invar_decoder_begin(b, pass->tail.program, pass->model, head->count);
    b->context = divides_rows(pass) ? &pass->division.context : NULL;
    b->units = (invar_segments){invar_program_given(b->program, INVAR_GIVEN_HEAD_UNITS),
                                head->units.count};
    invar_program_source(b->program, invar_program_given(b->program, INVAR_GIVEN_DLOGP),
                         &given_dlogp);
    invar_program_source(b->program, invar_program_given(b->program, INVAR_GIVEN_DENTROPY),
                         &given_dentropy);
    norm = invar_build_weight(b, pass->model->norm);
    w = head_weight(b, pass->model);
    make_rooms(pass, b, values);
    pass->acts.pieces = values ? 1 : count_pieces(pass);
    choose(pass, b, &norm);
    if (values) {
        if (!pass->options.train)
            show(b, "head.norm", &pass->acts.norm, 0, false);
        make_logits(pass, b, &w, &whole);
        if (!pass->options.train)
            show(b, "head.logits", &pass->acts.logits, 0, false);
        invar_program_touch(b->program, &pass->acts.logits);
    } else {
        show(b, "head.norm", &pass->acts.norm, 0, false);
        for (piece p = {0}; next_piece(&p, pass);)
            piece_forward(pass, b, &w, &p);
        invar_program_touch(b->program, &pass->acts.logp);
    }
    invar_program_end_segment(b->program);
    if (!pass->options.train)
        return invar_pass_place(pass, &pass->tail, "rows of the head");
    invar_program_touch(b->program, &pass->acts.d_x);
    if (values) {
        invar_program_touch(b->program, &pass->acts.d_logits);
        invar_program_source(b->program, pass->acts.d_logits.data, &given_dlogp);
        project_back(pass, b, &w, &whole, &b->units);
    } else {
        for (piece p = {0}; next_piece(&p, pass);)
            piece_back(pass, b, &w, &p, entropy);
    }
    norm_back(pass, b, &norm);
    invar_program_touch(b->program, &pass->acts.logp); // places do not depend on what is read
    invar_program_end_segment(b->program);
    return invar_pass_place(pass, &pass->tail, "rows of the head");
}

static invar_program_run_args how_to_run(invar_pass *pass)
{
    invar_program_run_args how = invar_pass_how(pass, &pass->tail);

    how.samples = pass->arrays.samples;
    how.there = pass->arrays.there;
    return how;
}

static invar_tensor find(invar_pass *pass, const invar_tensor *t)
{
    invar_program_run_args how = how_to_run(pass);

    return invar_program_find(pass->tail.program, t, &how);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* `parts` is how many numbers say where the units of pieces begin. */
static invar_status send_head(invar_pass *pass, int64_t parts)
{
    const invar_head_rows *head = &pass->head;
    const invar_program_run_args body = invar_pass_how(pass, &pass->body);
    const void **g = pass->given;
    size_t rows = (size_t)head->count;
    size_t divided = invar_vocab_divided(pass->model->head);
    int64_t chunks = pass->acts.logits.shape[0] * invar_vocab_chunks(pass->model->head);
    const invar_staged arrays[] = {
        {&g[INVAR_GIVEN_ROWS], rows * sizeof *pass->arrays.row},
        {&g[INVAR_GIVEN_TARGETS], rows * sizeof *head->targets},
        {&g[INVAR_GIVEN_HEAD_UNITS], (size_t)(head->units.count + 1) * sizeof(int64_t)},
        {&g[INVAR_GIVEN_PARTS], (size_t)parts * sizeof(int64_t)},
        {&g[INVAR_GIVEN_OWN_TARGETS], divided * rows * sizeof *head->targets},
        {&g[INVAR_GIVEN_CHUNKS], divided * (size_t)chunks * sizeof *pass->vocab.chunks},
    };

    if (divided)
        INVAR_TRY(invar_vocab_head(&pass->vocab, pass->model->head, &pass->model->part,
                                   head->targets, head->count, pass->acts.logits.shape[0]));
    g[INVAR_GIVEN_OWN_TARGETS] = head->targets ? pass->vocab.own_targets : NULL;
    g[INVAR_GIVEN_CHUNKS] = pass->vocab.chunks;
    g[INVAR_GIVEN_ROWS] = pass->arrays.row;
    g[INVAR_GIVEN_TARGETS] = head->targets;
    g[INVAR_GIVEN_HEAD_UNITS] = head->units.start;
    g[INVAR_GIVEN_PARTS] = pass->arrays.parts;
    g[INVAR_GIVEN_STREAM] = invar_program_find(pass->body.program, &pass->ends.all, &body).data;
    g[INVAR_GIVEN_D_STREAM] =
        invar_program_find(pass->body.program, &pass->ends.d_stream, &body).data;
    INVAR_TRY(invar_staging_send(&pass->head_staging, &pass->caller.dev, arrays,
                                 sizeof arrays / sizeof *arrays));
    note_there(pass);
    return INVAR_OK;
}

static invar_status run_head(invar_pass *pass, bool values)
{
    invar_program_run_args how;
    int64_t parts;

    if (pass->state == INVAR_PASS_EMPTY)
        return INVAR_FAIL(INVAR_E_STATE, 0, "the head was asked before the layers ran");
    pass->state = INVAR_PASS_RUN; // what an earlier head left is overwritten
    INVAR_TRY(make_arrays(pass));
    INVAR_TRY(note_rows(pass, pass->head.row, pass->head.count));
    parts = note_parts(pass);
    INVAR_TRY(build(pass, values, pass->entropy_back));
    INVAR_TRY(send_head(pass, parts));
    how = how_to_run(pass);
    return invar_program_run(pass->tail.program, 0, &how);
}

/* In one go: a device is waited for once. */
static invar_status fetch_results(invar_pass *pass, float *logp_out, float *entropy_out)
{
    const float *fetched = pass->arrays.fetched;
    size_t count = (size_t)pass->head.count, bytes = count * sizeof *logp_out;

    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(invar_caller_get(&pass->caller, pass->arrays.fetched,
                               find(pass, &pass->acts.logp).data, entropy_out ? 2 * bytes : bytes));
    memcpy(logp_out, fetched, bytes);
    if (entropy_out)
        memcpy(entropy_out, fetched + count, bytes);
    return INVAR_OK;
}

invar_status invar_pass_head(invar_pass *pass, const invar_head_rows *head, float *logp_out,
                             float *entropy_out)
{
    pass->head = *head;
    INVAR_TRY(run_head(pass, false));
    INVAR_TRY(fetch_results(pass, logp_out, entropy_out));
    pass->state = INVAR_PASS_LOGPROBS;
    return INVAR_OK;
}

invar_status invar_pass_logits(invar_tensor *out, invar_pass *pass, const int64_t *row,
                               int64_t count)
{
    pass->head = (invar_head_rows){.count = count, .row = row};
    INVAR_TRY(run_head(pass, true));
    *out = find(pass, &pass->acts.logits);
    pass->state = INVAR_PASS_LOGITS;
    return INVAR_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Where no piece is there to write it. */
static invar_status zero_head_gradient(invar_pass *pass, const invar_grads *grads)
{
    const invar_model *model = pass->model;
    const invar_tensor *dw = model->head == model->embedding
                                 ? &grads->tied_head
                                 : &grads->of[model->head - model->params];

    return invar_device_zero(&pass->caller.dev, dw->data,
                             (size_t)(dw->shape[0] * dw->row_stride) * sizeof(float));
}

/* The row that stands for all rows that were not chosen. */
static invar_status zero_row(invar_pass *pass)
{
    invar_tensor d_x = find(pass, &pass->acts.d_x);
    invar_tensor zeros = invar_tensor_rows(&d_x, pass->head.count, 1);

    return invar_device_zero(&pass->caller.dev, zeros.data,
                             (size_t)zeros.shape[1] * (size_t)invar_dtype_bits(zeros.dtype) / 8);
}

/* What a backward is given: with values `dentropy` is NULL, and the units are new. */
static invar_status send_back(invar_pass *pass, const float *dlogp, const float *dentropy)
{
    const void **g = pass->given;
    const invar_segments *units = &pass->head.units;
    size_t rows = (size_t)pass->head.count;
    const invar_staged arrays[] = {
        {&g[INVAR_GIVEN_DLOGP], rows * sizeof *dlogp},
        {&g[INVAR_GIVEN_DENTROPY], rows * sizeof *dentropy},
        {&g[INVAR_GIVEN_BACK],
         (size_t)invar_row_count(&pass->division.context) * sizeof *pass->arrays.back},
        {&g[INVAR_GIVEN_HEAD_UNITS], (size_t)(units->count + 1) * sizeof *units->start},
    };

    note_way_back(pass);
    g[INVAR_GIVEN_DLOGP] = dlogp;
    g[INVAR_GIVEN_DENTROPY] = dentropy;
    g[INVAR_GIVEN_BACK] = pass->arrays.back;
    g[INVAR_GIVEN_HEAD_UNITS] = units->start;
    INVAR_TRY(invar_staging_send(&pass->back_staging, &pass->caller.dev, arrays,
                                 sizeof arrays / sizeof *arrays));
    note_there(pass);
    return INVAR_OK;
}

/* Shows what no call of a program makes, or what was not shown when it was made. */
static invar_status show_now(invar_pass *pass, const char *name, const char *op, bool backward,
                             const invar_tensor *rows, const invar_value_name *input)
{
    invar_forward_value value = {.name = {.layer = -1},
                                 .op = op,
                                 .backward = backward,
                                 .caller = &pass->caller,
                                 .rows = rows,
                                 .samples = &pass->head.units,
                                 .there = &pass->arrays.there[0]};

    if (!pass->probe.take)
        return INVAR_OK;
    (void)snprintf(value.name.text, sizeof value.name.text, "%s", name);
    if (input)
        value.inputs[value.n_inputs++] = *input;
    return pass->probe.take(pass->probe.payload, &value);
}

/* Gradients that the loss has handed in. */
static invar_status show_given(invar_pass *pass, const invar_point *point, invar_given_memory which)
{
    invar_tensor rows =
        invar_tensor_1d((void *)(uintptr_t)pass->given[which], INVAR_DTYPE_F32, pass->head.count);

    return show_now(pass, point->name, "loss", true, &rows, NULL);
}

static invar_status run_back(invar_pass *pass, const invar_grads *grads)
{
    invar_program_run_args how = how_to_run(pass);

    how.fresh = grads->fresh;
    pass->state = INVAR_PASS_EMPTY;
    return invar_program_run(pass->tail.program, 1, &how);
}

invar_status invar_head_backward(invar_pass *pass, const float *dlogp, const float *dentropy,
                                 invar_grads *grads)
{
    if (pass->state != INVAR_PASS_LOGPROBS || !pass->options.train)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "a backward needs a training pass whose head has just run");
    if (pass->entropy_back != (dentropy != NULL)) { // another loss; the places are the same
        pass->entropy_back = dentropy != NULL;
        INVAR_TRY(build(pass, false, pass->entropy_back));
    }
    INVAR_TRY(send_back(pass, dlogp, dentropy));
    INVAR_TRY(zero_row(pass));
    INVAR_TRY(show_given(pass, &given_dlogp, INVAR_GIVEN_DLOGP));
    if (dentropy)
        INVAR_TRY(show_given(pass, &given_dentropy, INVAR_GIVEN_DENTROPY));
    if (grads->fresh && pass->head.units.count == 0)
        INVAR_TRY(zero_head_gradient(pass, grads));
    return run_back(pass, grads);
}

/* The gradient of the head's only column, rounded to storage. */
static invar_status give_values(invar_pass *pass, const float *dvalue)
{
    invar_tensor to = find(pass, &pass->acts.d_logits);
    size_t rows = (size_t)to.shape[0];
    uint16_t *rounded = pass->arrays.values;

    if (to.dtype == INVAR_DTYPE_F32)
        return invar_device_put(&pass->caller.dev, to.data, dvalue, rows * sizeof *dvalue);
    for (size_t i = 0; i < rows; i++)
        rounded[i] = invar_bf16_from_f32(dvalue[i]);
    return invar_device_put(&pass->caller.dev, to.data, rounded, rows * sizeof *rounded);
}

/* What the forward could not show, without the units. */
static invar_status show_values(invar_pass *pass)
{
    invar_tensor norm = find(pass, &pass->acts.norm), logits = find(pass, &pass->acts.logits);
    invar_value_name stream = {.layer = pass->stream.layer, .text = "mlp"};
    invar_value_name normed = {.layer = -1, .text = "head.norm"};

    INVAR_TRY(
        show_now(pass, "head.norm", invar_op_name(INVAR_OP_RMSNORM_FWD), false, &norm, &stream));
    return show_now(pass, "head.logits", invar_op_name(INVAR_OP_LINEAR_FWD), false, &logits,
                    &normed);
}

invar_status invar_head_backward_values(invar_pass *pass, const float *dvalue,
                                        const invar_segments *units, invar_grads *grads)
{
    if (pass->state != INVAR_PASS_LOGITS || !pass->options.train || pass->model->head->rows != 1)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "a backward of values needs a training pass of a critic");
    pass->head.units = *units; // the forward did not know them
    pass->arrays.samples[0] = *units;
    pass->arrays.samples[2] = pass->rows.samples;
    INVAR_TRY(build(pass, true, false)); // the places are the same
    INVAR_TRY(send_back(pass, dvalue, NULL));
    INVAR_TRY(zero_row(pass));
    INVAR_TRY(show_values(pass));
    INVAR_TRY(show_given(pass, &given_dlogp, INVAR_GIVEN_DLOGP));
    INVAR_TRY(give_values(pass, dvalue));
    return run_back(pass, grads);
}
