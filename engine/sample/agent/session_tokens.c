/*
 * session_tokens.c - builds the tokens of a sample from the calls of its agent session.
 *
 * Calls are sorted by prompt and number, so that the result does not depend on their order of
 * arrival. A call continues the branch whose tokens are the longest prefix of its prompt. A branch
 * is therefore represented by its last call, whose prompt contains all earlier calls of the branch.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/minmax.h"
#include "base/sort.h"
#include "engine/sample/agent/session.h"
#include "engine/sample/rollout/rollout.h"

#include "base/invar_banned.h"

typedef struct branch_builder {
    const invar_agent_call **order; /* (n_calls) calls, sorted */
    int64_t *branch_of;             /* (n_calls) branch of each call, in the sorted order */
    const invar_agent_call **last;  /* (n_branches) last call of each branch */
    int64_t n_calls, n_branches;
} branch_builder;

static void release_branches(branch_builder *p)
{
    invar_free((void *)(uintptr_t)p->order);
    invar_free((void *)(uintptr_t)p->last);
    invar_free(p->branch_of);
}

static int compare_calls(const void *a, const void *b)
{
    const invar_agent_call *x = a, *y = b;

    if (x->n_prompt != y->n_prompt)
        return x->n_prompt < y->n_prompt ? -1 : 1;
    for (int64_t i = 0; i < x->n_prompt; i++)
        if (x->prompt[i] != y->prompt[i])
            return x->prompt[i] < y->prompt[i] ? -1 : 1;
    if (x->numbered != y->numbered)
        return x->numbered ? 1 : -1;
    return x->number < y->number ? -1 : x->number > y->number;
}

invar_status invar_agent_session_sort(invar_agent_session *s)
{
    return invar_sort((const void **)s->calls, (size_t)s->n_calls, compare_calls);
}

/* Returns how many leading tokens of the prompt agree with the tokens of another call. */
static int64_t count_common_tokens(const invar_agent_call *call, const invar_agent_call *with)
{
    int64_t most = invar_min_i64(call->n_prompt, with->n_prompt + with->n_response), i = 0;

    while (i < most && call->prompt[i] == (i < with->n_prompt ? with->prompt[i]
                                                              : with->response[i - with->n_prompt]))
        i++;
    return i;
}

static int64_t count_tokens(const invar_agent_call *call)
{
    return call->n_prompt + call->n_response;
}

/* Returns the longest branch that the call continues, or -1. */
static int64_t find_branch(const branch_builder *p, const invar_agent_call *call)
{
    int64_t best = -1;

    for (int64_t b = 0; b < p->n_branches; b++)
        if (p->last[b]->response &&
            count_common_tokens(call, p->last[b]) == count_tokens(p->last[b]) &&
            (best < 0 || count_tokens(p->last[b]) > count_tokens(p->last[best])))
            best = b;
    return best;
}

static invar_status build_branches(branch_builder *out, const invar_agent_session *s)
{
    size_t count = (size_t)s->n_calls;

    *out = (branch_builder){.n_calls = s->n_calls};
    INVAR_TRY(INVAR_ALLOC(out->order, count, "calls in order"));
    INVAR_TRY(INVAR_ALLOC(out->last, count, "branches"));
    INVAR_TRY(INVAR_ALLOC(out->branch_of, count, "branches"));
    for (size_t i = 0; i < count; i++)
        out->order[i] = s->calls[i];
    INVAR_TRY(invar_sort((const void **)out->order, count, compare_calls));
    for (int64_t i = 0; i < out->n_calls; i++) {
        int64_t b = find_branch(out, out->order[i]);

        out->branch_of[i] = b < 0 ? out->n_branches++ : b;
        out->last[out->branch_of[i]] = out->order[i];
    }
    return INVAR_OK;
}

invar_status invar_agent_session_branches(int64_t *out, const invar_agent_session *session)
{
    branch_builder p;
    invar_status status = build_branches(&p, session);

    *out = p.n_branches;
    release_branches(&p);
    return status;
}

/* ---- the sample ------------------------------------------------------------------------------ */

static invar_status alloc_sample_arrays(invar_rl_sample *s, int64_t tokens, int64_t prompt,
                                        int64_t cuts)
{
    size_t response = (size_t)(tokens - prompt);
    int32_t *ids = NULL;

    INVAR_TRY(INVAR_ALLOC(ids, (size_t)tokens, "tokens of a sample"));
    memcpy(ids, s->tokens, (size_t)invar_min_i64(s->prompt_tokens, tokens) * sizeof *ids);
    invar_free(s->tokens);
    s->tokens = ids;
    s->n_tokens = tokens;
    s->prompt_tokens = s->weights.last_from = prompt;
    INVAR_TRY(INVAR_ALLOC(s->logp, response, "log-probs of a sample"));
    INVAR_TRY(INVAR_ALLOC(s->mask, response, "the mask of a sample"));
    memset(s->logp, 0, response * sizeof *s->logp);
    memset(s->mask, 0, response);
    INVAR_TRY(INVAR_ALLOC(s->branch_starts, (size_t)cuts, "branches"));
    s->n_branch_starts = cuts;
    return INVAR_OK;
}

/* Fills a sample without calls: the prompt and one token that is not trained on. */
static invar_status fill_without_calls(invar_rl_sample *s)
{
    int64_t n = s->prompt_tokens;

    INVAR_TRY(alloc_sample_arrays(s, n + 1, n, 0));
    s->tokens[n] = s->tokens[n - 1];
    s->finish = INVAR_FINISH_ABORT;
    return INVAR_OK;
}

static void copy_branch(invar_rl_sample *s, const branch_builder *p, int64_t branch, int64_t at)
{
    const invar_agent_call *last = p->last[branch];

    memcpy(s->tokens + at, last->prompt, (size_t)last->n_prompt * sizeof *s->tokens);
    memcpy(s->tokens + at + last->n_prompt, last->response,
           (size_t)last->n_response * sizeof *s->tokens);
    for (int64_t i = 0; i < p->n_calls; i++) {
        const invar_agent_call *c = p->order[i];
        int64_t first = at + c->n_prompt - s->prompt_tokens;

        if (p->branch_of[i] != branch)
            continue;
        memcpy(s->logp + first, c->logp, (size_t)c->n_response * sizeof *s->logp);
        memset(s->mask + first, 1, (size_t)c->n_response);
    }
}

static invar_status copy_branches(invar_rl_sample *s, const branch_builder *p)
{
    int64_t tokens = 0, at = 0;

    for (int64_t b = 0; b < p->n_branches; b++)
        tokens += count_tokens(p->last[b]);
    INVAR_TRY(alloc_sample_arrays(s, tokens, p->order[0]->n_prompt, p->n_branches - 1));
    for (int64_t b = 0; b < p->n_branches; at += count_tokens(p->last[b++])) {
        if (b > 0)
            s->branch_starts[b - 1] = at;
        copy_branch(s, p, b, at);
    }
    s->finish = p->last[p->n_branches - 1]->finish;
    for (int64_t i = 0; i < p->n_calls; i++)
        invar_spec_decode_stats_add(&s->stats.speculated, &p->order[i]->speculated);
    return INVAR_OK;
}

/*
 * Describes the first call that begins a second branch, and how far it agrees with an earlier call.
 */
static void describe_second_branch(char out[], const branch_builder *p)
{
    int64_t i = 0, most = 0;

    out[0] = '\0';
    while (i < p->n_calls && p->branch_of[i] == 0)
        i++;
    if (i == p->n_calls)
        return;
    for (int64_t k = 0; k < i; k++)
        most = invar_max_i64(most, count_common_tokens(p->order[i], p->order[k]));
    (void)snprintf(out, INVAR_AGENT_BRANCH_SIZE,
                   "a prompt of %" PRId64 " tokens goes on with no earlier call: it agrees with "
                   "one in its first %" PRId64 " tokens",
                   p->order[i]->n_prompt, most);
}

invar_status invar_agent_session_fill(invar_rl_sample *sample, char branch_out[],
                                      const invar_agent_session *session,
                                      const invar_tokenizer *tokenizer, bool skip_special)
{
    branch_builder p;
    invar_status status = build_branches(&p, session);

    branch_out[0] = '\0';
    if (status == INVAR_OK) {
        describe_second_branch(branch_out, &p);
        status = p.n_calls ? copy_branches(sample, &p) : fill_without_calls(sample);
    }
    sample->turns = p.n_calls;
    release_branches(&p);
    return status == INVAR_OK ? invar_rollout_decode(sample, tokenizer, skip_special) : status;
}
