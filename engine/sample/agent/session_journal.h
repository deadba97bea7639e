/*
 * session_journal.h - write-ahead journal of the agent sessions of one rollout.
 *
 * Every model call is synced to the file before its response is sent, so a run that was killed can
 * reuse the sessions that were complete; incomplete ones start over. The file is obsolete when the
 * steps of the rollout are in the ledger.
 *
 * The file is a journal (engine/files/journal.h). Its first line names rollout, run, weights and
 * agent; the other lines are calls and ends of sessions. A rollout has one agent.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_AGENT_SESSION_JOURNAL_H
#define INVAR_ENGINE_SAMPLE_AGENT_SESSION_JOURNAL_H

#include "base/hash.h"
#include "engine/sample/agent/session.h"

/* Rollout that the sessions of a file belong to. */
typedef struct invar_session_journal_id {
    invar_digest run;     /* digest of the identity of the run */
    invar_digest weights; /* digest of the weights that sample */
    invar_digest uuid;    /* uuid of the run; zeros if it is not known */
    int64_t number;       /* number of the rollout */
    invar_digest agent; /* digest of the files of the agent (invar_plugin_hash); zeros if it is not
                           known */
} invar_session_journal_id;

typedef struct invar_session_journal invar_session_journal;

/*
 * Reads the file at `path` without changing it. The journal is empty if the file does not exist or
 * belongs to another rollout. An incomplete line at the end, left by a kill, is dropped. Returns
 * INVAR_E_CORRUPT if the file has another defect, and INVAR_E_STATE if another agent has completed
 * sessions of this rollout, or the file has the uuid of another run.
 */
invar_status invar_session_journal_open(invar_session_journal **out, const char *path,
                                        const invar_session_journal_id *rollout,
                                        const invar_agent_limits *limits) INVAR_MUST_USE;
void invar_session_journal_close(invar_session_journal *journal);

/*
 * Returns whether sessions were read from a journal of version 1, whose lines have no checksums.
 * The caller records that before invar_session_journal_begin, which replaces the only evidence.
 */
bool invar_session_journal_unchecked(const invar_session_journal *journal);

/* Replaces the file by one with the complete sessions. Call once, before sessions are appended. */
invar_status invar_session_journal_begin(invar_session_journal *journal) INVAR_MUST_USE;

/* Returns whether the journal was opened for this rollout. Agent and uuid are not compared. */
bool invar_session_journal_matches(const invar_session_journal *journal,
                                   const invar_session_journal_id *rollout);

/*
 * Moves the complete session of a sample to *out, which must be zeroed; `sample` is its index in
 * the run. Returns false if the journal has no such session.
 */
bool invar_session_journal_take_session(invar_agent_session *out, invar_session_journal *journal,
                                        int64_t sample);

/* Appends a call, or the end of a session. The line is on disk when the function returns. */
invar_status invar_session_journal_call(invar_session_journal *journal, int64_t sample,
                                        const invar_agent_call *call) INVAR_MUST_USE;
invar_status invar_session_journal_end(invar_session_journal *journal, int64_t sample,
                                       const invar_agent_session *session) INVAR_MUST_USE;

/* ---- for tests of the reader ----------------------------------------------------------------- */

/*
 * Sessions of a file, in the order of their first lines. Zero-initialize before use. Release with
 * invar_journal_contents_release.
 */
typedef struct invar_journal_contents {
    struct invar_journal_session {
        int64_t sample;
        invar_agent_session session;
    } * items;
    int64_t count, capacity;
    bool unchecked;     /* the file is of version 1, which has no checksums */
    invar_digest agent; /* agent that ran the sessions; zeros if it is not known */
} invar_journal_contents;

/*
 * Reads the text of a file. The result is empty if the file belongs to another rollout. `where`
 * names the file in error messages.
 */
invar_status invar_journal_contents_read(invar_journal_contents *out, const char *text,
                                         size_t bytes, const invar_session_journal_id *rollout,
                                         const invar_agent_limits *limits,
                                         const char *where) INVAR_MUST_USE;
void invar_journal_contents_release(invar_journal_contents *contents);

#endif
