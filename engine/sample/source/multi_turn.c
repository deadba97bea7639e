/*
 * multi_turn.c - rounds of turns, and what a plug-in puts between them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/multi_turn.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/config/config.h"
#include "engine/ranks/layout/rank_collectives.h"
#include "engine/rl/estimator.h"
#include "engine/sample/source/generate.h"

#include "base/invar_banned.h"

#define NAME "custom-generate-function-path"
#define PHASE "turns"

/* ---- who leads ------------------------------------------------------------------------------- */

invar_status invar_multi_turn_attach(invar_plugin **out, const invar_recipe *recipe, bool stored)
{
    const char *spec = invar_recipe_string(recipe, INVAR_KEY_CUSTOM_GENERATE_FUNCTION_PATH);
    const invar_plugin_options o = {.name = NAME,
                                    .spec = stored ? NULL : spec,
                                    .kinds = INVAR_PLUGIN_KIND_GENERATE,
                                    .timeout =
                                        (double)invar_recipe_int(recipe, INVAR_KEY_PLUGIN_TIMEOUT),
                                    .restarts = invar_recipe_int(recipe, INVAR_KEY_MAX_RESTARTS),
                                    .log_fd = 2};

    *out = NULL;
    return spec[0] ? invar_plugin_open(out, &o) : INVAR_OK;
}

invar_multi_turn invar_multi_turn_read(const invar_recipe *recipe, invar_plugin *plugin,
                                       const invar_model_spec *spec,
                                       const invar_tokenizer *tokenizer)
{
    const invar_estimator estimator =
        INVAR_RECIPE_ENUM(invar_estimator, recipe, INVAR_KEY_ADVANTAGE_ESTIMATOR);

    return (invar_multi_turn){
        .enabled = invar_recipe_string(recipe, INVAR_KEY_CUSTOM_GENERATE_FUNCTION_PATH)[0],
        .plugin = plugin,
        .max_turns = invar_recipe_int(recipe, INVAR_KEY_ROLLOUT_MAX_TURNS),
        .longest = invar_recipe_int(recipe, INVAR_KEY_ROLLOUT_MAX_TURN_LEN),
        .judged = invar_estimator_traits_of(estimator)->needs_reward,
        .positions = spec->max_positions,
        .tokenizer = tokenizer};
}

/* ---- a dialogue ------------------------------------------------------------------------------ */

/* A sample on its way. */
typedef struct talk {
    int64_t turn;                  /* the newest, from 1 */
    int64_t first;                 /* its first token */
    int64_t longest;               /* tokens of the next one; 0: no limit of its own */
    invar_turn_stop_strings *stop; /* strings that end the next one; NULL: the recipe's */
    int64_t wave; /* those with the same strings are sampled together; -1: it is silent */
    char *text;   /* of the newest */
    size_t text_bytes;
    bool full; /* what was to be inserted leaves no room for a token: it can only end */
    bool ended;
    bool judged; /* the judge is asked of it */
} talk;

typedef struct dialogue {
    const invar_generate_args *how;
    invar_rl_sample *samples; /* (count) */
    talk *talks;              /* (count) */
    int64_t count;
    int64_t *asked;           /* (n_asked) those that have not ended */
    invar_rl_sample *moved;   /* (count) some of them, side by side */
    invar_plugin_turn *turns; /* (n_asked) */
    invar_turn_action *next;  /* (n_asked) */
    int64_t n_asked;
} dialogue;

/* Tokens that the sample may still get. */
static int64_t room_of(const dialogue *d, const invar_rl_sample *s)
{
    const invar_sampling_params *p = d->how->sampling;
    int64_t context = p->max_context ? p->max_context : d->how->turns->positions;
    int64_t most = s->prompt_tokens + p->max_response;

    return (context < most ? context : most) - s->n_tokens;
}

static bool is_last(const dialogue *d, int64_t i)
{
    const talk *t = &d->talks[i];

    return t->full || t->turn >= d->how->turns->max_turns || room_of(d, &d->samples[i]) < 1;
}

static invar_status dialogue_begin(dialogue *d)
{
    size_t count = (size_t)d->count;

    INVAR_TRY(invar_alloc((void **)&d->talks, count, sizeof *d->talks, "turns of samples"));
    for (size_t i = 0; i < count; i++)
        d->talks[i] = (talk){.longest = d->how->turns->longest};
    INVAR_TRY(invar_alloc((void **)&d->next, count, sizeof *d->next, "what follows turns"));
    memset(d->next, 0, count * sizeof *d->next);
    INVAR_TRY(invar_alloc((void **)&d->asked, count, sizeof *d->asked, "samples with turns"));
    INVAR_TRY(invar_alloc((void **)&d->moved, count, sizeof *d->moved, "samples with turns"));
    return invar_alloc((void **)&d->turns, count, sizeof *d->turns, "turns for a plug-in");
}

static void release_talk(talk *t)
{
    invar_free(t->text);
    invar_free(t->stop);
}

static void dialogue_release(dialogue *d)
{
    for (int64_t i = 0; d->talks && i < d->count; i++)
        release_talk(&d->talks[i]);
    for (int64_t i = 0; d->next && i < d->count; i++)
        invar_turn_action_release(&d->next[i]);
    invar_free(d->turns);
    invar_free(d->moved);
    invar_free(d->asked);
    invar_free(d->next);
    invar_free(d->talks);
}

static void list_asked(dialogue *d)
{
    d->n_asked = 0;
    for (int64_t i = 0; i < d->count; i++)
        if (!d->talks[i].ended)
            d->asked[d->n_asked++] = i;
}

/* ---- the model's turn ------------------------------------------------------------------------ */

typedef bool choice(const talk *t, int64_t wave);
typedef invar_status work(const invar_generate_args *how, invar_rl_sample *samples, int64_t count);

/*
 * Runs `run` on the samples that `chosen` says, side by side, and has them back in their places,
 * whatever comes of it.
 */
static invar_status run_some(dialogue *d, const invar_generate_args *how, work *run, choice *chosen,
                             int64_t wave)
{
    invar_status status = INVAR_OK;
    int64_t n = 0;

    for (int64_t i = 0; i < d->count; i++)
        if (chosen(&d->talks[i], wave))
            d->moved[n++] = d->samples[i];
    if (n > 0)
        status = run(how, d->moved, n);
    n = 0;
    for (int64_t i = 0; i < d->count; i++)
        if (chosen(&d->talks[i], wave))
            d->samples[i] = d->moved[n++];
    return status;
}

static bool talk_speaks(const talk *t, int64_t wave)
{
    return t->wave == wave;
}

static bool same_stop(const invar_turn_stop_strings *a, const invar_turn_stop_strings *b)
{
    bool same = !a == !b && (!a || a->count == b->count);

    for (int64_t i = 0; same && a && i < a->count; i++)
        same = strcmp(a->strings[i], b->strings[i]) == 0;
    return same;
}

/* The wave of sample i in this round: that of an earlier one, or `next`, a new one. */
static int64_t wave_of(const dialogue *d, int64_t i, int64_t next)
{
    const talk *t = &d->talks[i];

    if (t->ended || t->full)
        return -1;
    for (int64_t j = 0; j < i; j++)
        if (d->talks[j].wave >= 0 && same_stop(t->stop, d->talks[j].stop))
            return d->talks[j].wave;
    return next;
}

/* A wave's turns: its first sample says which strings end them. */
static invar_status speak_wave(dialogue *d, const invar_generate_args *how, int64_t wave)
{
    invar_sampling_params sampling = *how->sampling;
    invar_generate_args own = *how;
    int64_t i = 0;

    while (d->talks[i].wave != wave)
        i++;
    if (d->talks[i].stop) {
        sampling.stop = d->talks[i].stop->strings;
        sampling.n_stop = d->talks[i].stop->count;
    }
    own.sampling = &sampling;
    return run_some(d, &own, invar_generate_turn, talk_speaks, wave);
}

/* All that go on get a turn. Groups stay together as long as they share what they begin with. */
static invar_status dialogue_speak(dialogue *d, bool first)
{
    invar_generate_args how = *d->how;
    int64_t waves = 0;

    if (!first)
        how.per_prompt = 1;
    for (int64_t i = 0; i < d->count; i++) {
        d->talks[i].wave = wave_of(d, i, waves);
        waves += d->talks[i].wave == waves;
    }
    for (int64_t i = 0; i < d->count; i++) {
        invar_rl_sample *s = &d->samples[i];
        talk *t = &d->talks[i];

        if (t->ended)
            continue;
        t->first = s->n_tokens;
        t->turn += !t->full;
        s->turns = t->turn;
        s->suspend_at = t->longest ? s->n_tokens + t->longest : 0;
        s->finish = INVAR_FINISH_NONE;
    }
    for (int64_t wave = 0; wave < waves; wave++)
        INVAR_TRY(speak_wave(d, &how, wave));
    return INVAR_OK;
}

/* ---- what it said ---------------------------------------------------------------------------- */

static invar_status dialogue_decode(char **out, size_t *bytes_out, const dialogue *d,
                                    const int32_t *ids, int64_t count)
{
    invar_free(*out);
    *out = NULL;
    return invar_tokenizer_decode(out, bytes_out, d->how->turns->tokenizer, ids, count,
                                  d->how->sampling->skip_special);
}

static invar_status dialogue_listen(dialogue *d)
{
    for (int64_t k = 0; k < d->n_asked; k++) {
        invar_rl_sample *s = &d->samples[d->asked[k]];
        talk *t = &d->talks[d->asked[k]];

        s->suspend_at = 0;
        if (s->finish == INVAR_FINISH_NONE) // at the limit of its turn, or of the context
            s->finish = INVAR_FINISH_LENGTH;
        INVAR_TRY(dialogue_decode(&t->text, &t->text_bytes, d, s->tokens + t->first,
                                  s->n_tokens - t->first));
        INVAR_TRY(
            invar_rollout_decode(s, d->how->turns->tokenizer, d->how->sampling->skip_special));
        d->turns[k] = (invar_plugin_turn){.turn = t->turn,
                                          .turns = d->how->turns->max_turns,
                                          .text = t->text,
                                          .text_bytes = t->text_bytes,
                                          .first = t->first,
                                          .room = room_of(d, s),
                                          .last = is_last(d, d->asked[k])};
        invar_plugin_sample_view(&d->turns[k].sample, s);
    }
    return INVAR_OK;
}

/* ---- what follows ---------------------------------------------------------------------------- */

static invar_status turn_action_tokenise(invar_turn_action *next, const invar_tokenizer *tokenizer,
                                         int64_t index)
{
    invar_status status = invar_tokenizer_encode(&next->tokens, &next->n_tokens, tokenizer,
                                                 next->text, next->text_bytes);

    if (status == INVAR_OK || status == INVAR_E_NOMEM)
        return status;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "plug-in " NAME ": the text for sample %" PRId64 ": %.1000s", index,
                      invar_error_last()->message);
}

/* Text becomes tokens, which are all in the vocabulary. */
static invar_status dialogue_resolve(const dialogue *d, int64_t k)
{
    const invar_tokenizer *tokenizer = d->how->turns->tokenizer;
    int64_t index = d->samples[d->asked[k]].index;
    invar_turn_action *next = &d->next[k];

    if (next->end)
        return INVAR_OK;
    if (is_last(d, d->asked[k]))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "plug-in " NAME ": sample %" PRId64
                          " is to go on after its last turn; answer {\"end\": true} where \"last\" "
                          "is true",
                          index);
    if (next->text)
        INVAR_TRY(turn_action_tokenise(next, tokenizer, index));
    for (int64_t i = 0; i < next->n_tokens; i++)
        if (next->tokens[i] >= invar_tokenizer_size(tokenizer))
            return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                              "plug-in " NAME ": token %" PRId32 " for sample %" PRId64
                              "; the tokenizer has %" PRId64,
                              next->tokens[i], index, invar_tokenizer_size(tokenizer));
    return INVAR_OK;
}

static invar_status resolve_all(const dialogue *d)
{
    for (int64_t k = 0; k < d->n_asked; k++)
        INVAR_TRY(dialogue_resolve(d, k));
    return INVAR_OK;
}

/* Rank 0 asks, and knows that the answer makes sense before others get it. */
static invar_status ask_plugin(const char **reply_out, int64_t *bytes_out, dialogue *d)
{
    invar_plugin *plugin = d->how->turns->plugin;
    invar_plugin_replies replies;

    INVAR_TRY(invar_plugin_generate(plugin, d->turns, (size_t)d->n_asked, d->next));
    INVAR_TRY(resolve_all(d));
    replies = invar_plugin_get_replies(plugin);
    *reply_out = replies.items[replies.count - 1].data;
    *bytes_out = (int64_t)replies.items[replies.count - 1].bytes;
    return INVAR_OK;
}

/* The others read the same bytes. */
static invar_status read_reply(dialogue *d, char *reply, int64_t bytes)
{
    INVAR_TRY(invar_ranks_broadcast(d->how->layout, PHASE, 0, reply, (size_t)bytes));
    if (invar_ranks_is_leader(d->how->layout))
        return INVAR_OK;
    INVAR_TRY(invar_plugin_generate_read(NAME, reply, (size_t)bytes, (size_t)d->n_asked, d->next));
    return resolve_all(d);
}

static invar_status dialogue_query(dialogue *d)
{
    const char *own = NULL;
    char *reply = NULL;
    int64_t bytes = 0;
    invar_status status;

    if (invar_ranks_is_leader(d->how->layout))
        INVAR_TRY(ask_plugin(&own, &bytes, d));
    if (!d->how->layout)
        return INVAR_OK;
    INVAR_TRY(invar_ranks_broadcast(d->how->layout, PHASE, 0, &bytes, sizeof bytes));
    INVAR_TRY(invar_alloc((void **)&reply, (size_t)bytes, 1, "a reply of a plug-in"));
    if (own)
        memcpy(reply, own, (size_t)bytes);
    status = read_reply(d, reply, bytes);
    invar_free(reply);
    return status;
}

/* An array of `used` items gets room for more, which are zero. */
static invar_status extend(void **array, int64_t used, int64_t more, size_t size)
{
    char *longer = NULL;

    INVAR_TRY(invar_alloc((void **)&longer, (size_t)(used + more), size, "a sample"));
    if (used > 0)
        memcpy(longer, *array, (size_t)used * size);
    memset(longer + (size_t)used * size, 0, (size_t)more * size);
    invar_free(*array);
    *array = longer;
    return INVAR_OK;
}

/* Neither drawn nor learned; the routing of their rows is computed with the next turn. */
static invar_status rl_sample_insert(invar_rl_sample *s, const int32_t *tokens, int64_t count)
{
    int64_t response = invar_rl_sample_response(s);

    INVAR_TRY(extend((void **)&s->tokens, s->n_tokens, count, sizeof *s->tokens));
    INVAR_TRY(extend((void **)&s->logp, response, count, sizeof *s->logp));
    INVAR_TRY(extend((void **)&s->mask, response, count, sizeof *s->mask));
    if (s->route_size > 0)
        INVAR_TRY(extend((void **)&s->routing, s->n_tokens - 1, count,
                         (size_t)s->route_size * sizeof *s->routing));
    memcpy(s->tokens + s->n_tokens, tokens, (size_t)count * sizeof *tokens);
    s->n_tokens += count;
    return INVAR_OK;
}

static invar_status dialogue_end(const dialogue *d, int64_t i, invar_turn_action *next)
{
    invar_rl_sample *s = &d->samples[i];

    d->talks[i].ended = true;
    s->has_plugin_reward = next->rewarded;
    if (!next->rewarded)
        return INVAR_OK;
    s->reward = next->reward;
    invar_reward_parts_release(&s->parts);
    s->parts = next->parts;
    next->parts = (invar_reward_parts){NULL, 0};
    return invar_reward_select_part(s, d->how->judge->key);
}

static invar_status dialogue_follow(dialogue *d, int64_t k)
{
    invar_turn_action *next = &d->next[k];
    int64_t i = d->asked[k];

    if (next->end)
        return dialogue_end(d, i, next);
    invar_free(d->talks[i].stop);
    d->talks[i].stop = next->stop;
    next->stop = NULL;
    d->talks[i].longest = next->max_tokens ? next->max_tokens : d->how->turns->longest;
    d->talks[i].full = next->n_tokens >= room_of(d, &d->samples[i]);
    if (d->talks[i].full || next->n_tokens == 0)
        return INVAR_OK;
    return rl_sample_insert(&d->samples[i], next->tokens, next->n_tokens);
}

static invar_status run_round(dialogue *d, bool first)
{
    INVAR_TRY(dialogue_speak(d, first));
    INVAR_TRY(dialogue_listen(d));
    INVAR_TRY(dialogue_query(d));
    for (int64_t k = 0; k < d->n_asked; k++) {
        INVAR_TRY(dialogue_follow(d, k));
        invar_turn_action_release(&d->next[k]);
    }
    return INVAR_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static bool is_judged(const talk *t, int64_t wave)
{
    (void)wave;
    return t->judged;
}

static invar_status check_judged(const dialogue *d)
{
    for (int64_t i = 0; i < d->count && d->how->turns->judged; i++)
        if (!d->samples[i].has_plugin_reward)
            INVAR_TRY(invar_generate_check_judge(d->how, &d->samples[i], NAME));
    return INVAR_OK;
}

static invar_status run_all_turns(dialogue *d)
{
    INVAR_TRY(dialogue_begin(d));
    for (list_asked(d); d->n_asked > 0; list_asked(d))
        INVAR_TRY(run_round(d, d->n_asked == d->count && d->talks[0].turn == 0));
    INVAR_TRY(check_judged(d));
    for (int64_t i = 0; i < d->count; i++)
        d->talks[i].judged = invar_generate_is_judged(d->how, d->samples, d->count, i);
    return run_some(d, d->how, invar_generate_judge, is_judged, 0);
}

invar_status invar_multi_turn_run(const invar_generate_args *how, invar_rl_sample *samples,
                                  int64_t count)
{
    dialogue d = {.how = how, .samples = samples, .count = count};
    invar_status status = run_all_turns(&d);

    dialogue_release(&d);
    return status;
}
