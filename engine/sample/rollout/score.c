/*
 * score.c - computes log-probs of given sequences through the KV cache (invar_rollout_score).
 *
 * Every sequence is scheduled as in sampling, but all its rows are known, so the passes are
 * prefill, or decoding if prefill_chunk is 1. Each row of a pass is scored against the next token.
 * On a pipeline the last stage scores and shares the result, so that all stages finish together.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/host_staging.h"
#include "engine/sample/rollout/model_runner.h"
#include "engine/sample/rollout/sampler.h"

#include "base/invar_banned.h"

typedef struct score_run {
    invar_rollout *rollout;
    const int32_t *const *tokens; /* (count) token ids of each sequence; borrowed */
    const int64_t *n;             /* (count) number of tokens of each; borrowed */
    int64_t count;
    invar_seq *jobs; /* (n_jobs) sequences of two tokens or more */
    int64_t n_jobs;
    int64_t max_rows; /* rows of the longest sequence */
    invar_model_runner feed;
    int64_t *row; /* (rows of a pass + 1) 0, 1, ...: row indexes, and offsets of one-row units */
    int32_t *targets; /* (rows of a pass) token after each row */
    float *logp;      /* (rows of a pass) */
} score_run;

static invar_status check_sequence(const score_run *s, int64_t i)
{
    const invar_model_spec *spec = &s->rollout->model->spec;

    if (s->n[i] < 1 || s->n[i] > spec->max_positions)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "score: sequence %" PRId64 " has %" PRId64
                          " tokens; expected 1 to %" PRId64 ", the positions of the model",
                          i, s->n[i], spec->max_positions);
    for (int64_t t = 0; t < s->n[i]; t++)
        if (s->tokens[i][t] < 0 || s->tokens[i][t] >= spec->vocab)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "score: sequence %" PRId64 " has token %" PRId32 " at %" PRId64
                              "; the vocabulary has %" PRId64,
                              i, s->tokens[i][t], t, spec->vocab);
    return INVAR_OK;
}

static invar_status score_run_init(score_run *s)
{
    invar_rollout_exec_options limits;
    size_t rows;

    INVAR_TRY(INVAR_ALLOC(s->jobs, (size_t)s->count, "the jobs of scoring"));
    for (int64_t i = 0; i < s->count; i++) {
        int64_t n = s->n[i] - 1;

        INVAR_TRY(check_sequence(s, i));
        s->max_rows = n > s->max_rows ? n : s->max_rows;
        // a prefill of 1 makes the scheduler decode all sequences together
        if (n > 0)
            s->jobs[s->n_jobs++] =
                (invar_seq){.prefill = s->rollout->limits.prefill_chunk == 1 ? 1 : n,
                            .rows = n,
                            .sample = i,
                            .tokens = s->tokens[i]};
    }
    INVAR_TRY(invar_model_runner_resolve_options(&limits, s->rollout, s->count, s->max_rows));
    INVAR_TRY(invar_model_runner_init(
        &s->feed, s->rollout, &limits,
        &(invar_model_runner_limits){.sequences = s->n_jobs, .rows = s->max_rows}, s->jobs,
        s->n_jobs));
    rows = (size_t)(s->feed.scheduler.concurrency + s->feed.scheduler.chunk);
    INVAR_TRY(INVAR_ALLOC(s->row, rows + 1, "rows to score"));
    for (size_t i = 0; i <= rows; i++)
        s->row[i] = (int64_t)i;
    INVAR_TRY(INVAR_ALLOC(s->targets, rows, "tokens to score"));
    return INVAR_ALLOC(s->logp, rows, "scores");
}

static void score_run_release(score_run *s)
{
    invar_model_runner_release(&s->feed);
    invar_free(s->jobs);
    invar_free(s->row);
    invar_free(s->targets);
    invar_free(s->logp);
}

/* Computes the log-probs of the rows of the pass and copies them to logp_out[sequence]. */
static invar_status score_pass_rows(score_run *s, float temperature, float *const *logp_out)
{
    const invar_model_runner *runner = &s->feed;
    invar_logit_rows head = {.count = runner->start[runner->n_slices],
                             .row = s->row,
                             .targets = s->targets,
                             .units = {s->row, runner->start[runner->n_slices]},
                             .temperature = invar_sampling_logp_temperature(temperature)};

    for (int64_t i = 0; i < runner->n_slices; i++) {
        const invar_seq_slice *turn = &runner->slices[i];
        memcpy(s->targets + runner->start[i], s->jobs[turn->seq].tokens + turn->first + 1,
               (size_t)turn->count * sizeof *s->targets);
    }
    if (invar_rollout_stages_samples(s->rollout))
        INVAR_TRY(invar_pass_head(s->rollout->pass, &head, s->logp, NULL));
    INVAR_TRY(invar_rollout_stages_broadcast(s->rollout, "scores", s->logp,
                                             (size_t)head.count * sizeof *s->logp));
    for (int64_t i = 0; i < runner->n_slices; i++) {
        const invar_seq_slice *turn = &runner->slices[i];
        const invar_seq *seq = &s->jobs[turn->seq];

        memcpy(logp_out[seq->sample] + turn->first, s->logp + runner->start[i],
               (size_t)turn->count * sizeof *s->logp);
        if (turn->first + turn->count == seq->rows)
            invar_scheduler_finish(&s->feed.scheduler, turn->seq);
    }
    return INVAR_OK;
}

invar_status invar_rollout_score(invar_rollout *rollout, const int32_t *const *tokens,
                                 const int64_t *n, int64_t count, float temperature,
                                 float *const *logp_out)
{
    score_run s = {.rollout = rollout, .tokens = tokens, .n = n, .count = count};
    invar_status status;

    INVAR_CHECK(!rollout->stream); // scoring would take the pages of the stream
    status = score_run_init(&s);

    while (status == INVAR_OK) {
        status = invar_model_runner_next(&s.feed);
        if (status != INVAR_OK || s.feed.n_slices == 0)
            break;
        status = invar_model_runner_pass(&s.feed);
        if (status == INVAR_OK)
            status = score_pass_rows(&s, temperature, logp_out);
    }
    score_run_release(&s);
    return invar_host_staging_advise_oom(status, invar_device_is_local(&rollout->op_runner.dev),
                                         INVAR_MODEL_RUNNER_ADVICE);
}
