/*
 * sampler.c - turns the rows of a pass into sampled tokens and their log-probs.
 *
 * Up to INVAR_SAMPLER_ROWS draws are sampled together: distinct rows are listed, their logits are
 * computed once, copied for draws that share a row, and given to one sampling op per run of draws
 * with equal sampling params. The log-prob op reads the same logits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/sampler.h"

#include <string.h>

#include "engine/model/graph/cuda_graph_cache.h"
#include "kernels-deterministic/math/philox.h"

#include "base/invar_banned.h"

invar_status invar_sampler_init(invar_sampler *s, invar_op_runner *runner,
                                const invar_sampling_params *sampling)
{
    size_t bytes = sampling ? (size_t)sampling->n_stop_ids * sizeof *sampling->stop_ids : 0;

    memset(s, 0, sizeof *s);
    s->op_runner = runner;
    s->sampling = sampling;
    INVAR_TRY(invar_device_alloc(&runner->dev, (void **)&s->buffers, sizeof *s->buffers, "draws"));
    INVAR_TRY(invar_device_alloc(&runner->dev, (void **)&s->stop_ids, bytes, "stop ids"));
    return bytes ? invar_device_upload(&runner->dev, s->stop_ids, sampling->stop_ids, bytes)
                 : INVAR_OK;
}

void invar_sampler_release(invar_sampler *s)
{
    if (s->op_runner) {
        invar_device_free(&s->op_runner->dev, s->buffers);
        invar_device_free(&s->op_runner->dev, s->stop_ids);
        invar_device_free(&s->op_runner->dev, s->draw_stop_ids);
        invar_device_free(&s->op_runner->dev, s->copies);
    }
    memset(s, 0, sizeof *s);
}

/* ---- hooks ----------------------------------------------------------------------------------- */

/* Lists as owners of each row of logits all samples drawing from it, which are adjacent. */
static void set_logits_owners(const invar_sampler *s, const invar_draw *draws, int64_t count,
                              int64_t rows)
{
    invar_row_samples *owners = invar_row_ownership_owners(s->row_owners, rows);

    for (int64_t i = 0, row = -1; i < count; i++) {
        if (i == 0 || s->inputs.logits_row[i] != row) {
            row = s->inputs.logits_row[i];
            owners[row] = (invar_row_samples){s->row_owners->draws + draws[i].owner, 0};
        }
        owners[row].count += !draws[i].filler;
    }
}

static invar_status show_tokens(invar_sampler *s, const invar_draw *draws, int64_t count)
{
    static const char *const of_token[] = {"head.logits", NULL};
    static const char *const of_logp[] = {"head.logits", "token", NULL};
    invar_row_samples *owners = invar_row_ownership_owners(s->row_owners, count);
    invar_tensor tokens = invar_tensor_1d(s->buffers->outputs.tokens, INVAR_DTYPE_I32, count);
    invar_tensor logp = invar_tensor_1d(s->buffers->outputs.logp, INVAR_DTYPE_F32, count);

    for (int64_t i = 0; i < count; i++)
        owners[i] = (invar_row_samples){s->row_owners->draws + draws[i].owner, !draws[i].filler};
    INVAR_TRY(invar_row_ownership_value(s->row_owners, s->op_runner, "token", INVAR_OP_SAMPLE,
                                        &tokens, of_token));
    return invar_row_ownership_value(s->row_owners, s->op_runner, "token.logp",
                                     INVAR_OP_LOGPROB_FWD, &logp, of_logp);
}

/* ---- drawing --------------------------------------------------------------------------------- */

static const invar_sampling_params *sampling_of(const invar_sampler *s, const invar_draw *draw)
{
    return draw->sampling ? draw->sampling : s->sampling;
}

/* Uploads the stop ids of sampling params other than the sampler's. */
static invar_status upload_other_stop_ids(invar_sampler *s, const invar_sampling_params *p)
{
    const invar_device *dev = &s->op_runner->dev;
    size_t bytes = (size_t)p->n_stop_ids * sizeof *s->draw_stop_ids;

    if (s->op_runner
            ->graph_cache) // a call that the graph cache holds back may still read the previous ids
        INVAR_TRY(invar_cuda_graph_cache_flush(s->op_runner->graph_cache));
    if (p->n_stop_ids > s->draw_stop_ids_capacity) {
        invar_device_free(dev, s->draw_stop_ids);
        s->draw_stop_ids = NULL;
        s->draw_stop_ids_capacity = 0;
        INVAR_TRY(invar_device_alloc(dev, (void **)&s->draw_stop_ids, bytes, "stop ids"));
        s->draw_stop_ids_capacity = p->n_stop_ids;
    }
    return bytes ? invar_device_upload(dev, s->draw_stop_ids, p->stop_ids, bytes) : INVAR_OK;
}

/*
 * *out = the stop ids on the device of draws with equal sampling params. The params of the sampler
 * are on the device already; others are uploaded only if one of the draws bans stop ids.
 */
static invar_status find_stop_ids(invar_tensor *out, invar_sampler *s, const invar_draw *draws,
                                  int64_t count)
{
    const invar_sampling_params *p = sampling_of(s, draws);
    bool hides = false;

    *out = invar_tensor_1d(s->stop_ids, INVAR_DTYPE_I32, p == s->sampling ? p->n_stop_ids : 0);
    for (int64_t i = 0; i < count; i++)
        hides = hides || draws[i].ban_stop_ids;
    if (p == s->sampling || !hides)
        return INVAR_OK;
    INVAR_TRY(upload_other_stop_ids(s, p));
    *out = invar_tensor_1d(s->draw_stop_ids, INVAR_DTYPE_I32, p->n_stop_ids);
    return INVAR_OK;
}

/* Runs the ops for draws [first, first + count), which have equal sampling params. */
static invar_status run_equal_params(invar_sampler *s, const invar_draw *draws,
                                     const invar_tensor *logits, int64_t first, int64_t count)
{
    const invar_sampling_params *p = sampling_of(s, &draws[first]);
    invar_sampler_buffers *room = s->buffers;
    invar_tensor tokens = invar_tensor_1d(room->outputs.tokens + first, INVAR_DTYPE_I32, count);
    invar_tensor rows = invar_tensor_rows(logits, first, count);
    invar_tensor ends;

    INVAR_TRY(find_stop_ids(&ends, s, draws + first, count));
    INVAR_TRY(INVAR_CALL(
        s->op_runner, SAMPLE, sample, .tokens = tokens, .logits = rows,
        .coords = room->inputs.coords + first, .seed = p->seed,
        .purpose = invar_philox_purpose(p->purpose, 0), .temperature = p->temperature,
        .top_k = p->top_k, .top_p = p->top_p, .min_p = p->min_p, .hidden = ends,
        .hides = invar_tensor_1d(room->inputs.ban_stop_ids + first, INVAR_DTYPE_I32, count)));
    return INVAR_CALL(s->op_runner, LOGPROB_FWD, logprob_fwd,
                      .logp = invar_tensor_1d(room->outputs.logp + first, INVAR_DTYPE_F32, count),
                      .max = invar_tensor_1d(room->max + first, INVAR_DTYPE_F32, count),
                      .logsum = invar_tensor_1d(room->logsum + first, INVAR_DTYPE_F32, count),
                      .logits = rows, .targets = tokens,
                      .temperature = invar_sampling_logp_temperature(p->temperature));
}

/* Runs the ops for all draws, one row of `logits` each, and downloads tokens and log-probs. */
static invar_status run_ops(invar_sampler *s, const invar_draw *draws, const invar_tensor *logits)
{
    int64_t count = logits->shape[0];

    for (int64_t first = 0, n; first < count; first += n) {
        n = 1;
        while (first + n < count && draws[first + n].sampling == draws[first].sampling)
            n++;
        INVAR_TRY(run_equal_params(s, draws, logits, first, n));
    }
    if (s->row_owners)
        INVAR_TRY(show_tokens(s, draws, count));
    return invar_op_runner_download(s->op_runner, &s->outputs, &s->buffers->outputs,
                                    sizeof s->outputs);
}

/*
 * Lists the distinct rows of the draws, fills the inputs of the ops, and returns the number of
 * rows.
 */
static int64_t list_distinct_rows(invar_sampler *s, const invar_draw *draws, int64_t count)
{
    int64_t rows = 0;

    for (int64_t i = 0; i < count; i++) {
        if (i == 0 || draws[i].row != draws[i - 1].row)
            s->row[rows++] = draws[i].row;
        s->inputs.logits_row[i] = (int32_t)(rows - 1);
        s->inputs.coords[i] = draws[i].coords;
        s->inputs.ban_stop_ids[i] = draws[i].ban_stop_ids;
    }
    return rows;
}

/* Grows `copies` to `count` rows of `width` logits. */
static invar_status reserve_copies(invar_sampler *s, int64_t count, int64_t width)
{
    const invar_device *dev = &s->op_runner->dev;

    if (count <= s->n_copies)
        return INVAR_OK;
    invar_device_free(dev, s->copies);
    s->copies = NULL;
    s->n_copies = 0;
    INVAR_TRY(invar_device_alloc(dev, (void **)&s->copies,
                                 (size_t)(count * width) * sizeof *s->copies, "copies of logits"));
    s->n_copies = count;
    return INVAR_OK;
}

/* *out = logits with one row per draw. If draws share rows, the shared rows are copied. */
static invar_status make_logits(invar_tensor *out, invar_sampler *s, invar_pass *pass, int64_t rows,
                                int64_t count)
{
    invar_tensor distinct;
    int64_t width;

    INVAR_TRY(invar_pass_logits(&distinct, pass, s->row, rows));
    *out = distinct;
    if (rows == count)
        return INVAR_OK;
    width = distinct.shape[1];
    INVAR_TRY(reserve_copies(s, count, width));
    *out = invar_tensor_2d(s->copies, INVAR_DTYPE_F32, count, width);
    return INVAR_CALL(s->op_runner, EMBEDDING_FWD, embedding_fwd, .out = *out, .table = distinct,
                      .ids =
                          invar_tensor_1d(s->buffers->inputs.logits_row, INVAR_DTYPE_I32, count));
}

static invar_status draw_block(invar_sampler *s, invar_pass *pass, invar_draw *draws, int64_t count)
{
    int64_t rows = list_distinct_rows(s, draws, count);
    invar_tensor logits;

    INVAR_TRY(
        invar_device_upload(&s->op_runner->dev, &s->buffers->inputs, &s->inputs, sizeof s->inputs));
    if (s->row_owners)
        set_logits_owners(s, draws, count, rows);
    INVAR_TRY(make_logits(&logits, s, pass, rows, count));
    INVAR_TRY(run_ops(s, draws, &logits));
    for (int64_t i = 0; i < count; i++) {
        draws[i].token = s->outputs.tokens[i];
        draws[i].logp = s->outputs.logp[i];
    }
    return INVAR_OK;
}

invar_status invar_sampler_draw(invar_sampler *s, invar_pass *pass, invar_draw *draws,
                                int64_t count)
{
    for (int64_t first = 0; first < count; first += INVAR_SAMPLER_ROWS) {
        int64_t left = count - first;
        INVAR_TRY(draw_block(s, pass, draws + first,
                             left < INVAR_SAMPLER_ROWS ? left : INVAR_SAMPLER_ROWS));
    }
    return INVAR_OK;
}
