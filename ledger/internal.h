/*
 * internal.h - the handle of an open ledger, and the transactions of its writer. Private to
 * ledger/.
 *
 * Rows of runs are written in a transaction: begin_transaction, rows with invar_ledger_add, commit.
 * One such transaction is one entry. Manifests and copies (manifest.c, copy.c) have transactions of
 * their own, which add no new entry. The position of the writer changes only in a successful
 * commit, so a call that failed has changed neither the file nor the handle.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_INTERNAL_H
#define INVAR_LEDGER_INTERNAL_H

#include "ledger/ledger.h"
#include "ledger/store/ledger_row.h"
#include "ledger/store/sql.h"

/* Position of the writer in its run. */
typedef struct invar_ledger_position {
    int64_t run;              /* number of the run; 0 if none has begun */
    int64_t seg;              /* number of the segment, from 0 */
    int64_t entry;            /* number of the next entry */
    invar_digest entry_chain; /* chain of the last entry; zeros before the first */
    int64_t step;             /* last step; -1 before step 0 */
    invar_digest chain;       /* chain at `step`; zeros before step 0 */
    bool finished;            /* the segment has ended */
} invar_ledger_position;

/* The manifest of the following steps, as invar_ledger_define set it. */
typedef struct invar_ledger_manifest {
    bool defined;
    invar_digest hash;
    size_t points; /* number of points */
    bool *rooted;  /* (points) the point has level 0 and is part of the root; owned */
} invar_ledger_manifest;

enum { INVAR_LEDGER_NOTE_SIZE = INVAR_LEDGER_NAME_BYTES + 300 };

struct invar_ledger {
    invar_sql *sql;
    int lock; /* descriptor that holds the writer's lock; -1 for a reader */
    invar_ledger_position position;
    invar_ledger_manifest definition;
    invar_sql_stmt *insert[INVAR_LEDGER_TABLE_COUNT]; /* prepared on first use, like the next two */
    invar_sql_stmt *insert_entry;
    invar_sql_stmt *insert_series;
    uint64_t *series; /* (n_series) hashes of the names that the table `series` is known to have */
    int64_t n_series, series_room;
    int64_t other_content; /* events "content-differs" that this writer has recorded */
    char other_note[INVAR_LEDGER_NOTE_SIZE]; /* message of the first such event; empty at first */

    /* The open transaction. */
    const char *kind; /* kind of its entry */
    int64_t rows;     /* number of rows that it has written */
    uint64_t total;   /* sum of the sums of these rows, modulo 2^64 */
};

/* ---- reading in one snapshot ----------------------------------------------------------------- */

/*
 * Begins a read transaction unless one is open, so that several statements read the same state.
 * Pass *began_out to invar_ledger_snapshot_end, which ends the transaction if this call began it
 * and keeps the record of a failure.
 */
invar_status invar_ledger_snapshot(bool *began_out, invar_ledger *ledger) INVAR_MUST_USE;
void invar_ledger_snapshot_end(invar_ledger *ledger, bool began);

/* ---- transactions of the writer -------------------------------------------------------------- */

typedef enum invar_durability {
    INVAR_DURABILITY_PROCESS, /* the commit survives the death of the process */
    INVAR_DURABILITY_POWER    /* the commit and all earlier ones survive the loss of power */
} invar_durability;

/*
 * Begins a transaction. `kind` is the kind of its entry; it must outlive the transaction. Returns
 * INVAR_E_STATE if the ledger is open for reading only, or if the file or its lock was removed.
 */
invar_status invar_ledger_begin_transaction(invar_ledger *ledger, const char *kind,
                                            invar_durability durability) INVAR_MUST_USE;

/*
 * Adds a row of the current run to the open transaction. `row` has the values of the logical
 * columns (ledger_row.h).
 */
invar_status invar_ledger_add(invar_ledger *ledger, invar_ledger_table table,
                              const invar_ledger_value *row) INVAR_MUST_USE;

/* Adds the name to the table `series` unless it is there, so that rows can refer to its number. */
invar_status invar_ledger_add_series(invar_ledger *ledger, const char *name) INVAR_MUST_USE;

/* Adds the i-th event of the open transaction. `step` is -1 for an event that is about no step. */
invar_status invar_ledger_add_event(invar_ledger *ledger, const invar_ledger_event *event,
                                    int64_t step, int64_t i) INVAR_MUST_USE;

/*
 * Ends the transaction. If `status` is INVAR_OK, adds the entry, commits, and moves the position to
 * `next` and one entry further. Otherwise, or if that fails, rolls back and leaves the position
 * alone. Returns `status` or the failure of the commit, with its record.
 */
invar_status invar_ledger_commit(invar_ledger *ledger, invar_status status,
                                 const invar_ledger_position *next) INVAR_MUST_USE;

/* Advances the chain over entries: *chain = XXH3-128(*chain || n, kind, ns, rows, total). */
void invar_ledger_entry_chain(invar_digest *chain, int64_t n, const invar_ledger_value *kind,
                              int64_t ns, int64_t rows, int64_t total);

/* ---- copies ---------------------------------------------------------------------------------- */

/* Copies all runs of `from` after verifying it, without the detail rows that `keep` leaves out. */
invar_status invar_ledger_copy_pruned(invar_ledger *ledger, invar_ledger *from,
                                      const invar_ledger_retention *keep) INVAR_MUST_USE;

/* ---- named queries --------------------------------------------------------------------------- */

/*
 * Finds the next line of a query's head, after `from`, that begins with "-- MARK: ", and copies the
 * rest of that line to `out`, with the lines that continue it (query_requirements.c). Returns the
 * end of these lines, from which to continue, or NULL if there is no such line.
 */
const char *invar_ledger_query_line(char out[INVAR_LEDGER_QUERY_LINE], const char *from,
                                    const char *mark);

/* ---- hashes ---------------------------------------------------------------------------------- */

/*
 * *out = the root of a step: XXH3-128 of the digests of level 0, in order. `digests` (points) holds
 * those of all levels; `rooted` (points) selects level 0.
 */
void invar_ledger_step_root(invar_digest *out, const invar_digest *digests, const bool *rooted,
                            size_t points);

/* SQL condition on a row f of the table finish: a signal ended the run before its planned end. */
#define INVAR_LEDGER_STOPPED "(f.reason = 'stopped' OR f.exit_code IN (130, 143, 153))"

#endif
