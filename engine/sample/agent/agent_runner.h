/*
 * agent_runner.h - generates samples with external agents, live or from a record.
 *
 * Agents make a run depend on the outside, so their calls are recorded, and a run that has a record
 * follows it: no agent is started, every call is sampled again from its seed, and the tokens must
 * be those of the record. The record of a step is in the ledger, as replies of a plug-in; the
 * record of a rollout in progress is a file in the run directory (session_journal.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_AGENT_AGENT_RUNNER_H
#define INVAR_ENGINE_SAMPLE_AGENT_AGENT_RUNNER_H

#include "engine/ext/plugin.h"
#include "engine/sample/agent/agent_server.h"

#define INVAR_AGENT_JOURNAL "sessions.jsonl" /* name of the journal, in the run directory */

typedef struct invar_agents_options {
    invar_plugin *plugin;              /* reads and stores the records of steps, as its replies;
                                        this and the other pointers are borrowed */
    invar_agent_server_options server; /* settings for samples without a record; the rollout also
                                        replays recorded calls, and the limits hold for records */
    bool recorded;                     /* the record comes from another run (agent-record), and no
                                        agent is started */
    const char *folder;                /* directory of the journal; NULL if every sample must have a
                                        record */
    invar_digest run;                  /* digest of the identity of the run */
    const char *uuid;                  /* uuid of the run; empty until the ledger has the run */
    /*
     * Reports an event of a rollout: `kind` is "agent-branch" or "agent-failure" with a description
     * as `text`, or INVAR_JOURNAL_UNCHECKED with the name of the file.
     */
    invar_status (*on_event)(void *payload, const char *kind, const char *text);
    void *payload;
} invar_agents_options;

typedef struct invar_agents invar_agents;

/*
 * The agent server is opened when the first sample needs it. The caller frees *out with
 * invar_agents_free.
 */
invar_status invar_agents_new(invar_agents **out,
                              const invar_agents_options *options) INVAR_MUST_USE;
void invar_agents_free(invar_agents *agents);

/*
 * Generates samples [0, count) of a rollout, which have their prompts and weights. Each gets its
 * response (invar_agent_session_fill) and, if its session is `rewarded`, its reward; a failed
 * session gives the reward 0. After a failure the samples can only be released. Samples of an
 * evaluation are neither taken from a record nor recorded. Returns INVAR_E_MISMATCH if a recorded
 * call was sampled with other tokens.
 */
invar_status invar_agents_run(invar_agents *agents, invar_rl_sample *samples, int64_t count,
                              const invar_agent_batch_options *options) INVAR_MUST_USE;

#endif
