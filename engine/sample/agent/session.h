/*
 * session.h - record of one agent session: its model calls and how it ended.
 *
 * A call is a pair (prompt ids, response ids). Its number is given by the client, else it counts
 * earlier calls with the same prompt. Prompt and number determine the seed of the call, so its
 * response depends neither on time nor on other calls. A call whose prompt begins with all tokens
 * of another call continues it; any other call begins a branch.
 *
 * Invariant: sample and record depend on the set of calls only, not on their order of arrival.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_AGENT_SESSION_H
#define INVAR_ENGINE_SAMPLE_AGENT_SESSION_H

#include "base/json/json.h"
#include "base/json/text.h"
#include "engine/rl/sample.h"
#include "engine/text/tokenizer/tokenizer.h"

typedef struct invar_agent_call {
    bool numbered;  /* the client has given the number */
    int64_t number; /* 0 to UINT32_MAX */
    int32_t *prompt;
    int64_t n_prompt;
    int32_t *response; /* NULL while the call is in flight */
    float *logp;       /* (n_response); NULL for a call that was read from a record, which has no
                          log-probs */
    int64_t n_response;
    invar_finish finish;
    invar_spec_decode_stats speculated; /* statistics of speculative decoding; not recorded */
} invar_agent_call;

void invar_agent_call_free(invar_agent_call *call);

/* Returns the seed of the call. `seed` is the one of the recipe. */
uint32_t invar_agent_call_seed(const invar_agent_call *call, uint32_t seed);

/* Zero-initialize before use. Release with invar_agent_session_release. */
typedef struct invar_agent_session {
    invar_agent_call **calls; /* (n_calls) */
    int64_t n_calls, capacity;
    char *end; /* (end_bytes) final reply of the agent, a JSON object; NULL while the session is
                  running */
    size_t end_bytes;
    char *error;   /* reason of the failure; NULL if the agent has not failed */
    bool rewarded; /* the final reply has a reward, which is in `reward` and `parts` */
    double reward;
    invar_reward_parts parts;
} invar_agent_session;

void invar_agent_session_release(invar_agent_session *session);

/* Limit of the calls of a session in its record, in bytes; a ledger accepts replies of 64 MiB. */
#define INVAR_AGENT_RECORD_BYTES ((size_t)32 << 20)

/*
 * Adds a call in flight with a copy of the prompt. `number` is the number given by the client; if
 * it is negative, the call gets the lowest number that no other such call with this prompt has.
 * *out is borrowed from the session. Returns INVAR_E_INVALID if the record would be too large.
 */
invar_status invar_agent_session_add(invar_agent_call **out, invar_agent_session *session,
                                     const int32_t *prompt, int64_t n_prompt,
                                     int64_t number) INVAR_MUST_USE;

/* Like invar_agent_session_add, for a call that a record has already: its size is not checked. */
invar_status invar_agent_session_append(invar_agent_call **out, invar_agent_session *session,
                                        const int32_t *prompt, int64_t n_prompt,
                                        int64_t number) INVAR_MUST_USE;

/* Removes a call in flight that gets no response. */
void invar_agent_session_remove(invar_agent_session *session, const invar_agent_call *call);

/*
 * Returns the call with this prompt and number, or NULL. `numbered` selects between numbers of the
 * client and counted ones. Borrowed.
 */
invar_agent_call *invar_agent_session_find(const invar_agent_session *session,
                                           const int32_t *prompt, int64_t n_prompt, bool numbered,
                                           int64_t number);

/* Sorts the calls by prompt and number, independently of their order of arrival. */
invar_status invar_agent_session_sort(invar_agent_session *session) INVAR_MUST_USE;

/*
 * Ends the session with the final reply of the agent (docs/plugins.md). Returns INVAR_E_CORRUPT if
 * the reply is not valid. `where` is used in error messages only.
 */
invar_status invar_agent_session_end(invar_agent_session *session, const char *reply, size_t bytes,
                                     const char *where) INVAR_MUST_USE;

/* Like invar_agent_session_end, for a parsed reply. */
invar_status invar_agent_session_end_read(invar_agent_session *session, const json_t *reply,
                                          const char *where) INVAR_MUST_USE;

/* Ends the session of an agent that has failed, with the reason as its error. */
invar_status invar_agent_session_fail(invar_agent_session *session, const char *why) INVAR_MUST_USE;

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Sets *out to the number of branches that the calls make, calls in flight included. */
invar_status invar_agent_session_branches(int64_t *out,
                                          const invar_agent_session *session) INVAR_MUST_USE;

#define INVAR_AGENT_BRANCH_SIZE 192

/*
 * Sets tokens, log-probs, mask, branch starts, response, finish and turns of the sample from all
 * branches. The shortest prompt of a call replaces the prompt of the sample, and the responses of
 * the calls are the trained tokens. A session without calls keeps the prompt of the sample, and
 * gets one token after it, which is not trained on. branch_out
 * (INVAR_AGENT_BRANCH_SIZE) describes the beginning of the second branch; empty if the session has
 * one.
 */
invar_status invar_agent_session_fill(invar_rl_sample *sample, char branch_out[],
                                      const invar_agent_session *session,
                                      const invar_tokenizer *tokenizer,
                                      bool skip_special) INVAR_MUST_USE;

/* ---- record ---------------------------------------------------------------------------------- */

/* Limits that a record must keep. */
typedef struct invar_agent_limits {
    int64_t vocab;
    int64_t context;                 /* tokens of prompt and response together */
    int64_t max_calls, max_branches; /* largest numbers in one session */
} invar_agent_limits;

/* Writes a call, or a session with all its calls, as JSON. A failure is kept in text->status. */
void invar_agent_call_write(invar_json_text *text, const invar_agent_call *call);
void invar_agent_session_write(invar_json_text *text, const invar_agent_session *session);

/*
 * Reads a call or an end into a session, or all of a session into an empty one. Returns
 * INVAR_E_CORRUPT if the JSON is not valid or exceeds a limit.
 */
invar_status invar_agent_call_read(invar_agent_session *out, const json_t *object,
                                   const invar_agent_limits *limits,
                                   const char *where) INVAR_MUST_USE;
invar_status invar_agent_end_read(invar_agent_session *out, const json_t *object,
                                  const invar_agent_limits *limits,
                                  const char *where) INVAR_MUST_USE;
invar_status invar_agent_session_read(invar_agent_session *out, const char *text, size_t bytes,
                                      const invar_agent_limits *limits,
                                      const char *where) INVAR_MUST_USE;

#endif
