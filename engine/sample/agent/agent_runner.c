/*
 * agent_runner.c - sessions of a rollout: from the record or live, drawn anew, kept, made into
 * samples.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/agent/agent_runner.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "engine/files/journal.h"
#include "engine/rl/reward/reward.h"

#include "base/invar_banned.h"

#define WHERE_SIZE 128
#define TEXT_SIZE 1024

struct invar_agents {
    invar_agents_options options;
    invar_agent_server *door; /* NULL: nobody had to come yet */
    invar_session_journal *log;
};

invar_status invar_agents_new(invar_agents **out, const invar_agents_options *options)
{
    INVAR_TRY(invar_alloc((void **)out, 1, sizeof **out, "agents"));
    **out = (invar_agents){.options = *options};
    return INVAR_OK;
}

void invar_agents_free(invar_agents *a)
{
    if (!a)
        return;
    invar_agent_server_close(a->door);
    invar_session_journal_close(a->log);
    invar_free(a);
}

/* ---- sessions of a run ----------------------------------------------------------------------- */

/* A record, and what to do where this program does not draw what it says. */
typedef struct source {
    const char *name, *advice;
} source;

static const source the_log = {
    INVAR_AGENT_LOG,
    "the file was changed, or written by another version: remove it, and the rollout's sessions "
    "begin anew"};
static const source the_ledger = {
    "the ledger",
    "it was changed (invar ledger verify), or another version made the step: take that "
    "one, or start a new run with --run"};
static const source the_record = {
    "agent-record",
    "it is of other weights or settings, or of another version: give the record of a "
    "run with this recipe"};

typedef struct errand {
    invar_agents *agents;
    invar_rl_sample *samples;       /* (count) */
    invar_agent_session *sessions;  /* (count) */
    invar_plugin_reply_slot *slots; /* (count) */
    const source **found;           /* (count) the record that has it; NULL: none */
    invar_agent_task *tasks;        /* (n_tasks) the others */
    int64_t count, n_tasks;
    const invar_agent_batch_options *order;
} errand;

static void errand_release(errand *r)
{
    for (int64_t i = 0; r->sessions && i < r->count; i++)
        invar_agent_session_release(&r->sessions[i]);
    invar_free(r->sessions);
    invar_free(r->slots);
    invar_free((void *)(uintptr_t)r->found);
    invar_free(r->tasks);
}

static invar_status errand_make(errand *r)
{
    size_t count = (size_t)r->count;

    INVAR_TRY(invar_alloc((void **)&r->sessions, count, sizeof *r->sessions, "sessions"));
    memset(r->sessions, 0, count * sizeof *r->sessions);
    INVAR_TRY(invar_alloc((void **)&r->slots, count, sizeof *r->slots, "records of sessions"));
    INVAR_TRY(invar_alloc((void **)&r->found, count, sizeof *r->found, "records of sessions"));
    for (size_t i = 0; i < count; i++)
        r->found[i] = NULL;
    return invar_alloc((void **)&r->tasks, count, sizeof *r->tasks, "tasks for agents");
}

static invar_agent_limits limits_of(const invar_agents *a)
{
    const invar_agent_server_options *o = &a->options.door;

    return (invar_agent_limits){.vocab = o->chat.vocab,
                                .context = o->chat.context,
                                .calls = o->max_calls,
                                .branches = o->branches};
}

/* The log is that of the samples' rollout. */
static invar_status open_log(invar_agents *a, const invar_rl_sample *first)
{
    const invar_digest *agent = invar_plugin_hash(a->options.plugin);
    invar_session_journal_id now = {.run = a->options.run,
                                    .weights = first->weights_hash,
                                    .number = first->rollout,
                                    .agent = agent ? *agent : (invar_digest){{0}}};
    const invar_agent_limits limits = limits_of(a);
    char path[INVAR_PATH_SIZE];

    if (!a->options.folder)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                          "plug-in " INVAR_AGENT_NAME ": the record has no sessions of rollout "
                          "%" PRIu32,
                          first->rollout);
    if (a->options.uuid && a->options.uuid[0])
        INVAR_TRY(invar_digest_parse(&now.uuid, a->options.uuid));
    if (a->log && invar_session_journal_matches(a->log, &now))
        return INVAR_OK;
    invar_session_journal_close(a->log);
    a->log = NULL;
    INVAR_TRY(invar_path_join(path, sizeof path, a->options.folder, INVAR_AGENT_LOG));
    INVAR_TRY(invar_session_journal_open(&a->log, path, &now, &limits));
    if (invar_session_journal_unchecked(a->log)) // the new file has sums, so the event comes first
        INVAR_TRY(a->options.tell(a->options.payload, INVAR_JOURNAL_UNCHECKED, INVAR_AGENT_LOG));
    return invar_session_journal_begin(a->log);
}

static invar_status find_record(errand *r, int64_t i)
{
    invar_agents *a = r->agents;
    const invar_rl_sample *s = &r->samples[i];
    const invar_agent_limits limits = limits_of(a);
    char where[WHERE_SIZE];

    if (r->order->evaluation) {
        r->tasks[r->n_tasks++] = (invar_agent_task){s, &r->sessions[i]};
        return INVAR_OK;
    }
    INVAR_TRY(invar_plugin_next_slot(&r->slots[i], a->options.plugin, s));
    if (r->slots[i].data) {
        r->found[i] = a->options.recorded ? &the_record : &the_ledger;
        (void)snprintf(where, sizeof where,
                       "plug-in " INVAR_AGENT_NAME ": the session of sample %" PRId64 " in %s",
                       s->index, r->found[i]->name);
        return invar_agent_session_read(&r->sessions[i], r->slots[i].data, r->slots[i].bytes,
                                        &limits, where);
    }
    INVAR_TRY(open_log(a, s));
    if (invar_session_journal_take_session(&r->sessions[i], a->log, s->index))
        r->found[i] = &the_log;
    else
        r->tasks[r->n_tasks++] = (invar_agent_task){s, &r->sessions[i]};
    return INVAR_OK;
}

static invar_status errand_lead(errand *r)
{
    invar_agents *a = r->agents;

    if (r->n_tasks == 0)
        return INVAR_OK;
    if (!a->door)
        INVAR_TRY(invar_agent_server_open(&a->door, &a->options.door));
    return invar_agent_server_run(a->door, r->tasks, r->n_tasks, r->order,
                                  &r->samples[0].weights_hash,
                                  r->order->evaluation ? NULL : a->log);
}

/* ---- calls of a record, drawn anew ----------------------------------------------------------- */

/* A call on its way; the rollout borrows all of it. */
typedef struct again {
    invar_agent_call *call;
    const source *from;
    int64_t index; /* of the session's sample */
    invar_sampling_params sampling;
    invar_rl_sample sample;
} again;

/* Stops have no say in what is drawn, only in when it ends, which is known. */
static invar_status begin_again(again *out, const errand *r, int64_t i, invar_agent_call *call)
{
    const invar_rl_sample *s = &r->samples[i];

    *out = (again){.call = call,
                   .from = r->found[i],
                   .index = s->index,
                   .sampling = *r->order->sampling,
                   .sample = {.group = i,
                              .rollout = s->rollout,
                              .draw_index = s->draw_index,
                              .prompt_tokens = call->n_prompt,
                              .n_tokens = call->n_prompt}};
    out->sampling.seed = invar_agent_call_seed(call, out->sampling.seed);
    out->sampling.max_response = call->n_response;
    out->sampling.n_stop = out->sampling.n_stop_ids = 0;
    INVAR_TRY(invar_alloc((void **)&out->sample.tokens, (size_t)call->n_prompt,
                          sizeof *out->sample.tokens, "tokens of a prompt"));
    memcpy(out->sample.tokens, call->prompt, (size_t)call->n_prompt * sizeof *call->prompt);
    return invar_rollout_add(r->agents->options.door.rollout, &out->sample, 1, &out->sampling);
}

/* What was drawn is what the record says; the call gets its log-probs. */
static invar_status again_compare(again *d)
{
    const invar_rl_sample *s = &d->sample;
    const int32_t *drawn = s->tokens + s->prompt_tokens;
    int64_t n = invar_rl_sample_response(s), i = 0;

    if (s->finish == INVAR_FINISH_ABORT)
        return INVAR_FAIL(INVAR_E_STATE, 0, "sample %" PRId64 ": logits are not finite", d->index);
    while (i < n && i < d->call->n_response && drawn[i] == d->call->response[i])
        i++;
    if (i < d->call->n_response || n != d->call->n_response)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                          "plug-in " INVAR_AGENT_NAME ": sample %" PRId64 ": a call with %" PRId64
                          " tokens of prompt is in %s with token %" PRId32 " at place %" PRId64
                          " of its response, and these weights draw %" PRId32 "; %s",
                          d->index, d->call->n_prompt, d->from->name, d->call->response[i], i,
                          i < n ? drawn[i] : -1, d->from->advice);
    d->call->speculated = d->sample.speculated;
    d->call->logp = d->sample.logp;
    d->sample.logp = NULL;
    return INVAR_OK;
}

static int64_t again_unfinished(const again *calls, int64_t count)
{
    int64_t left = 0;

    for (int64_t i = 0; i < count; i++)
        left += calls[i].sample.finish == INVAR_FINISH_NONE;
    return left;
}

static invar_status draw_all(again *calls, int64_t *begun, const errand *r)
{
    invar_rollout *rollout = r->agents->options.door.rollout;

    for (int64_t i = 0; i < r->count; i++)
        for (int64_t k = 0; r->found[i] && k < r->sessions[i].n_calls; k++)
            INVAR_TRY(begin_again(&calls[(*begun)++], r, i, r->sessions[i].calls[k]));
    while (again_unfinished(calls, *begun) > 0) {
        INVAR_TRY(invar_rollout_step(rollout));
        if (r->order->tick) // who waits learns that it goes on
            INVAR_TRY(r->order->tick(r->order->payload, 0, 0));
    }
    for (int64_t i = 0; i < *begun; i++)
        INVAR_TRY(again_compare(&calls[i]));
    return INVAR_OK;
}

static invar_status draw_again(const errand *r)
{
    const invar_agent_server_options *o = &r->agents->options.door;
    int64_t count = 0, begun = 0;
    again *calls = NULL;
    invar_status status;

    for (int64_t i = 0; i < r->count; i++)
        count += r->found[i] ? r->sessions[i].n_calls : 0;
    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(invar_alloc((void **)&calls, (size_t)count, sizeof *calls, "recorded calls"));
    status = invar_rollout_open_stream(o->rollout, o->chat.context);
    if (status == INVAR_OK) {
        status = draw_all(calls, &begun, r);
        invar_rollout_close(o->rollout);
    }
    for (int64_t i = 0; i < begun; i++)
        invar_rl_sample_release(&calls[i].sample);
    invar_free(calls);
    return status;
}

/* ---- samples --------------------------------------------------------------------------------- */

static invar_status errand_store(const errand *r, int64_t i)
{
    invar_json_text text = {0};
    invar_status status = invar_agent_session_sort(&r->sessions[i]);

    if (status == INVAR_OK) {
        invar_agent_session_write(&text, &r->sessions[i]);
        status = text.status;
    }
    if (status == INVAR_OK)
        status = invar_plugin_store_reply(r->agents->options.plugin, &r->slots[i], text.data,
                                          text.bytes);
    invar_json_text_release(&text);
    return status;
}

/* One that has failed is worth nothing. */
static invar_status rl_sample_reward(invar_rl_sample *s, invar_agent_session *session,
                                     const char *key)
{
    s->has_plugin_reward = session->rewarded || session->error;
    s->reward = session->rewarded ? session->reward : 0;
    invar_reward_parts_release(&s->parts);
    s->parts = session->parts;
    session->parts = (invar_reward_parts){NULL, 0};
    return session->rewarded ? invar_reward_select_part(s, key) : INVAR_OK;
}

/* What a rollout is told of, in one line each. */
typedef struct tidings {
    int64_t branched, failed;
    char branch[TEXT_SIZE], failure[TEXT_SIZE];
} tidings;

static void tidings_record(tidings *t, const invar_rl_sample *s, const invar_agent_session *session,
                           const char *branch)
{
    if (branch[0] && t->branched++ == 0)
        (void)snprintf(t->branch, sizeof t->branch, "sample %" PRId64 ", %.200s", s->index, branch);
    if (session->error && t->failed++ == 0)
        (void)snprintf(t->failure, sizeof t->failure, "sample %" PRId64 ", %.600s", s->index,
                       session->error);
}

static invar_status report_events(const errand *r, const tidings *t)
{
    const invar_agents_options *o = &r->agents->options;
    char text[TEXT_SIZE + 128];

    if (t->branched && !r->order->evaluation) {
        (void)snprintf(text, sizeof text,
                       "%" PRId64 " of %" PRId64 " sessions have several branches; the first: %s",
                       t->branched, r->count, t->branch);
        INVAR_TRY(o->tell(o->payload, "agent-branch", text));
    }
    if (!t->failed)
        return INVAR_OK;
    (void)snprintf(text, sizeof text,
                   "%s%" PRId64 " of %" PRId64 " agents have failed, and are rewarded with 0; the "
                   "first: %s",
                   r->order->evaluation ? "evaluation: " : "", t->failed, r->count, t->failure);
    return o->tell(o->payload, "agent-failure", text);
}

static invar_status replay_recorded_calls(errand *r)
{
    const invar_agent_server_options *o = &r->agents->options.door;
    char branch[INVAR_AGENT_BRANCH_SIZE];
    tidings news = {0};

    for (int64_t i = 0; i < r->count; i++) {
        if (!r->order->evaluation)
            INVAR_TRY(errand_store(r, i));
        INVAR_TRY(invar_agent_session_fill(&r->samples[i], branch, &r->sessions[i],
                                           o->chat.tokenizer, r->order->sampling->skip_special));
        tidings_record(&news, &r->samples[i], &r->sessions[i], branch);
        INVAR_TRY(rl_sample_reward(&r->samples[i], &r->sessions[i], r->order->reward_part));
        r->samples[i].arrival = i;
    }
    return report_events(r, &news);
}

static invar_status errand_run(errand *r)
{
    INVAR_TRY(errand_make(r));
    for (int64_t i = 0; i < r->count; i++)
        INVAR_TRY(find_record(r, i));
    INVAR_TRY(errand_lead(r));
    INVAR_TRY(draw_again(r));
    return replay_recorded_calls(r);
}

invar_status invar_agents_run(invar_agents *agents, invar_rl_sample *samples, int64_t count,
                              const invar_agent_batch_options *order)
{
    errand r = {.agents = agents, .samples = samples, .count = count, .order = order};
    invar_status status = errand_run(&r);

    errand_release(&r);
    return status;
}
