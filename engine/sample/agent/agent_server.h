/*
 * agent_server.h - where agents come in: programs that lead samples by themselves and ask the model
 * over HTTP, as OpenAI's API has it.
 *
 * The programs are started once, and each leads one session after another: it reads a line with the
 * task and the session's key, asks the server as often as it likes, and answers with a line that
 * ends the session (docs/plugins.md). The key ties requests to their session. While sessions are
 * led, the thread that called `run` has the model; threads of the server and of the programs wait
 * for it (engine/sample/serve/inference_engine.h). A call is in the log before its reply is sent.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_AGENT_AGENT_SERVER_H
#define INVAR_ENGINE_SAMPLE_AGENT_AGENT_SERVER_H

#include "engine/sample/agent/session_journal.h"
#include "engine/sample/rollout/rollout.h"
#include "engine/sample/serve/prompt_encoder.h"
#include "engine/sample/serve/server_info.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_AGENT_NAME "custom-agent-path" /* in messages and in the ledger */

typedef struct invar_agent_server_options {
    const char *command;         /* borrowed, as all of them */
    double session_timeout_s;    /* that an agent has for a session; 0: no limit */
    int64_t max_processes;       /* at a time */
    int64_t max_calls, branches; /* most of a session */
    bool zero_reward_on_failure; /* an agent that fails has ended its session; else the run fails */
    invar_rollout *rollout;      /* that generates, in `run` alone */
    invar_prompt_encoder_options chat; /* its context is that of calls */
    invar_server_info server_info;     /* but for the weights */
} invar_agent_server_options;

typedef struct invar_agent_server invar_agent_server;

/* Listens at an address that no other machine reaches. No program is started yet. */
invar_status invar_agent_server_open(invar_agent_server **out,
                                     const invar_agent_server_options *options) INVAR_MUST_USE;
void invar_agent_server_close(invar_agent_server *door);

/* Fails where nobody else rewards the sample. */
typedef invar_status invar_agent_reward_check_fn(const void *payload,
                                                 const invar_rl_sample *sample);

/* How samples are to be led; borrowed while they are. */
typedef struct invar_agent_batch_options {
    const invar_sampling_params *sampling; /* of every call */
    bool evaluation;                       /* nothing learns from them, and nothing is recorded */
    /* What the end of a session must say; a session that does not has failed. */
    const char *reward_part;                 /* a part that its reward has; NULL: none */
    invar_agent_reward_check_fn *unrewarded; /* it has none; NULL: all may */
    invar_status (*tick)(void *payload, int64_t samples_done, int64_t tokens_done); /* or NULL */
    void *payload;
} invar_agent_batch_options;

/* A sample that an agent is to lead. */
typedef struct invar_agent_task {
    const invar_rl_sample *sample;
    invar_agent_session *session; /* empty before, ended after */
} invar_agent_task;

/*
 * Leads all of them; `log` has what was said, and may not be touched meanwhile; NULL: nothing is
 * recorded. INVAR_E_IO, _CORRUPT or _STATE: an agent has failed. Whatever fails, the other agents
 * are ended at once, and their sessions are as if they had not begun.
 */
invar_status invar_agent_server_run(invar_agent_server *door, const invar_agent_task *tasks,
                                    int64_t count, const invar_agent_batch_options *order,
                                    const invar_digest *weights,
                                    invar_session_journal *log) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
