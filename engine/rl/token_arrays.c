/*
 * token_arrays.c - per-token numbers of a rollout, as flat arrays over all response tokens.
 *
 * All arrays are carved from one allocation: a first run of carve_arrays measures it, a second one
 * sets the pointers. Differences are compared by bits, so that -0 and NaN count.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/token_arrays.h"

#include <string.h>

#include "base/alloc.h"
#include "base/block_carver.h"
#include "base/sort.h"
#include "kernels-deterministic/math/elementary.h"

#include "base/invar_banned.h"

static void *carve_array(invar_carver *c, int64_t count, size_t size)
{
    return invar_carve(c, (size_t)count * size);
}

static void carve_arrays(invar_token_arrays *f, invar_carver *c,
                         const invar_token_array_flags *wants)
{
    f->offsets = carve_array(c, f->samples + 1, sizeof *f->offsets);
    f->group = carve_array(c, f->samples, sizeof *f->group);
    f->reward = carve_array(c, f->samples, sizeof *f->reward);
    f->mask = carve_array(c, f->tokens, sizeof *f->mask);
    f->sampled_mask = carve_array(c, f->tokens, sizeof *f->sampled_mask);
    f->rollout_logp = carve_array(c, f->tokens, sizeof(float));
    f->score_logp = carve_array(c, f->tokens, sizeof(float));
    f->train_logp = carve_array(c, f->tokens, sizeof(float));
    f->entropy = carve_array(c, f->tokens, sizeof(float));
    f->advantage = carve_array(c, f->tokens, sizeof(float));
    if (wants->reference)
        f->ref_logp = carve_array(c, f->tokens, sizeof(float));
    if (wants->teacher)
        f->teacher_logp = carve_array(c, f->tokens, sizeof(float));
    if (wants->critic) {
        f->values = carve_array(c, f->tokens, sizeof(float));
        f->returns = carve_array(c, f->tokens, sizeof(float));
        f->train_values = carve_array(c, f->tokens, sizeof(float));
        f->branch_start = carve_array(c, f->tokens, sizeof *f->branch_start);
    }
}

/*
 * Marks the first token of each branch. branch_starts count from the prompt, `begins` from the
 * response.
 */
static void mark_branches(uint8_t *begins, const invar_rl_sample *s)
{
    memset(begins, 0, (size_t)invar_rl_sample_response(s));
    for (int64_t i = 0; i < s->n_branch_starts; i++)
        begins[s->branch_starts[i] - s->prompt_tokens] = 1;
}

static void fill_arrays(invar_token_arrays *f, const invar_rl_samples *samples)
{
    int64_t at = 0;

    for (int64_t i = 0; i < f->samples; i++) {
        const invar_rl_sample *s = &samples->items[i];
        int64_t n = invar_rl_sample_response(s);
        f->offsets[i] = at;
        f->group[i] = s->group;
        f->reward[i] = (float)s->reward;
        if (f->branch_start)
            mark_branches(f->branch_start + at, s);
        for (int64_t j = 0; j < n; j++) {
            bool left_out = s->mask && !s->mask[j];
            f->mask[at + j] = s->is_masked_out || left_out ? 0 : 1;
            f->sampled_mask[at + j] = s->logp && left_out ? 0 : 1;
            // without sampled log-probs, the caller copies those of the scoring forward here later
            f->rollout_logp[at + j] = s->logp ? s->logp[j] : 0.0f;
        }
        at += n;
    }
    f->offsets[f->samples] = at;
}

invar_status invar_token_arrays_make(invar_token_arrays *out, const invar_rl_samples *samples,
                                     const invar_token_array_flags *wants)
{
    invar_carver c = {NULL, 0};

    *out = (invar_token_arrays){.samples = samples->count};
    for (int64_t i = 0; i < samples->count; i++)
        out->tokens += invar_rl_sample_response(&samples->items[i]);
    carve_arrays(out, &c, wants);
    INVAR_TRY(invar_alloc(&out->memory, c.used, 1, "numbers of a rollout"));
    c = (invar_carver){out->memory, 0};
    carve_arrays(out, &c, wants);
    fill_arrays(out, samples);
    return INVAR_OK;
}

void invar_token_arrays_release(invar_token_arrays *arrays)
{
    invar_free(arrays->memory);
    *arrays = (invar_token_arrays){0};
}

static const float *offset_or_null(const float *array, int64_t token)
{
    return array ? array + token : NULL;
}

void invar_token_arrays_starts(int64_t *out, const invar_token_arrays *f, int64_t first,
                               int64_t count)
{
    for (int64_t i = 0; i <= count; i++)
        out[i] = f->offsets[first + i] - f->offsets[first];
}

invar_rl_batch invar_token_arrays_batch(const invar_token_arrays *f, int64_t first, int64_t count,
                                        const int64_t *start)
{
    int64_t token = f->offsets[first];

    return (invar_rl_batch){.samples = count,
                            .offsets = start,
                            .group = f->group + first,
                            .mask = f->mask + token,
                            .reward = f->reward + first,
                            .old_logp = f->score_logp + token,
                            .rollout_logp = f->rollout_logp + token,
                            .copied = f->copied,
                            .ref_logp = offset_or_null(f->ref_logp, token),
                            .teacher_logp = offset_or_null(f->teacher_logp, token),
                            .values = offset_or_null(f->values, token),
                            .branch_start = f->branch_start ? f->branch_start + token : NULL};
}

/* ---- groups ---------------------------------------------------------------------------------- */

double invar_token_arrays_pass_at(const invar_token_arrays *f, int64_t k)
{
    double total = 0.0;
    int64_t groups = 0;

    for (int64_t i = 0; i < f->samples;) {
        int64_t end = i, wrong = 0;
        double miss = 1.0;
        for (; end < f->samples && f->group[end] == f->group[i]; end++)
            wrong += f->reward[end] != 1.0f;
        for (int64_t j = 0; j < k && j < end - i; j++)
            miss *= wrong > j ? (double)(wrong - j) / (double)(end - i - j) : 0.0;
        total += 1.0 - miss;
        groups++;
        i = end;
    }
    return groups ? total / (double)groups : 0.0;
}

/* ---- log-prob differences -------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return x < y ? -1 : x > y;
}

static float abs_difference(float a, float b)
{
    float d = a > b ? a - b : b - a;

    if (invar_f32_bits(a) == invar_f32_bits(b))
        return 0.0f;
    return d == d ? d : 0x1p127f; // a NaN differs from everything
}

static invar_status compute_percentiles(invar_logp_diff *out, float *sizes, int64_t count)
{
    const void **order = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(order, (size_t)count, "differences"));
    for (int64_t i = 0; i < count; i++)
        order[i] = &sizes[i];
    status = invar_sort(order, (size_t)count, by_size);
    if (status == INVAR_OK) {
        // nearest rank, so that the percentile is a value that occurred
        out->p50 = *(const float *)order[(count - 1) / 2];
        out->p99 = *(const float *)order[(count * 99 + 99) / 100 - 1];
    }
    invar_free(order);
    return status;
}

invar_logp_diff invar_token_arrays_max_logp_diff(const invar_token_arrays *arrays, int64_t first,
                                                 int64_t count, const float *a, const float *b)
{
    invar_logp_diff gap = {.sample = -1, .position = -1};

    for (int64_t i = 0; i < count; i++)
        for (int64_t t = arrays->offsets[first + i]; t < arrays->offsets[first + i + 1]; t++) {
            float size = arrays->sampled_mask[t] ? abs_difference(a[t], b[t]) : 0.0f;
            gap.differ += arrays->sampled_mask[t] && invar_f32_bits(a[t]) != invar_f32_bits(b[t]);
            if (size > gap.max) {
                gap.max = size;
                gap.sample = i;
                gap.position = t - arrays->offsets[first + i];
            }
        }
    return gap;
}

invar_status invar_token_arrays_logp_diff(invar_logp_diff *out, const invar_token_arrays *arrays,
                                          int64_t first, int64_t count, const float *a,
                                          const float *b)
{
    int64_t begin = arrays->offsets[first], tokens = arrays->offsets[first + count] - begin,
            drawn = 0;
    float *sizes = NULL;
    invar_status status;

    *out = invar_token_arrays_max_logp_diff(arrays, first, count, a, b);
    if (out->differ == 0)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(sizes, (size_t)tokens, "differences"));
    for (int64_t t = begin; t < begin + tokens; t++)
        if (arrays->sampled_mask[t])
            sizes[drawn++] = abs_difference(a[t], b[t]);
    status = compute_percentiles(out, sizes, drawn);
    invar_free(sizes);
    return status;
}
