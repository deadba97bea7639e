/*
 * multi_turn.c - runs the turns of multi-turn samples and applies the replies of the plug-in.
 *
 * A round has three steps: sample the next turn of all unfinished samples (in one wave per set of
 * stop strings), ask the plug-in on rank 0, and insert tokens or finish samples as it replied. The
 * reply is validated on rank 0 and then broadcast as bytes; other ranks parse the same bytes, so
 * every rank has the same samples. Samples are packed side by side for a run and return to their
 * indexes afterwards.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/multi_turn.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/config/config.h"
#include "engine/ranks/layout/rank_collectives.h"
#include "engine/sample/source/generate.h"

#include "base/invar_banned.h"

#define NAME "custom-generate-function-path"
#define PHASE "turns"

/* ---- set-up ---------------------------------------------------------------------------------- */

invar_status invar_multi_turn_attach(invar_plugin **out, const invar_config *config, bool stored)
{
    const invar_plugin_options o = {.name = NAME,
                                    .spec = stored ? NULL : config->custom_generate_function_path,
                                    .kinds = INVAR_PLUGIN_KIND_GENERATE,
                                    .timeout = (double)config->plugin_timeout,
                                    .restarts = config->max_restarts,
                                    .log_fd = 2};

    *out = NULL;
    return config->custom_generate_function_path[0] ? invar_plugin_open(out, &o) : INVAR_OK;
}

invar_multi_turn invar_multi_turn_read(const invar_config *config, invar_plugin *plugin,
                                       const invar_model_spec *spec,
                                       const invar_tokenizer *tokenizer)
{
    return (invar_multi_turn){.enabled = config->custom_generate_function_path[0],
                              .plugin = plugin,
                              .max_turns = config->rollout_max_turns,
                              .max_turn_tokens = config->rollout_max_turn_len,
                              .positions = spec->max_positions,
                              .tokenizer = tokenizer};
}

/* ---- state ----------------------------------------------------------------------------------- */

/* Turn state of one sample. */
typedef struct turn_state {
    int64_t turn;                  /* number of the newest turn, from 1 */
    int64_t first;                 /* index of the first token of the newest turn */
    int64_t longest;               /* largest number of tokens of the next turn; 0 for no limit */
    invar_turn_stop_strings *stop; /* stop strings of the next turn; NULL for the recipe's; owned */
    int64_t wave; /* samples with equal stop strings are sampled in one wave; -1 to skip the turn */
    char *text;   /* text of the newest turn; owned */
    size_t text_bytes;
    bool full; /* inserting the tokens would leave no space for a turn, so the sample must end */
    bool ended;
    bool judged; /* the reward source computes the reward */
} turn_state;

/* All samples of one multi-turn run. */
typedef struct multi_turn_run {
    const invar_generate_args *how;
    invar_rl_sample *samples; /* (count) */
    turn_state *states;       /* (count) */
    int64_t count;
    int64_t *asked;           /* (n_asked) indexes of samples that have not ended */
    invar_rl_sample *moved;   /* (count) selected samples, packed side by side */
    invar_plugin_turn *turns; /* (n_asked) input of the plug-in */
    invar_turn_action *next;  /* (n_asked) reply of the plug-in */
    int64_t n_asked;
} multi_turn_run;

/* Returns the number of tokens that the sample may still get. */
static int64_t remaining_tokens(const multi_turn_run *d, const invar_rl_sample *s)
{
    const invar_sampling_params *p = &d->how->sampling;
    int64_t context = p->max_context ? p->max_context : d->how->turns.positions;
    int64_t most = s->prompt_tokens + p->max_response;

    return (context < most ? context : most) - s->n_tokens;
}

static bool is_last_turn(const multi_turn_run *d, int64_t i)
{
    const turn_state *t = &d->states[i];

    return t->full || t->turn >= d->how->turns.max_turns || remaining_tokens(d, &d->samples[i]) < 1;
}

static invar_status alloc_run(multi_turn_run *d)
{
    size_t count = (size_t)d->count;

    INVAR_TRY(INVAR_ALLOC(d->states, count, "turns of samples"));
    for (size_t i = 0; i < count; i++)
        d->states[i] = (turn_state){.longest = d->how->turns.max_turn_tokens};
    INVAR_TRY(INVAR_ALLOC_ZEROED(d->next, count, "what follows turns"));
    INVAR_TRY(INVAR_ALLOC(d->asked, count, "samples with turns"));
    INVAR_TRY(INVAR_ALLOC(d->moved, count, "samples with turns"));
    return INVAR_ALLOC(d->turns, count, "turns for a plug-in");
}

static void release_turn_state(turn_state *t)
{
    invar_free(t->text);
    invar_free(t->stop);
}

static void release_run(multi_turn_run *d)
{
    for (int64_t i = 0; d->states && i < d->count; i++)
        release_turn_state(&d->states[i]);
    for (int64_t i = 0; d->next && i < d->count; i++)
        invar_turn_action_release(&d->next[i]);
    invar_free(d->turns);
    invar_free(d->moved);
    invar_free(d->asked);
    invar_free(d->next);
    invar_free(d->states);
}

static void list_unfinished(multi_turn_run *d)
{
    d->n_asked = 0;
    for (int64_t i = 0; i < d->count; i++)
        if (!d->states[i].ended)
            d->asked[d->n_asked++] = i;
}

/* ---- sampling a turn ------------------------------------------------------------------------- */

typedef bool selects_fn(const turn_state *t, int64_t wave);
typedef invar_status run_fn(const invar_generate_args *how, invar_rl_sample *samples,
                            int64_t count);

/*
 * Calls `run` with the samples for which `chosen` is true, packed side by side. They return to
 * their indexes also after a failure.
 */
static invar_status run_selected(multi_turn_run *d, const invar_generate_args *how, run_fn *run,
                                 selects_fn *chosen, int64_t wave)
{
    invar_status status = INVAR_OK;
    int64_t n = 0;

    for (int64_t i = 0; i < d->count; i++)
        if (chosen(&d->states[i], wave))
            d->moved[n++] = d->samples[i];
    if (n > 0)
        status = run(how, d->moved, n);
    n = 0;
    for (int64_t i = 0; i < d->count; i++)
        if (chosen(&d->states[i], wave))
            d->samples[i] = d->moved[n++];
    return status;
}

static bool is_in_wave(const turn_state *t, int64_t wave)
{
    return t->wave == wave;
}

static bool have_equal_stops(const invar_turn_stop_strings *a, const invar_turn_stop_strings *b)
{
    bool same = !a == !b && (!a || a->count == b->count);

    for (int64_t i = 0; same && a && i < a->count; i++)
        same = strcmp(a->strings[i], b->strings[i]) == 0;
    return same;
}

/* Returns the wave of sample i: that of an earlier sample with equal stop strings, else `next`. */
static int64_t wave_of(const multi_turn_run *d, int64_t i, int64_t next)
{
    const turn_state *t = &d->states[i];

    if (t->ended || t->full)
        return -1;
    for (int64_t j = 0; j < i; j++)
        if (d->states[j].wave >= 0 && have_equal_stops(t->stop, d->states[j].stop))
            return d->states[j].wave;
    return next;
}

/* Samples the turns of a wave, with the stop strings of its first sample. */
static invar_status sample_wave(multi_turn_run *d, const invar_generate_args *how, int64_t wave)
{
    invar_generate_args own = *how;
    int64_t i = 0;

    while (d->states[i].wave != wave)
        i++;
    if (d->states[i].stop) {
        own.sampling.stop = d->states[i].stop->strings;
        own.sampling.n_stop = d->states[i].stop->count;
    }
    return run_selected(d, &own, invar_generate_turn, is_in_wave, wave);
}

/*
 * Samples the next turn of all unfinished samples. Only the first turn keeps groups on one engine,
 * where they share their prompt; later turns are spread by sample.
 */
static invar_status sample_turns(multi_turn_run *d, bool first)
{
    invar_generate_args how = *d->how;
    int64_t waves = 0;

    if (!first)
        how.per_prompt = 1;
    for (int64_t i = 0; i < d->count; i++) {
        d->states[i].wave = wave_of(d, i, waves);
        waves += d->states[i].wave == waves;
    }
    for (int64_t i = 0; i < d->count; i++) {
        invar_rl_sample *s = &d->samples[i];
        turn_state *t = &d->states[i];

        if (t->ended)
            continue;
        t->first = s->n_tokens;
        t->turn += !t->full;
        s->turns = t->turn;
        s->suspend_at = t->longest ? s->n_tokens + t->longest : 0;
        s->finish = INVAR_FINISH_NONE;
    }
    for (int64_t wave = 0; wave < waves; wave++)
        INVAR_TRY(sample_wave(d, &how, wave));
    return INVAR_OK;
}

/* ---- input of the plug-in -------------------------------------------------------------------- */

static invar_status decode_tokens(char **out, size_t *bytes_out, const multi_turn_run *d,
                                  const int32_t *ids, int64_t count)
{
    invar_free(*out);
    *out = NULL;
    return invar_tokenizer_decode(out, bytes_out, d->how->turns.tokenizer, ids, count,
                                  d->how->sampling.skip_special);
}

static invar_status prepare_plugin_turns(multi_turn_run *d)
{
    for (int64_t k = 0; k < d->n_asked; k++) {
        invar_rl_sample *s = &d->samples[d->asked[k]];
        turn_state *t = &d->states[d->asked[k]];

        s->suspend_at = 0;
        if (s->finish == INVAR_FINISH_NONE) // suspended at the limit of the turn or of the context
            s->finish = INVAR_FINISH_LENGTH;
        INVAR_TRY(decode_tokens(&t->text, &t->text_bytes, d, s->tokens + t->first,
                                s->n_tokens - t->first));
        INVAR_TRY(invar_rollout_decode(s, d->how->turns.tokenizer, d->how->sampling.skip_special));
        d->turns[k] = (invar_plugin_turn){.turn = t->turn,
                                          .turns = d->how->turns.max_turns,
                                          .text = t->text,
                                          .text_bytes = t->text_bytes,
                                          .first = t->first,
                                          .room = remaining_tokens(d, s),
                                          .last = is_last_turn(d, d->asked[k])};
        invar_plugin_sample_view(&d->turns[k].sample, s);
    }
    return INVAR_OK;
}

/* ---- reply of the plug-in -------------------------------------------------------------------- */

static invar_status tokenize_action(invar_turn_action *next, const invar_tokenizer *tokenizer,
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

/* Validates a reply. Tokenizes its text, and checks that all tokens are in the vocabulary. */
static invar_status resolve_action(const multi_turn_run *d, int64_t k)
{
    const invar_tokenizer *tokenizer = d->how->turns.tokenizer;
    int64_t index = d->samples[d->asked[k]].index;
    invar_turn_action *next = &d->next[k];

    if (next->end)
        return INVAR_OK;
    if (is_last_turn(d, d->asked[k]))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "plug-in " NAME ": sample %" PRId64
                          " continues after its last turn; answer {\"end\": true} where \"last\" "
                          "is true",
                          index);
    if (next->text)
        INVAR_TRY(tokenize_action(next, tokenizer, index));
    for (int64_t i = 0; i < next->n_tokens; i++)
        if (next->tokens[i] >= invar_tokenizer_size(tokenizer))
            return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                              "plug-in " NAME ": token %" PRId32 " for sample %" PRId64
                              "; the tokenizer has %" PRId64,
                              next->tokens[i], index, invar_tokenizer_size(tokenizer));
    return INVAR_OK;
}

static invar_status resolve_all(const multi_turn_run *d)
{
    for (int64_t k = 0; k < d->n_asked; k++)
        INVAR_TRY(resolve_action(d, k));
    return INVAR_OK;
}

/* Asks the plug-in, on rank 0, and validates its reply before other ranks receive it. */
static invar_status ask_plugin(const char **reply_out, int64_t *bytes_out, multi_turn_run *d)
{
    invar_plugin *plugin = d->how->turns.plugin;
    invar_plugin_replies replies;

    INVAR_TRY(invar_plugin_generate(plugin, d->turns, (size_t)d->n_asked, d->next));
    INVAR_TRY(resolve_all(d));
    replies = invar_plugin_get_replies(plugin);
    *reply_out = replies.items[replies.count - 1].data;
    *bytes_out = (int64_t)replies.items[replies.count - 1].bytes;
    return INVAR_OK;
}

/* Broadcasts the bytes of the reply, which other ranks parse themselves. */
static invar_status broadcast_reply(multi_turn_run *d, char *reply, int64_t bytes)
{
    INVAR_TRY(invar_ranks_broadcast(d->how->layout, PHASE, 0, reply, (size_t)bytes));
    if (invar_ranks_is_leader(d->how->layout))
        return INVAR_OK;
    INVAR_TRY(invar_plugin_generate_read(NAME, reply, (size_t)bytes, (size_t)d->n_asked, d->next));
    return resolve_all(d);
}

static invar_status query_plugin(multi_turn_run *d)
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
    INVAR_TRY(INVAR_ALLOC(reply, (size_t)bytes, "a reply of a plug-in"));
    if (own)
        memcpy(reply, own, (size_t)bytes);
    status = broadcast_reply(d, reply, bytes);
    invar_free(reply);
    return status;
}

/*
 * Appends tokens of the plug-in, with log-prob and mask 0. The routing of their rows is zero until
 * the next turn computes it.
 */
static invar_status insert_tokens(invar_rl_sample *s, const int32_t *tokens, int64_t count)
{
    INVAR_TRY(invar_rl_sample_reserve(s, invar_rl_sample_response(s) + count));
    memcpy(s->tokens + s->n_tokens, tokens, (size_t)count * sizeof *tokens);
    s->n_tokens += count;
    return INVAR_OK;
}

static invar_status end_sample(const multi_turn_run *d, int64_t i, invar_turn_action *next)
{
    invar_rl_sample *s = &d->samples[i];

    d->states[i].ended = true;
    s->has_plugin_reward = next->rewarded;
    if (!next->rewarded)
        return INVAR_OK;
    s->reward = next->reward;
    invar_reward_parts_release(&s->parts);
    s->parts = next->parts;
    next->parts = (invar_reward_parts){NULL, 0};
    return invar_reward_select_part(s, d->how->reward_source.key);
}

static invar_status apply_action(multi_turn_run *d, int64_t k)
{
    invar_turn_action *next = &d->next[k];
    int64_t i = d->asked[k];

    if (next->end)
        return end_sample(d, i, next);
    invar_free(d->states[i].stop);
    d->states[i].stop = next->stop;
    next->stop = NULL;
    d->states[i].longest = next->max_tokens ? next->max_tokens : d->how->turns.max_turn_tokens;
    d->states[i].full = next->n_tokens >= remaining_tokens(d, &d->samples[i]);
    if (d->states[i].full || next->n_tokens == 0)
        return INVAR_OK;
    return insert_tokens(&d->samples[i], next->tokens, next->n_tokens);
}

static invar_status run_round(multi_turn_run *d, bool first)
{
    INVAR_TRY(sample_turns(d, first));
    INVAR_TRY(prepare_plugin_turns(d));
    INVAR_TRY(query_plugin(d));
    for (int64_t k = 0; k < d->n_asked; k++) {
        INVAR_TRY(apply_action(d, k));
        invar_turn_action_release(&d->next[k]);
    }
    return INVAR_OK;
}

/* ---- interface ------------------------------------------------------------------------------- */

static bool is_judged(const turn_state *t, int64_t wave)
{
    (void)wave;
    return t->judged;
}

static invar_status check_judged(const multi_turn_run *d)
{
    for (int64_t i = 0; i < d->count && d->how->needs_reward; i++)
        if (!d->samples[i].has_plugin_reward)
            INVAR_TRY(invar_generate_check_has_reward(d->how, &d->samples[i], NAME));
    return INVAR_OK;
}

static invar_status run_all_turns(multi_turn_run *d)
{
    INVAR_TRY(alloc_run(d));
    for (list_unfinished(d); d->n_asked > 0; list_unfinished(d))
        INVAR_TRY(run_round(d, d->n_asked == d->count && d->states[0].turn == 0));
    INVAR_TRY(check_judged(d));
    for (int64_t i = 0; i < d->count; i++)
        d->states[i].judged = invar_generate_needs_reward(d->how, d->samples, d->count, i);
    return run_selected(d, d->how, invar_generate_all_rewards, is_judged, 0);
}

invar_status invar_multi_turn_run(const invar_generate_args *how, invar_rl_sample *samples,
                                  int64_t count)
{
    multi_turn_run d = {.how = how, .samples = samples, .count = count};
    invar_status status = run_all_turns(&d);

    release_run(&d);
    return status;
}
