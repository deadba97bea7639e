/*
 * collect.c - the samples of a rollout: generated, judged and filtered; or the data's answers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/rollout/group.h"
#include "engine/run/loop.h"

#include "base/invar_banned.h"

/* ---- new samples ----------------------------------------------------------------------------- */

static invar_status new_sample(invar_rl_sample **out, invar_loop *loop, invar_rl_samples *to,
                               const invar_prompt *p)
{
    invar_rl_sample *s;

    INVAR_TRY(invar_rl_samples_append(&s, to));
    s->index = loop->place.samples++;
    s->rollout = (uint32_t)loop->place.rollout;
    s->weights = loop->place.weights;
    s->weights_hash = loop->weights_hash;
    *out = s;
    return invar_session_ask(s, p);
}

const invar_prompt *invar_loop_next_prompt(invar_loop *loop)
{
    const invar_recipe *r = loop->recipe;

    return invar_dataset_next(loop->session.data, &loop->place.cursor,
                              invar_recipe_bool(r, INVAR_KEY_ROLLOUT_SHUFFLE),
                              (uint32_t)invar_recipe_int(r, INVAR_KEY_ROLLOUT_SEED));
}

/* `place` counts the prompts of this rollout, also those of groups that were dropped. */
static invar_status add_group(invar_loop *loop, invar_rl_samples *to, int64_t place)
{
    const invar_prompt *p = invar_loop_next_prompt(loop);
    int64_t n = loop->set.per_prompt, group = loop->place.groups++;

    if (place >= UINT32_MAX / n)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%" PRId64 " prompts with %" PRId64
                          " samples each are more than a rollout can number",
                          place + 1, n);
    for (int64_t j = 0; j < n; j++) {
        invar_rl_sample *s;
        INVAR_TRY(new_sample(&s, loop, to, p));
        s->group = group;
        s->draw = (uint32_t)(place * n + j);
    }
    return INVAR_OK;
}

/* ---- filtering ------------------------------------------------------------------------------- */

/* keep_out (groups); samples that the plug-in removes stay, masked. */
static invar_status filter(bool *keep_out, invar_loop *loop, invar_rl_sample *samples,
                           int64_t groups)
{
    int64_t n = loop->set.per_prompt;
    invar_plugin *plugin = loop->plugins[INVAR_LOOP_FILTER];
    bool spread = invar_recipe_enum(loop->recipe, INVAR_KEY_DYNAMIC_SAMPLING_FILTER) != 0;
    uint8_t *verdict = NULL;
    float *rewards = NULL;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&rewards, (size_t)n, sizeof *rewards, "rewards of a group"));
    status = invar_alloc((void **)&verdict, (size_t)(groups * n), 1, "verdicts of the filter");
    if (status == INVAR_OK && plugin)
        status = invar_plugin_filter(plugin, samples, groups * n, verdict);
    for (int64_t g = 0; g < groups && status == INVAR_OK; g++) {
        keep_out[g] = true;
        for (int64_t j = 0; j < n; j++) {
            rewards[j] = (float)samples[g * n + j].reward;
            if (plugin && verdict[g * n + j] == INVAR_PLUGIN_DROP)
                keep_out[g] = false;
            if (plugin && verdict[g * n + j] == INVAR_PLUGIN_REMOVE)
                samples[g * n + j].removed = true;
        }
        if (spread && !invar_rl_group_keeps(rewards, n))
            keep_out[g] = false;
    }
    invar_free(verdict);
    invar_free(rewards);
    return status;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static invar_status tick(void *payload, int64_t samples_done, int64_t tokens_done)
{
    const invar_loop *loop = payload;

    if (loop->options->progress)
        loop->options->progress(
            loop->options->payload,
            &(invar_train_progress){.rollout = loop->place.rollout,
                                    .rollouts = loop->set.rollouts,
                                    .step = loop->place.step,
                                    .phase = "rollout",
                                    .samples_done = samples_done,
                                    .samples = loop->set.prompts * loop->set.per_prompt,
                                    .tokens_done = tokens_done});
    return INVAR_OK;
}

/* Moves the chosen groups to the batch; the others are forgotten. */
static invar_status take_groups(invar_loop *loop, invar_rl_samples *round,
                                const invar_group_fate *fates, int64_t groups)
{
    int64_t n = loop->set.per_prompt;

    for (int64_t i = 0; i < groups * n; i++) {
        invar_rl_sample *s;
        if (fates[i / n] != INVAR_GROUP_BATCH) {
            loop->dropped_groups += i % n == 0;
            continue;
        }
        INVAR_TRY(invar_rl_samples_append(&s, &loop->batch));
        *s = round->items[i];
        round->items[i] = (invar_rl_sample){0};
    }
    return INVAR_OK;
}

static invar_status run_round(invar_loop *loop, invar_group_choice *choice, int64_t groups,
                              invar_rl_samples *round)
{
    invar_sampling sampling = invar_session_sampling(&loop->session);
    invar_group_fate *fates = NULL;
    bool *keep = NULL;
    invar_status status = INVAR_OK;

    for (int64_t g = 0; g < groups && status == INVAR_OK; g++)
        status = add_group(loop, round, choice->consumed + g);
    if (status == INVAR_OK)
        status =
            invar_rollout_run(loop->rollout, round->items, round->count, &sampling, tick, loop);
    if (status == INVAR_OK)
        status = invar_judge_run(&loop->judge, round->items, round->count);
    if (status == INVAR_OK)
        status = invar_alloc((void **)&fates, (size_t)groups, sizeof *fates, "fates of groups");
    if (status == INVAR_OK)
        status = invar_alloc((void **)&keep, (size_t)groups, sizeof *keep, "groups to keep");
    if (status == INVAR_OK)
        status = filter(keep, loop, round->items, groups);
    if (status == INVAR_OK) {
        invar_group_choice_take(fates, choice, keep);
        status = take_groups(loop, round, fates, groups);
    }
    invar_free(keep);
    invar_free(fates);
    return status;
}

int64_t invar_loop_most_rounds(const invar_loop *loop, int64_t round)
{
    return 2 * (invar_dataset_size(loop->session.data) / round + 1) + loop->set.prompts;
}

int64_t invar_loop_round_size(const invar_loop *loop)
{
    int64_t over = invar_recipe_int(loop->recipe, INVAR_KEY_OVER_SAMPLING_BATCH_SIZE);

    return over ? over : loop->set.prompts;
}

static invar_status generate(invar_loop *loop)
{
    int64_t size = invar_loop_round_size(loop);
    invar_group_choice choice;

    INVAR_TRY(invar_group_choice_init(&choice, loop->set.prompts, size,
                                      invar_loop_most_rounds(loop, size)));
    for (;;) {
        invar_rl_samples round = {0};
        invar_status status;
        int64_t groups;

        INVAR_TRY(invar_group_choice_next(&groups, &choice));
        if (groups == 0)
            return INVAR_OK;
        status = run_round(loop, &choice, groups, &round);
        invar_rl_samples_reset(&round);
        INVAR_TRY(status);
    }
}

/* ---- answers of the data --------------------------------------------------------------------- */

invar_status invar_loop_answer(invar_rl_sample *s, const invar_prompt *p)
{
    s->finish = INVAR_FINISH_STOP;
    s->n_tokens += p->n_answer;
    memcpy(s->tokens + p->n_tokens, p->answer, (size_t)p->n_answer * sizeof *s->tokens);
    INVAR_TRY(invar_alloc((void **)&s->mask, (size_t)p->n_answer, 1, "a loss mask"));
    memcpy(s->mask, p->answer_mask, (size_t)p->n_answer);
    return INVAR_OK;
}

static invar_status from_answers(invar_loop *loop)
{
    for (int64_t i = 0; i < loop->set.prompts * loop->set.per_prompt; i++) {
        const invar_prompt *p = invar_loop_next_prompt(loop);
        invar_rl_sample *s;

        INVAR_TRY(new_sample(&s, loop, &loop->batch, p));
        s->group = loop->place.groups++;
        INVAR_TRY(invar_loop_answer(s, p));
    }
    return INVAR_OK;
}

invar_status invar_loop_collect(invar_loop *loop)
{
    const char *from = invar_recipe_string(loop->recipe, INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA);
    const char *to = invar_recipe_string(loop->recipe, INVAR_KEY_SAVE_DEBUG_ROLLOUT_DATA);

    loop->own_weights = true;
    for (int i = INVAR_LOOP_REWARD; i <= INVAR_LOOP_FILTER; i++)
        INVAR_TRY(invar_loop_begin_plugin(loop, i));
    if (from[0])
        INVAR_TRY(invar_loop_load_rollout(loop, from));
    else
        INVAR_TRY(loop->set.sft ? from_answers(loop) : generate(loop));
    return to[0] ? invar_loop_save_rollout(loop, to) : INVAR_OK;
}
