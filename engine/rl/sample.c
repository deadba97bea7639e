/*
 * sample.c - allocation, copies and lists of samples.
 *
 * Every array of invar_rl_sample must be freed in invar_rl_sample_release and copied in
 * copy_arrays; a new array belongs into both.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/sample.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

const char *invar_finish_name(invar_finish finish)
{
    static const char *const names[] = {
        [INVAR_FINISH_NONE] = "none",
        [INVAR_FINISH_STOP] = "stop",
        [INVAR_FINISH_LENGTH] = "length",
        [INVAR_FINISH_ABORT] = "abort",
    };

    return (unsigned)finish < sizeof names / sizeof *names ? names[finish] : "unknown";
}

void invar_rl_sample_release(invar_rl_sample *sample)
{
    invar_free(sample->tokens);
    invar_free(sample->branch_starts);
    invar_free(sample->logp);
    invar_free(sample->mask);
    invar_free(sample->routing);
    invar_free(sample->response);
    invar_reward_parts_release(&sample->parts);
    memset(sample, 0, sizeof *sample);
}

void invar_spec_decode_stats_add(invar_spec_decode_stats *sum, const invar_spec_decode_stats *more)
{
    sum->passes += more->passes;
    sum->drafted += more->drafted;
    sum->accepted += more->accepted;
}

invar_spec_decode_stats invar_spec_decode_stats_sum(const invar_rl_sample *samples, int64_t count)
{
    invar_spec_decode_stats sum = {0};

    for (int64_t i = 0; i < count; i++)
        invar_spec_decode_stats_add(&sum, &samples[i].stats.speculated);
    return sum;
}

/* Replaces an array by a copy with `count` items, of which the first `used` ones are kept. */
static invar_status resize_array(void **array, int64_t used, int64_t count, size_t size,
                                 const char *what)
{
    char *resized = NULL;

    INVAR_TRY(INVAR_ALLOC_SIZED(resized, (size_t)count, size, what));
    if (used > 0)
        memcpy(resized, *array, (size_t)used * size);
    memset(resized + (size_t)used * size, 0, (size_t)(count - used) * size);
    invar_free(*array);
    *array = resized;
    return INVAR_OK;
}

invar_status invar_rl_sample_reserve(invar_rl_sample *s, int64_t room)
{
    int64_t used = invar_rl_sample_response(s), total = s->prompt_tokens + room;

    INVAR_TRY(resize_array((void **)&s->tokens, s->n_tokens, total, sizeof *s->tokens,
                           "tokens of a sample"));
    INVAR_TRY(
        resize_array((void **)&s->logp, used, room, sizeof *s->logp, "log-probs of a sample"));
    INVAR_TRY(resize_array((void **)&s->mask, used, room, sizeof *s->mask, "the mask of a sample"));
    if (s->route_size == 0)
        return INVAR_OK;
    return resize_array((void **)&s->routing, s->routing ? s->n_tokens - 1 : 0, total,
                        (size_t)s->route_size * sizeof *s->routing, "the routing of a sample");
}

invar_status invar_rl_sample_set_prompt(invar_rl_sample *s, const int32_t *tokens, int64_t count,
                                        int64_t room)
{
    INVAR_TRY(INVAR_ALLOC(s->tokens, (size_t)(count + room), "tokens of a prompt"));
    memcpy(s->tokens, tokens, (size_t)count * sizeof *tokens);
    s->prompt_tokens = s->n_tokens = count;
    return INVAR_OK;
}

invar_status invar_rl_samples_append(invar_rl_sample **out, invar_rl_samples *samples)
{
    INVAR_TRY(INVAR_GROW(samples->items, samples->capacity, samples->count, samples->count + 1,
                         "samples"));
    *out = &samples->items[samples->count++];
    memset(*out, 0, sizeof **out);
    return INVAR_OK;
}

invar_status invar_rl_samples_insert(invar_rl_samples *to, invar_rl_sample *from, int64_t count)
{
    int64_t at = to->count;
    invar_rl_sample *s;

    if (count == 0)
        return INVAR_OK;
    while (at > 0 && to->items[at - 1].index > from->index)
        at--;
    for (int64_t i = 0; i < count; i++)
        INVAR_TRY(invar_rl_samples_append(&s, to));
    s = to->items + at;
    memmove(s + count, s, (size_t)(to->count - count - at) * sizeof *s);
    memcpy(s, from, (size_t)count * sizeof *s);
    memset(from, 0, (size_t)count * sizeof *from);
    return INVAR_OK;
}

static invar_status copy_array(void **array, size_t count, size_t size)
{
    const void *from = *array;

    *array = NULL;
    if (!from)
        return INVAR_OK;
    INVAR_TRY(invar_alloc(array, count, size, "a copy of a sample"));
    memcpy(*array, from, count * size);
    return INVAR_OK;
}

/* Replaces the arrays of a plain copy of a sample by copies that it owns. */
static invar_status copy_arrays(invar_rl_sample *s)
{
    size_t response = (size_t)invar_rl_sample_response(s);
    size_t routes = (size_t)((s->n_tokens - 1) * s->route_size);
    struct {
        void **array;
        size_t count, size;
    } arrays[] = {
        {(void **)&s->tokens, (size_t)s->n_tokens, sizeof *s->tokens},
        {(void **)&s->branch_starts, (size_t)s->n_branch_starts, sizeof *s->branch_starts},
        {(void **)&s->logp, response, sizeof *s->logp},
        {(void **)&s->mask, response, sizeof *s->mask},
        {(void **)&s->routing, routes, sizeof *s->routing},
        {(void **)&s->response, s->response_bytes + 1, 1},
        {(void **)&s->parts.items, (size_t)s->parts.count, sizeof *s->parts.items}};
    invar_status status = INVAR_OK;

    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if (status == INVAR_OK)
            status = copy_array(arrays[i].array, arrays[i].count, arrays[i].size);
        else
            *arrays[i].array = NULL; // a failure came first: still the array of the other sample
    return status;
}

invar_status invar_rl_samples_copy(invar_rl_samples *out, const invar_rl_samples *from)
{
    for (int64_t i = 0; i < from->count; i++) {
        invar_rl_sample *s;
        INVAR_TRY(invar_rl_samples_append(&s, out));
        *s = from->items[i];
        INVAR_TRY(copy_arrays(s));
    }
    return INVAR_OK;
}

void invar_rl_samples_reset(invar_rl_samples *samples)
{
    for (int64_t i = 0; i < samples->count; i++)
        invar_rl_sample_release(&samples->items[i]);
    invar_free(samples->items);
    memset(samples, 0, sizeof *samples);
}
