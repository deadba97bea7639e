/*
 * agent_runner.c - sessions of a batch of samples: from a record or live, replayed, stored,
 * converted.
 *
 * Each sample's session is taken from the ledger, from the journal of the rollout, or from another
 * run's record; if none has it, an agent generates it. Recorded calls are sampled again from their
 * seeds and compared, which also computes the log-probs that records do not contain. Then every
 * session is stored as a reply of the plug-in and converted to the tokens of its sample.
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
    invar_agent_server *door; /* NULL until a sample needs an agent */
    invar_session_journal *log;
};

invar_status invar_agents_new(invar_agents **out, const invar_agents_options *options)
{
    INVAR_TRY(INVAR_ALLOC(*out, 1, "agents"));
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

/* ---- sources of sessions --------------------------------------------------------------------- */

/* A kind of record, with advice for the case that its tokens are not sampled again. */
typedef struct source {
    const char *name, *advice;
} source;

static const source from_journal = {
    INVAR_AGENT_JOURNAL,
    "the file was changed, or written by another version: remove it, and the rollout's sessions "
    "begin anew"};
static const source from_ledger = {
    "the ledger",
    "it was changed (invar ledger verify), or another version made the step: take that "
    "one, or start a new run with --run"};
static const source from_other_run = {
    "agent-record",
    "it is of other weights or settings, or of another version: give the record of a "
    "run with this recipe"};

typedef struct batch_run {
    invar_agents *agents;
    invar_rl_sample *samples;       /* (count) */
    invar_agent_session *sessions;  /* (count) */
    invar_plugin_reply_slot *slots; /* (count) */
    const source **found;           /* (count) record that has the session; NULL if it is generated
                                       live */
    invar_agent_task *tasks;        /* (n_tasks) sessions that are generated live */
    int64_t count, n_tasks;
    const invar_agent_batch_options *order;
} batch_run;

static void release_batch_run(batch_run *r)
{
    for (int64_t i = 0; r->sessions && i < r->count; i++)
        invar_agent_session_release(&r->sessions[i]);
    invar_free(r->sessions);
    invar_free(r->slots);
    invar_free((void *)(uintptr_t)r->found);
    invar_free(r->tasks);
}

static invar_status alloc_batch_run(batch_run *r)
{
    size_t count = (size_t)r->count;

    INVAR_TRY(INVAR_ALLOC_ZEROED(r->sessions, count, "sessions"));
    INVAR_TRY(INVAR_ALLOC(r->slots, count, "records of sessions"));
    INVAR_TRY(INVAR_ALLOC(r->found, count, "records of sessions"));
    for (size_t i = 0; i < count; i++)
        r->found[i] = NULL;
    return INVAR_ALLOC(r->tasks, count, "tasks for agents");
}

static invar_agent_limits record_limits(const invar_agents *a)
{
    const invar_agent_server_options *o = &a->options.server;

    return (invar_agent_limits){.vocab = o->chat.vocab,
                                .context = o->chat.context,
                                .max_calls = o->max_calls,
                                .max_branches = o->max_branches};
}

/* Opens the journal of the rollout that the sample belongs to, unless it is open. */
static invar_status open_journal(invar_agents *a, const invar_rl_sample *first)
{
    const invar_digest *agent = invar_plugin_hash(a->options.plugin);
    invar_session_journal_id now = {.run = a->options.run,
                                    .weights = first->weights.hash,
                                    .number = first->rollout,
                                    .agent = agent ? *agent : (invar_digest){{0}}};
    const invar_agent_limits limits = record_limits(a);
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
    INVAR_TRY(invar_path_join(path, sizeof path, a->options.folder, INVAR_AGENT_JOURNAL));
    INVAR_TRY(invar_session_journal_open(&a->log, path, &now, &limits));
    // _begin replaces the evidence, so the event is reported first
    if (invar_session_journal_unchecked(a->log))
        INVAR_TRY(
            a->options.on_event(a->options.payload, INVAR_JOURNAL_UNCHECKED, INVAR_AGENT_JOURNAL));
    return invar_session_journal_begin(a->log);
}

static invar_status find_session(batch_run *r, int64_t i)
{
    invar_agents *a = r->agents;
    const invar_rl_sample *s = &r->samples[i];
    const invar_agent_limits limits = record_limits(a);
    char where[WHERE_SIZE];

    if (r->order->evaluation) {
        r->tasks[r->n_tasks++] = (invar_agent_task){s, &r->sessions[i]};
        return INVAR_OK;
    }
    INVAR_TRY(invar_plugin_next_slot(&r->slots[i], a->options.plugin, s));
    if (r->slots[i].data) {
        r->found[i] = a->options.recorded ? &from_other_run : &from_ledger;
        (void)snprintf(where, sizeof where,
                       "plug-in " INVAR_AGENT_NAME ": the session of sample %" PRId64 " in %s",
                       s->index, r->found[i]->name);
        return invar_agent_session_read(&r->sessions[i], r->slots[i].data, r->slots[i].bytes,
                                        &limits, where);
    }
    INVAR_TRY(open_journal(a, s));
    if (invar_session_journal_take_session(&r->sessions[i], a->log, s->index))
        r->found[i] = &from_journal;
    else
        r->tasks[r->n_tasks++] = (invar_agent_task){s, &r->sessions[i]};
    return INVAR_OK;
}

static invar_status run_live_sessions(batch_run *r)
{
    invar_agents *a = r->agents;

    if (r->n_tasks == 0)
        return INVAR_OK;
    if (!a->door)
        INVAR_TRY(invar_agent_server_open(&a->door, &a->options.server));
    return invar_agent_server_run(a->door, r->tasks, r->n_tasks, r->order,
                                  &r->samples[0].weights.hash,
                                  r->order->evaluation ? NULL : a->log);
}

/* ---- replay of recorded calls ---------------------------------------------------------------- */

/* A recorded call that is sampled again. The rollout borrows it until it is finished. */
typedef struct replayed_call {
    invar_agent_call *call;
    const source *from;
    int64_t index; /* index of the sample of the session */
    invar_sampling_params sampling;
    invar_rl_sample sample;
} replayed_call;

/* Submits a call. Stops are dropped: they decide only when a response ends, which is known. */
static invar_status submit_replayed_call(replayed_call *out, const batch_run *r, int64_t i,
                                         invar_agent_call *call)
{
    const invar_rl_sample *s = &r->samples[i];

    *out =
        (replayed_call){.call = call,
                        .from = r->found[i],
                        .index = s->index,
                        .sampling = *r->order->sampling,
                        .sample = {.group = i, .rollout = s->rollout, .draw_index = s->draw_index}};
    out->sampling.seed = invar_agent_call_seed(call, out->sampling.seed);
    out->sampling.max_response = call->n_response;
    out->sampling.n_stop = out->sampling.n_stop_ids = 0;
    INVAR_TRY(invar_rl_sample_set_prompt(&out->sample, call->prompt, call->n_prompt, 0));
    return invar_rollout_add(r->agents->options.server.rollout, &out->sample, 1, &out->sampling);
}

/* Compares the sampled tokens with the record and moves their log-probs to the call. */
static invar_status check_replayed_call(replayed_call *d)
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
    d->call->speculated = d->sample.stats.speculated;
    d->call->logp = d->sample.logp;
    d->sample.logp = NULL;
    return INVAR_OK;
}

static int64_t count_unfinished(const replayed_call *calls, int64_t count)
{
    int64_t left = 0;

    for (int64_t i = 0; i < count; i++)
        left += calls[i].sample.finish == INVAR_FINISH_NONE;
    return left;
}

static invar_status replay_calls(replayed_call *calls, int64_t *begun, const batch_run *r)
{
    invar_rollout *rollout = r->agents->options.server.rollout;

    for (int64_t i = 0; i < r->count; i++)
        for (int64_t k = 0; r->found[i] && k < r->sessions[i].n_calls; k++)
            INVAR_TRY(submit_replayed_call(&calls[(*begun)++], r, i, r->sessions[i].calls[k]));
    while (count_unfinished(calls, *begun) > 0) {
        INVAR_TRY(invar_rollout_step(rollout));
        if (r->order->on_progress) // shows waiting ranks that this rank makes progress
            INVAR_TRY(r->order->on_progress(r->order->payload, 0, 0));
    }
    for (int64_t i = 0; i < *begun; i++)
        INVAR_TRY(check_replayed_call(&calls[i]));
    return INVAR_OK;
}

static invar_status replay_recorded_calls(const batch_run *r)
{
    const invar_agent_server_options *o = &r->agents->options.server;
    int64_t count = 0, begun = 0;
    replayed_call *calls = NULL;
    invar_status status;

    for (int64_t i = 0; i < r->count; i++)
        count += r->found[i] ? r->sessions[i].n_calls : 0;
    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(calls, (size_t)count, "recorded calls"));
    status = invar_rollout_open_stream(o->rollout, o->chat.context);
    if (status == INVAR_OK) {
        status = replay_calls(calls, &begun, r);
        invar_rollout_close(o->rollout);
    }
    for (int64_t i = 0; i < begun; i++)
        invar_rl_sample_release(&calls[i].sample);
    invar_free(calls);
    return status;
}

/* ---- samples --------------------------------------------------------------------------------- */

static invar_status store_session(const batch_run *r, int64_t i)
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

/* Sets the reward of the sample. A failed session gets 0. */
static invar_status set_reward(invar_rl_sample *s, invar_agent_session *session, const char *key)
{
    s->has_plugin_reward = session->rewarded || session->error;
    s->reward = session->rewarded ? session->reward : 0;
    invar_reward_parts_release(&s->parts);
    s->parts = session->parts;
    session->parts = (invar_reward_parts){NULL, 0};
    return session->rewarded ? invar_reward_select_part(s, key) : INVAR_OK;
}

/* Events of a batch: how often each occurred, and a description of the first. */
typedef struct batch_events {
    int64_t branched, failed;
    char branch[TEXT_SIZE], failure[TEXT_SIZE];
} batch_events;

static void count_events(batch_events *t, const invar_rl_sample *s,
                         const invar_agent_session *session, const char *branch)
{
    if (branch[0] && t->branched++ == 0)
        (void)snprintf(t->branch, sizeof t->branch, "sample %" PRId64 ", %.200s", s->index, branch);
    if (session->error && t->failed++ == 0)
        (void)snprintf(t->failure, sizeof t->failure, "sample %" PRId64 ", %.600s", s->index,
                       session->error);
}

static invar_status report_events(const batch_run *r, const batch_events *t)
{
    const invar_agents_options *o = &r->agents->options;
    char text[TEXT_SIZE + 128];

    if (t->branched && !r->order->evaluation) {
        (void)snprintf(text, sizeof text,
                       "%" PRId64 " of %" PRId64 " sessions have several branches; the first: %s",
                       t->branched, r->count, t->branch);
        INVAR_TRY(o->on_event(o->payload, "agent-branch", text));
    }
    if (!t->failed)
        return INVAR_OK;
    (void)snprintf(text, sizeof text,
                   "%s%" PRId64 " of %" PRId64 " agents have failed, and are rewarded with 0; the "
                   "first: %s",
                   r->order->evaluation ? "evaluation: " : "", t->failed, r->count, t->failure);
    return o->on_event(o->payload, "agent-failure", text);
}

static invar_status finish_samples(batch_run *r)
{
    const invar_agent_server_options *o = &r->agents->options.server;
    char branch[INVAR_AGENT_BRANCH_SIZE];
    batch_events news = {0};

    for (int64_t i = 0; i < r->count; i++) {
        if (!r->order->evaluation)
            INVAR_TRY(store_session(r, i));
        INVAR_TRY(invar_agent_session_fill(&r->samples[i], branch, &r->sessions[i],
                                           o->chat.tokenizer, r->order->sampling->skip_special));
        count_events(&news, &r->samples[i], &r->sessions[i], branch);
        INVAR_TRY(set_reward(&r->samples[i], &r->sessions[i], r->order->reward_part));
        r->samples[i].stats.arrival = i;
    }
    return report_events(r, &news);
}

static invar_status run_batch(batch_run *r)
{
    INVAR_TRY(alloc_batch_run(r));
    for (int64_t i = 0; i < r->count; i++)
        INVAR_TRY(find_session(r, i));
    INVAR_TRY(run_live_sessions(r));
    INVAR_TRY(replay_recorded_calls(r));
    return finish_samples(r);
}

invar_status invar_agents_run(invar_agents *agents, invar_rl_sample *samples, int64_t count,
                              const invar_agent_batch_options *options)
{
    batch_run r = {.agents = agents, .samples = samples, .count = count, .order = options};
    invar_status status = run_batch(&r);

    release_batch_run(&r);
    return status;
}
