/*
 * inflight_file.c - writes and validates the in-flight file of a checkpoint.
 *
 * The file is a rollout file with all in-flight samples in order of index. Which samples must be in
 * it follows from the recipe; the file adds their tokens so far. So reading steps through the
 * expected coordinates and compares each sample with them. Samples of rollouts before the first
 * expected one are surplus or, with a recorded schedule, late. A fork may have other keys than the
 * run that wrote the file; the errors then name the keys to keep.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/minmax.h"
#include "base/sort.h"
#include "engine/sample/source/inflight.h"

#include "base/invar_banned.h"

static int by_index(const void *a, const void *b)
{
    const invar_rl_sample *x = a, *y = b;

    return (x->index > y->index) - (x->index < y->index);
}

static const void **append_pointers(const void **at, const invar_rl_samples *samples)
{
    for (int64_t i = 0; i < samples->count; i++)
        *at++ = &samples->items[i];
    return at;
}

/* *out = shallow copies of all samples, sorted by index. The caller frees *out only. */
static invar_status list_by_index(invar_rl_sample **out, int64_t *count_out,
                                  const invar_inflight *flight)
{
    int64_t count = flight->surplus.count;
    const void **order, **end;
    invar_status status;

    for (int64_t r = 0; r < flight->count; r++)
        count += flight->started[r].count;
    INVAR_TRY(INVAR_ALLOC(order, (size_t)count + 1, "order of samples"));
    end = append_pointers(order, &flight->surplus);
    for (int64_t r = 0; r < flight->count; r++)
        end = append_pointers(end, &flight->started[r]);
    status = invar_sort(order, (size_t)count, by_index);
    if (status == INVAR_OK)
        status = INVAR_ALLOC(*out, (size_t)count + 1, "samples in flight");
    for (int64_t i = 0; i < count && status == INVAR_OK; i++)
        memcpy(&(*out)[i], order[i], sizeof **out);
    invar_free(order);
    *count_out = count;
    return status;
}

invar_status invar_inflight_format(char **out, size_t *bytes_out, const invar_inflight *inflight,
                                   invar_rollout_header *header)
{
    invar_rl_sample *all = NULL;
    int64_t count;
    invar_status status = list_by_index(&all, &count, inflight);

    if (inflight->count)
        header->rollout = inflight->first;
    if (status == INVAR_OK)
        status = invar_rollout_file_format(out, bytes_out, header, all, count);
    invar_free(all);
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool has_prompt(const invar_rl_sample *s, const invar_prompt *p)
{
    return p && s->prompt_tokens == p->n_tokens && invar_digest_equal(&s->data.hash, &p->hash) &&
           memcmp(s->tokens, p->tokens, (size_t)p->n_tokens * sizeof *s->tokens) == 0;
}

/* Coordinates that a sample of the file must have. */
typedef struct expected_coords {
    int64_t rollout, draw;
} expected_coords;

/* Position of the reader in the expected samples. */
typedef struct coords_cursor {
    expected_coords now;  /* coordinates of the current sample */
    expected_coords last; /* coordinates of the last sample that is not surplus */
} coords_cursor;

/* Returns true if the sample is surplus of a rollout that was trained on. */
static bool is_surplus(const invar_rl_sample *s, const invar_inflight_expectation *w)
{
    return w->schedule.surplus && (int64_t)s->rollout < w->first;
}

/*
 * Returns the coordinates of the group that sample s begins, in a recorded schedule: any later
 * group of the same or a later rollout. {-1, -1} if the group cannot be in flight.
 */
static expected_coords recorded_group_coords(const expected_coords *last, const invar_rl_sample *s,
                                             const invar_inflight_expectation *w)
{
    int64_t rollout = (int64_t)s->rollout, draw = s->draw_index - s->draw_index % w->per_prompt;
    bool later = rollout > last->rollout || (rollout == last->rollout && draw > last->draw);

    if (later && (w->fork || rollout >= w->first - w->schedule.max_delay) &&
        rollout < w->first + w->schedule.lag && draw < w->round * w->per_prompt)
        return (expected_coords){rollout, draw};
    return (expected_coords){-1, -1};
}

/* Advances to sample i: the next of its group, any surplus group, or the next group in flight. */
static void advance_cursor(coords_cursor *at, const invar_rl_sample *s, int64_t i,
                           const invar_inflight_expectation *w)
{
    bool next =
        w->schedule.surplus && at->last.draw >= 0 && (int64_t)s->rollout == at->last.rollout + 1;

    if (i % w->per_prompt > 0)
        at->now.draw++;
    else if (w->schedule.recorded)
        at->now = recorded_group_coords(&at->now, s, w);
    else if (is_surplus(s, w))
        at->now =
            (expected_coords){(int64_t)s->rollout, s->draw_index - s->draw_index % w->per_prompt};
    else if (next || at->last.draw + 1 == w->round * w->per_prompt)
        at->now = (expected_coords){at->last.rollout + 1, 0};
    else
        at->now = (expected_coords){at->last.rollout, at->last.draw + 1};
    if (at->now.rollout >= w->first || w->schedule.recorded)
        at->last = at->now;
}

/* Returns the name of the first invalid member of sample i; NULL if all are valid. */
static const char *find_invalid_member(const invar_rl_sample *s, int64_t i,
                                       const expected_coords *at,
                                       const invar_inflight_expectation *w)
{
    bool surplus = is_surplus(s, w), whole = surplus || w->multi_turn,
         ended = s->finish == INVAR_FINISH_STOP || s->finish == INVAR_FINISH_LENGTH;
    bool bare = w->schedule.recorded && s->n_tokens == s->prompt_tokens; // without response tokens
    int64_t route_size = bare ? 0 : w->route_size;
    const invar_rl_sample *eldest = s - i % w->per_prompt; // first sample of its group
    const invar_rl_sample *before = i < w->per_prompt ? NULL : eldest - 1;
    const struct {
        const char *name;
        bool good;
    } members[] = {
        {"rollout", (int64_t)s->rollout == at->rollout},
        {"draw", (int64_t)s->draw_index == at->draw},
        {"index", s->index < w->samples},
        {"group", s->group == eldest->group && s->group < w->groups &&
                      (!before || s->group > before->group)},
        {"prompt", s->data.line == eldest->data.line},
        {"tokens", s->n_tokens > s->prompt_tokens || bare},
        {"logprobs", (s->logp != NULL) == !bare},
        {"mask",
         bare ? !s->mask
              : s->mask && (whole || !memchr(s->mask, 0, (size_t)invar_rl_sample_response(s)))},
        {"route_size", s->route_size == route_size && (route_size == 0 || s->routing)},
        {"finish", bare ? s->finish == INVAR_FINISH_NONE
                        : ended || (!whole && s->finish == INVAR_FINISH_NONE)},
        {"weights", s->weights.last <= w->weights},
        {"removed", surplus || !s->is_masked_out},
    };

    for (size_t k = 0; k < sizeof members / sizeof *members; k++)
        if (!members[k].good)
            return members[k].name;
    for (int64_t k = 0; k < s->n_tokens; k++)
        if (s->tokens[k] < 0 || s->tokens[k] >= w->spec->vocab)
            return "tokens";
    return NULL;
}

static invar_status check_sample(const invar_rl_sample *s, int64_t i, const expected_coords *at,
                                 const invar_inflight_expectation *w)
{
    const char *odd = find_invalid_member(s, i, at, w);
    int64_t limit = s->prompt_tokens + invar_inflight_limit(s, &w->sampling, w->spec);

    if (!is_surplus(s, w) && (s->turns > 0) != w->multi_turn)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s: sample %" PRId64
                          " is in flight, and %s led by a plug-in: a fork keeps "
                          "custom-generate-function-path, unless the other run has rollout-lag = 0",
                          w->where, s->index, s->turns ? "is" : "is not");
    if (w->schedule.recorded && w->fork && (int64_t)s->rollout < w->first - w->schedule.max_delay)
        return INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "%.1000s: sample %" PRId64 " is in flight, %" PRId64
            " rollouts after its turn: a fork gives at least that as rollout-max-delay",
            w->where, s->index, w->first - (int64_t)s->rollout);
    if (odd)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%.1000s: \"%s\" of sample %" PRId64 " cannot be",
                          w->where, odd, s->index);
    if (!has_prompt(s, invar_dataset_find(w->data, s->data.line)))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s: sample %" PRId64 " is in flight, and line %" PRId64
                          " of prompt-data is not its prompt: a fork keeps the data, unless its "
                          "checkpoint has no such file",
                          w->where, s->index, s->data.line);
    if (s->n_tokens > limit || (s->n_tokens == limit && s->finish == INVAR_FINISH_NONE))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s: sample %" PRId64 " is in flight with %" PRId64
                          " tokens, and the recipe allows %" PRId64
                          ": give a larger rollout-max-response-len or rollout-max-context-len",
                          w->where, s->index, s->n_tokens, limit);
    return INVAR_OK;
}

static invar_status check_tokenizer(const invar_rollout_header *header,
                                    const invar_inflight_expectation *w)
{
    if (invar_digest_equal(&header->tokenizer, &w->tokenizer))
        return INVAR_OK;
    return INVAR_FAIL(
        INVAR_E_INVALID, 0,
        "%.1000s: samples in flight are of another tokenizer: a fork keeps it, unless "
        "its checkpoint has no such file",
        w->where);
}

/* Returns the number of samples per rollout; -1 if rollouts have different numbers. */
static int64_t samples_per_rollout(const invar_rl_samples *all)
{
    int64_t each = 0, count = 0;

    for (int64_t i = 0; i < all->count; i++) {
        count++;
        if (i + 1 < all->count && all->items[i + 1].rollout == all->items[i].rollout)
            continue;
        if (each > 0 && count != each)
            return -1;
        each = count;
        count = 0;
    }
    return each;
}

/*
 * Returns true if the file is of a run that keeps surplus: only such runs have samples of earlier
 * rollouts, or rollouts of different sizes.
 */
static bool has_surplus(const invar_rl_samples *all, int64_t first)
{
    return samples_per_rollout(all) < 0 ||
           (all->count > 0 && (int64_t)all->items[0].rollout < first);
}

/*
 * Fails if a fork has another rollout-schedule than the file. With a declared schedule the header
 * names the rollout that is next, even if surplus of earlier ones exists; with a recorded schedule
 * it names the rollout of the first sample, which may be late.
 */
static invar_status check_schedule(const invar_rollout_file *data,
                                   const invar_inflight_expectation *w)
{
    const invar_rl_samples *samples = &data->samples;
    int64_t first = data->header.rollout;
    bool bare = false; // a sample has no response tokens

    if (!w->fork || samples->count == 0)
        return INVAR_OK;
    for (int64_t i = 0; i < samples->count; i++)
        bare = bare || invar_rl_sample_response(&samples->items[i]) == 0;
    if (w->schedule.recorded ? first == (int64_t)samples->items[0].rollout
                             : first == w->first && !bare)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.1000s: samples in flight are of another rollout-schedule: a fork keeps "
                      "it, or begins from a checkpoint without such a file",
                      w->where);
}

/* Fails unless the number of samples is one that the recipe can have in flight. */
static invar_status check_count(const invar_rollout_file *data, const invar_inflight_expectation *w)
{
    int64_t count = data->samples.count, each = w->round * w->per_prompt;
    bool so_many = w->schedule.recorded ? count == w->schedule.lag * each
                                        : count % (w->schedule.surplus ? w->per_prompt : each) == 0;

    if (w->fork && !w->schedule.surplus && !w->schedule.recorded)
        so_many = samples_per_rollout(&data->samples) == each;
    if (data->header.n_samples_per_prompt == w->per_prompt && so_many)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.1000s has %" PRId64 " samples in flight, %" PRId64
                      " of each prompt, and the recipe begins %" PRId64 " prompts with %" PRId64
                      " of each: a fork keeps these numbers (n-samples-per-prompt, "
                      "rollout-batch-size, over-sampling-batch-size; of a recorded schedule also "
                      "rollout-lag)",
                      w->where, count, data->header.n_samples_per_prompt, w->round, w->per_prompt);
}

/* Checks all samples. *first_out = first rollout in flight, *out = number of begun rollouts. */
static invar_status check_samples(int64_t *first_out, int64_t *out, const invar_rollout_file *data,
                                  const invar_inflight_expectation *w)
{
    const invar_rl_samples *samples = &data->samples;
    coords_cursor at = {.now = {-1, -1}, .last = {w->first, -1}};

    for (int64_t i = 0; i < samples->count; i++) {
        advance_cursor(&at, &samples->items[i], i, w);
        INVAR_TRY(check_sample(&samples->items[i], i, &at.now, w));
    }
    *first_out = w->first;
    if (w->schedule.recorded && samples->count > 0) {
        *first_out = samples->items[0].rollout;
        *out = w->first + w->schedule.lag -
               *first_out; // the last rollouts may have no group left in the file
        return INVAR_OK;
    }
    *out = at.last.draw < 0 ? 0 : at.last.rollout - w->first + 1;
    if (samples->count > 0 && *out <= INVAR_LAG_MAX && data->header.rollout == w->first)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%.1000s has %" PRId64 " rollouts from %" PRId64
                      " on; expected 1 to %d from %" PRId64 " on",
                      w->where, *out, data->header.rollout, INVAR_LAG_MAX, w->first);
}

/* Moves a sample of the file to *out and restores the members that the file does not have. */
static invar_status restore_sample(invar_inflight *out, invar_rl_sample *from,
                                   const invar_inflight_expectation *w)
{
    bool surplus = is_surplus(from, w);
    const invar_prompt *p = invar_dataset_find(w->data, from->data.line);
    invar_rl_sample *s;

    INVAR_TRY(invar_rl_samples_append(
        &s, surplus ? &out->surplus : &out->started[(int64_t)from->rollout - out->first]));
    *s = *from;
    *from = (invar_rl_sample){0};
    s->data.prompt = p->text;
    s->data.label = p->label;
    s->data.metadata = p->metadata;
    s->weights.last_from = s->n_tokens;
    if (surplus || w->multi_turn)
        return INVAR_OK;
    s->reward =
        0; // files of older versions have rewards; they are computed when the rollout is trained on
    invar_reward_parts_release(&s->parts);
    if (s->finish != INVAR_FINISH_NONE)
        return INVAR_OK;
    invar_free(s->response); // unfinished samples have no text
    s->response = NULL;
    s->response_bytes = 0;
    return INVAR_OK;
}

invar_status invar_inflight_parse(invar_inflight *out, const char *text, size_t bytes,
                                  const invar_inflight_expectation *wants)
{
    invar_inflight_expectation w = *wants;
    invar_rollout_file data;
    int64_t first, rollouts;
    invar_status status;

    INVAR_TRY(invar_rollout_file_parse(&data, w.where, text, bytes));
    w.schedule.surplus = !w.schedule.recorded &&
                         (w.schedule.surplus || (w.fork && has_surplus(&data.samples, w.first)));
    status = check_tokenizer(&data.header, &w);
    if (status == INVAR_OK)
        status = check_schedule(&data, &w);
    if (status == INVAR_OK)
        status = check_count(&data, &w);
    if (status == INVAR_OK)
        status = check_samples(&first, &rollouts, &data, &w);
    if (status == INVAR_OK) {
        out->first = first;
        out->count = rollouts;
    }
    for (int64_t i = 0; i < data.samples.count && status == INVAR_OK; i++)
        status = restore_sample(out, &data.samples.items[i], &w);
    if (status != INVAR_OK)
        invar_inflight_release(out);
    invar_rollout_file_release(&data);
    return status;
}
