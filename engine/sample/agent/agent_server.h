/*
 * agent_server.h - runs external agent programs and the HTTP server through which they call the
 * model.
 *
 * The programs are started once, and each runs one session after another: it reads a line with the
 * task and the API key of the session, calls the server as often as it likes, and replies with a
 * line that ends the session (docs/plugins.md). The key assigns requests to their session.
 *
 * While a batch runs, the thread that called invar_agent_server_run owns the model; threads of the
 * HTTP server and of the programs wait for it (engine/sample/serve/inference_engine.h). A call is
 * in the journal before its response is sent.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_AGENT_AGENT_SERVER_H
#define INVAR_ENGINE_SAMPLE_AGENT_AGENT_SERVER_H

#include "engine/sample/agent/session_journal.h"
#include "engine/sample/rollout/rollout.h"
#include "engine/sample/serve/prompt_encoder.h"
#include "engine/sample/serve/server_info.h"

#define INVAR_AGENT_NAME "custom-agent-path" /* name in error messages and in the ledger */

typedef struct invar_agent_server_options {
    const char *command;               /* command of the agent program; this and the other pointers
                                          are borrowed */
    double session_timeout_s;          /* time limit of a session, in seconds; 0 for no limit */
    int64_t max_processes;             /* largest number of programs at the same time */
    int64_t max_calls, max_branches;   /* largest numbers in one session */
    bool zero_reward_on_failure;       /* a failed agent ends its session with reward 0; otherwise
                                          the run fails */
    invar_rollout *rollout;            /* rollout that generates, used only during
                                          invar_agent_server_run */
    invar_prompt_encoder_options chat; /* options of the prompt encoder; its context is the limit of
                                          calls */
    invar_server_info server_info;     /* server_info.weights is set for each batch */
} invar_agent_server_options;

typedef struct invar_agent_server invar_agent_server;

/*
 * Opens the HTTP server on the loopback address. Programs are started by the first batch. The
 * caller closes *out with invar_agent_server_close.
 */
invar_status invar_agent_server_open(invar_agent_server **out,
                                     const invar_agent_server_options *options) INVAR_MUST_USE;
/* Ends the programs, closes the HTTP server and frees it. NULL is ignored. */
void invar_agent_server_close(invar_agent_server *server);

/* Fails if neither the agent nor the recipe rewards the sample. */
typedef invar_status invar_agent_reward_check_fn(const void *payload,
                                                 const invar_rl_sample *sample);

/* How a batch of samples is run; borrowed until the batch ends. */
typedef struct invar_agent_batch_options {
    const invar_sampling_params *sampling; /* sampling parameters of every call; a call may set its
                                              length and further stops */
    bool evaluation;                       /* the samples are not trained on, and not recorded */
    /*
     * Part that the reward of a session must have, and that is used as the reward; a session
     * without it has failed; NULL if any reward will do.
     */
    const char *reward_part;
    /*
     * Called if the final reply has no reward; if it fails, the session has failed; NULL if a
     * reward is optional.
     */
    invar_agent_reward_check_fn *on_unrewarded;
    /* Called regularly with the numbers of ended sessions and of sampled tokens. May be NULL. */
    invar_rollout_tick *on_progress;
    void *payload;
} invar_agent_batch_options;

/* A sample and the session in which an agent generates it. */
typedef struct invar_agent_task {
    const invar_rl_sample *sample;
    invar_agent_session *session; /* empty before the batch, ended after it */
} invar_agent_task;

/*
 * Runs the sessions of all tasks. `journal` records them, and no other thread may use it meanwhile;
 * NULL if they are not recorded. Returns INVAR_E_IO, INVAR_E_CORRUPT or INVAR_E_STATE if an agent
 * has failed. On any failure the other agents are ended at once, and sessions without an end count
 * as not begun.
 */
invar_status invar_agent_server_run(invar_agent_server *server, const invar_agent_task *tasks,
                                    int64_t count, const invar_agent_batch_options *options,
                                    const invar_digest *weights,
                                    invar_session_journal *journal) INVAR_MUST_USE;

#endif
