/*
 * session.h - what an agent did for a sample: its calls of the model, and how it ended.
 *
 * A call is (prompt ids, response ids). It is numbered by the client, else by how often the same
 * prompt was asked before; prompt and number are the coordinates of its noise, so neither its time
 * nor its neighbours play a part. A call whose prompt begins with all tokens of another call goes
 * on with it; any other begins a branch. Sample and record depend on the set of calls alone, not
 * on their order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_AGENT_SESSION_H
#define INVAR_ENGINE_SAMPLE_AGENT_SESSION_H

#include "base/json/json.h"
#include "base/json/text.h"
#include "engine/rl/sample.h"
#include "engine/text/tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_agent_call {
    bool numbered;  /* by the client */
    int64_t number; /* 0 to UINT32_MAX */
    int32_t *prompt;
    int64_t n_prompt;
    int32_t *response; /* NULL: it is on its way */
    float *logp;       /* (n_response); NULL: of a record, which does not have them */
    int64_t n_response;
    invar_finish finish;
    invar_spec_decode_stats speculated; /* how it was drawn; no record has it */
} invar_agent_call;

void invar_agent_call_free(invar_agent_call *call);

/* The seed of its noise: `seed` is the recipe's. */
uint32_t invar_agent_call_seed(const invar_agent_call *call, uint32_t seed);

/* Zeroed at first; release. */
typedef struct invar_agent_session {
    invar_agent_call **calls; /* (n_calls) */
    int64_t n_calls, capacity;
    char *end; /* (end_bytes) the agent's last words, a JSON object; NULL: it has not ended */
    size_t end_bytes;
    char *error;   /* why it failed; NULL: it did not */
    bool rewarded; /* it says what the sample is worth: */
    double reward;
    invar_reward_parts parts;
} invar_agent_session;

void invar_agent_session_release(invar_agent_session *session);

/* What the calls of a session may have in its record, in bytes: a ledger has replies of 64 MiB. */
#define INVAR_AGENT_RECORD_BYTES ((size_t)32 << 20)

/*
 * A new call of the session with a copy of the prompt, on its way. `number` < 0: the least that no
 * call with this prompt has. Borrowed. INVAR_E_INVALID: the record would be too large.
 */
invar_status invar_agent_session_add(invar_agent_call **out, invar_agent_session *session,
                                     const int32_t *prompt, int64_t n_prompt,
                                     int64_t number) INVAR_MUST_USE;

/* The same of a call that is in a record already. */
invar_status invar_agent_session_append(invar_agent_call **out, invar_agent_session *session,
                                        const int32_t *prompt, int64_t n_prompt,
                                        int64_t number) INVAR_MUST_USE;

/* One that is on its way, and will not come, is no longer there. */
void invar_agent_session_remove(invar_agent_session *session, const invar_agent_call *call);

/* The call with this prompt that has this number, the client's or our own; NULL: none. Borrowed. */
invar_agent_call *invar_agent_session_find(const invar_agent_session *session,
                                           const int32_t *prompt, int64_t n_prompt, bool numbered,
                                           int64_t number);

/* Its calls in the order that does not depend on when they came. */
invar_status invar_agent_session_sort(invar_agent_session *session) INVAR_MUST_USE;

/* The agent's last words, a program's reply (docs/plugins.md). INVAR_E_CORRUPT: they are none. */
invar_status invar_agent_session_end(invar_agent_session *session, const char *reply, size_t bytes,
                                     const char *where) INVAR_MUST_USE;

/* The same of what was parsed. */
invar_status invar_agent_session_end_read(invar_agent_session *session, const json_t *reply,
                                          const char *where) INVAR_MUST_USE;

/* The same for an agent that has failed. */
invar_status invar_agent_session_fail(invar_agent_session *session, const char *why) INVAR_MUST_USE;

/* ---- rows ------------------------------------------------------------------------------------ */

/* How many branches the calls make, those on their way included. */
invar_status invar_agent_session_branches(int64_t *out,
                                          const invar_agent_session *session) INVAR_MUST_USE;

#define INVAR_AGENT_BRANCH_SIZE 192

/*
 * Tokens, log-probs, mask, cuts, response and finish of the sample, whose prompt is there: of all
 * branches, each call's response being drawn. A session without calls leaves the prompt with one
 * token that nothing is learned from. branch_out says where the first branch behind another
 * begins; "": there is one alone.
 */
invar_status invar_agent_session_fill(invar_rl_sample *sample, char branch_out[],
                                      const invar_agent_session *session,
                                      const invar_tokenizer *tokenizer,
                                      bool skip_special) INVAR_MUST_USE;

/* ---- the record ------------------------------------------------------------------------------ */

/* What a record may have. */
typedef struct invar_agent_limits {
    int64_t vocab;
    int64_t context;         /* tokens of prompt and response */
    int64_t calls, branches; /* most of a session */
} invar_agent_limits;

/* A call as JSON; and all of the session. Failures stay in `text`. */
void invar_agent_call_write(invar_json_text *text, const invar_agent_call *call);
void invar_agent_session_write(invar_json_text *text, const invar_agent_session *session);

/* Into a session: a call; its end; or all of an empty one. INVAR_E_CORRUPT: it is none. */
invar_status invar_agent_call_read(invar_agent_session *out, const json_t *object,
                                   const invar_agent_limits *limits,
                                   const char *where) INVAR_MUST_USE;
invar_status invar_agent_end_read(invar_agent_session *out, const json_t *object,
                                  const invar_agent_limits *limits,
                                  const char *where) INVAR_MUST_USE;
invar_status invar_agent_session_read(invar_agent_session *out, const char *text, size_t bytes,
                                      const invar_agent_limits *limits,
                                      const char *where) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
