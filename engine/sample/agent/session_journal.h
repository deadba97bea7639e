/*
 * session_journal.h - sessions on their way, in a file: each call is durable before its reply is
 * sent.
 *
 * The file is that of one rollout of a run, which is over when its steps are in the ledger. A run
 * that was killed in a rollout goes on with the sessions that had ended; the others begin anew.
 * The file is a journal (engine/files/journal.h). Its first line names rollout, run, weights and
 * agent, the other lines are calls and ends of sessions. One rollout has one agent.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_AGENT_SESSION_JOURNAL_H
#define INVAR_ENGINE_SAMPLE_AGENT_SESSION_JOURNAL_H

#include "base/hash.h"
#include "engine/sample/agent/session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whose sessions a file has. */
typedef struct invar_session_journal_id {
    invar_digest run;     /* its identity */
    invar_digest weights; /* that draw */
    invar_digest uuid;    /* uuid of the run; zeros if it is not known */
    int64_t number;
    invar_digest agent; /* its files (invar_plugin_hash), which lead it; zeros: not known */
} invar_session_journal_id;

typedef struct invar_session_journal invar_session_journal;

/*
 * Reads the file at `path`, and changes nothing; without a file, or with that of another rollout,
 * the log is empty. What a kill has cut off at its end is dropped; INVAR_E_CORRUPT: something else
 * is wrong with it. INVAR_E_STATE: another agent has led sessions of this rollout to their ends, or
 * the file belongs to another run of the same recipe.
 */
invar_status invar_session_journal_open(invar_session_journal **out, const char *path,
                                        const invar_session_journal_id *rollout,
                                        const invar_agent_limits *limits) INVAR_MUST_USE;
void invar_session_journal_close(invar_session_journal *log);

/*
 * Whether sessions were taken from a journal of version 1, whose lines have no sums. The caller
 * records that before invar_session_journal_begin, which replaces the only evidence.
 */
bool invar_session_journal_unchecked(const invar_session_journal *log);

/* Writes the file with the sessions that had ended. Call once, before sessions are logged. */
invar_status invar_session_journal_begin(invar_session_journal *log) INVAR_MUST_USE;

/* Was it opened for this rollout, whoever leads it? */
bool invar_session_journal_matches(const invar_session_journal *log,
                                   const invar_session_journal_id *rollout);

/* Moves the session of a sample that had ended into a zeroed one; false: there was none. */
bool invar_session_journal_take_session(invar_agent_session *out, invar_session_journal *log,
                                        int64_t sample);

/* Durable when they return. */
invar_status invar_session_journal_call(invar_session_journal *log, int64_t sample,
                                        const invar_agent_call *call) INVAR_MUST_USE;
invar_status invar_session_journal_end(invar_session_journal *log, int64_t sample,
                                       const invar_agent_session *session) INVAR_MUST_USE;

/* ---- for its reader's tests ------------------------------------------------------------------ */

/* The sessions of a file, in the order of their first lines. Zeroed at first; release. */
typedef struct invar_journal_contents {
    struct invar_journal_session {
        int64_t sample;
        invar_agent_session session;
    } * items;
    int64_t count, capacity;
    bool unchecked;     /* the file has no sums: version 1 */
    invar_digest agent; /* that led them; zeros: not known */
} invar_journal_contents;

/* Of the text of a file; one of another rollout has none. `where` names it. */
invar_status invar_journal_contents_read(invar_journal_contents *out, const char *text,
                                         size_t bytes, const invar_session_journal_id *rollout,
                                         const invar_agent_limits *limits,
                                         const char *where) INVAR_MUST_USE;
void invar_journal_contents_release(invar_journal_contents *logged);

#ifdef __cplusplus
}
#endif
#endif
