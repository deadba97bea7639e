/*
 * agent_runner.h - samples that agents lead: live, or as a record has it.
 *
 * Agents make a run depend on the outside, so what they did is recorded, and a run that has the
 * record obeys it: nobody is asked, every call is drawn anew from its coordinates, and must be what
 * the record says. The record of a step is in its ledger, as replies of a plug-in; that of a
 * rollout on its way is a file of the run (session_journal.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_AGENT_AGENT_RUNNER_H
#define INVAR_ENGINE_SAMPLE_AGENT_AGENT_RUNNER_H

#include "engine/ext/plugin.h"
#include "engine/sample/agent/agent_server.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_AGENT_LOG "sessions.jsonl" /* in the run's folder */

typedef struct invar_agents_options {
    invar_plugin *plugin;            /* has the record; borrowed, as all of them */
    invar_agent_server_options door; /* for samples that no record has */
    bool recorded;      /* its record is another run's, and nobody is asked: agent-record */
    const char *folder; /* of the log; NULL: there is a record, or nothing goes */
    invar_digest run;   /* the identity of the run */
    const char *uuid;   /* uuid of the run; empty until the ledger has the run */
    /* Reports something about a rollout; INVAR_JOURNAL_UNCHECKED with the name of the file. */
    invar_status (*tell)(void *payload, const char *kind, const char *text);
    void *payload;
} invar_agents_options;

typedef struct invar_agents invar_agents;

invar_status invar_agents_new(invar_agents **out,
                              const invar_agents_options *options) INVAR_MUST_USE;
void invar_agents_free(invar_agents *agents);

/*
 * Samples [0, count) of a rollout with their prompts and weights; each gets its response (see
 * invar_agent_session_fill), and where it is `rewarded`, its reward. After a failure they
 * are fit for release only. Those of an evaluation are led anew each time.
 * INVAR_E_MISMATCH: a call was drawn otherwise than the record says.
 */
invar_status invar_agents_run(invar_agents *agents, invar_rl_sample *samples, int64_t count,
                              const invar_agent_batch_options *order) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
