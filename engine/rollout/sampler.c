/*
 * sampler.c - logits, tokens, log-probabilities.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rollout/sampler.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

#define OUT_OF_REACH (-0x1p100f) // far below any logit, and finite at any sensible temperature

invar_status invar_sampler_init(invar_sampler *s, invar_caller *caller,
                                const invar_sampling *sampling)
{
    memset(s, 0, sizeof *s);
    s->caller = caller;
    s->sampling = sampling;
    return invar_alloc((void **)&s->hidden, INVAR_SAMPLER_ROWS,
                       (size_t)sampling->n_stop_ids * sizeof *s->hidden, "logits of stop ids");
}

void invar_sampler_release(invar_sampler *s)
{
    invar_free(s->hidden);
    invar_free(s->copies);
    memset(s, 0, sizeof *s);
}

static float *logit(const invar_tensor *logits, int64_t row, int32_t id)
{
    return (float *)logits->data + row * logits->row_stride + id;
}

/* Puts the stop ids of some rows out of reach; `restore` undoes it, in reverse order. */
static void hide_ends(invar_sampler *s, const invar_tensor *logits, const invar_draw *draws)
{
    const invar_sampling *p = s->sampling;

    for (int64_t i = 0; i < logits->shape[0]; i++)
        for (int64_t n = 0; draws[i].no_end && n < p->n_stop_ids; n++) {
            float *at = logit(logits, i, p->stop_ids[n]);
            s->hidden[i * p->n_stop_ids + n] = *at;
            *at = OUT_OF_REACH;
        }
}

static void restore_ends(const invar_sampler *s, const invar_tensor *logits,
                         const invar_draw *draws)
{
    const invar_sampling *p = s->sampling;

    for (int64_t i = 0; i < logits->shape[0]; i++)
        for (int64_t n = p->n_stop_ids; draws[i].no_end && n-- > 0;)
            *logit(logits, i, p->stop_ids[n]) = s->hidden[i * p->n_stop_ids + n];
}

/* Tokens and log-probabilities of all rows of the logits. */
static invar_status run_ops(invar_sampler *s, const invar_tensor *logits, const invar_draw *draws)
{
    const invar_sampling *p = s->sampling;
    int64_t count = logits->shape[0];
    invar_tensor tokens = invar_tensor_1d(s->tokens, INVAR_DTYPE_I32, count);

    hide_ends(s, logits, draws);
    INVAR_TRY(INVAR_CALL(s->caller, SAMPLE, sample, .tokens = tokens, .logits = *logits,
                         .coords = s->coords, .seed = p->seed, .purpose = p->purpose,
                         .temperature = p->temperature, .top_k = p->top_k, .top_p = p->top_p,
                         .min_p = p->min_p));
    restore_ends(s, logits, draws);
    return INVAR_CALL(s->caller, LOGPROB_FWD, logprob_fwd,
                      .logp = invar_tensor_1d(s->logp, INVAR_DTYPE_F32, count),
                      .max = invar_tensor_1d(s->max, INVAR_DTYPE_F32, count),
                      .logsum = invar_tensor_1d(s->logsum, INVAR_DTYPE_F32, count),
                      .logits = *logits, .targets = tokens,
                      .temperature = invar_sampling_logp_temperature(p->temperature));
}

/* One row of logits for each draw; of a row that several share, a copy for each. */
static invar_status make_logits(invar_tensor *out, invar_sampler *s, invar_pass *pass,
                                const invar_draw *draws, int64_t count)
{
    int64_t rows = 0, width;

    for (int64_t i = 0; i < count; i++)
        if (i == 0 || draws[i].row != draws[i - 1].row)
            s->row[rows++] = draws[i].row;
    INVAR_TRY(invar_pass_logits(out, pass, s->row, rows));
    if (rows == count)
        return INVAR_OK;
    width = out->shape[1];
    if (!s->copies)
        INVAR_TRY(invar_alloc((void **)&s->copies, INVAR_SAMPLER_ROWS,
                              (size_t)width * sizeof *s->copies, "copies of logits"));
    for (int64_t i = 0, row = 0; i < count; i++) {
        row += i > 0 && draws[i].row != draws[i - 1].row;
        memcpy(s->copies + i * width, logit(out, row, 0), (size_t)width * sizeof *s->copies);
    }
    *out = invar_tensor_2d(s->copies, INVAR_DTYPE_F32, count, width);
    return INVAR_OK;
}

static invar_status draw_piece(invar_sampler *s, invar_pass *pass, invar_draw *draws, int64_t count)
{
    invar_tensor logits;

    for (int64_t i = 0; i < count; i++)
        s->coords[i] = draws[i].at;
    INVAR_TRY(make_logits(&logits, s, pass, draws, count));
    INVAR_TRY(run_ops(s, &logits, draws));
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(s->logp[i]))
            return INVAR_FAIL(INVAR_E_STATE, 0,
                              "rollout: draw %" PRIu32 " has logits that are not finite at "
                              "position %" PRIu32 ": the weights are damaged or have diverged",
                              draws[i].at.sample, draws[i].at.position);
        draws[i].token = s->tokens[i];
        draws[i].logp = s->logp[i];
    }
    return INVAR_OK;
}

invar_status invar_sampler_draw(invar_sampler *s, invar_pass *pass, invar_draw *draws,
                                int64_t count)
{
    for (int64_t first = 0; first < count; first += INVAR_SAMPLER_ROWS) {
        int64_t left = count - first;
        INVAR_TRY(draw_piece(s, pass, draws + first,
                             left < INVAR_SAMPLER_ROWS ? left : INVAR_SAMPLER_ROWS));
    }
    return INVAR_OK;
}
