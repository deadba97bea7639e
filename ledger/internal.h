/*
 * internal.h - what an open ledger is. Inside ledger/ only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_INTERNAL_H
#define INVAR_LEDGER_INTERNAL_H

#include "ledger/ledger.h"
#include "ledger/store/ledger_row.h"
#include "ledger/store/sql.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the writer stands in its run. Changes only when a transaction has been committed. */
typedef struct invar_ledger_position {
    int64_t run; /* 0: none has begun */
    int64_t seg;
    int64_t entry;            /* number of the next one */
    invar_digest entry_chain; /* of the last one */
    int64_t step;             /* the last one; -1: none */
    invar_digest chain;       /* there */
    bool finished;
} invar_ledger_position;

/* The points that steps bring digests of. */
typedef struct invar_ledger_manifest {
    bool defined;
    invar_digest hash;
    size_t points;
    bool *rooted; /* (points) part of the root */
} invar_ledger_manifest;

enum { INVAR_LEDGER_NOTE_SIZE = INVAR_LEDGER_NAME_BYTES + 300 };

struct invar_ledger {
    invar_sql *sql;
    int lock; /* of the writer; -1: a reader */
    invar_ledger_position position;
    invar_ledger_manifest definition;
    invar_sql_stmt *insert[INVAR_LEDGER_TABLE_COUNT]; /* prepared when first used */
    invar_sql_stmt *insert_entry;
    invar_sql_stmt *insert_series;
    uint64_t *series; /* (n_series) hashes of names that are known to have a number */
    size_t n_series, series_room;
    int64_t other_content; /* events "content-differs" that this writer has recorded */
    char other_note[INVAR_LEDGER_NOTE_SIZE]; /* message of the first of them; empty if none */

    /* The transaction that is open: what it has written. */
    const char *kind;
    int64_t rows;
    uint64_t total;
};

/* ---- reading in one snapshot ----------------------------------------------------------------- */

/* Begins a read transaction unless one is open; *began_out says what `end` shall do. */
invar_status invar_ledger_snapshot(bool *began_out, invar_ledger *ledger) INVAR_MUST_USE;
void invar_ledger_snapshot_end(invar_ledger *ledger, bool began);

/* ---- transactions of the writer -------------------------------------------------------------- */

typedef enum invar_durability {
    INVAR_DURABILITY_PROCESS, /* survives the process */
    INVAR_DURABILITY_POWER    /* survives the loss of power, with all that was written before */
} invar_durability;

/* Opens one; `kind` is a constant. The ledger must be a writer's. */
invar_status invar_ledger_begin_transaction(invar_ledger *ledger, const char *kind,
                                            invar_durability durability) INVAR_MUST_USE;

/* Adds a row of the current run; its values are the logical columns. */
invar_status invar_ledger_add(invar_ledger *ledger, invar_ledger_table table,
                              const invar_ledger_value *row) INVAR_MUST_USE;

/* Makes sure that the series has a number. */
invar_status invar_ledger_add_series(invar_ledger *ledger, const char *name) INVAR_MUST_USE;

/* An event of the open transaction, the i-th of it; `step` -1: at no step. */
invar_status invar_ledger_add_event(invar_ledger *ledger, const invar_ledger_event *event,
                                    int64_t step, int64_t i) INVAR_MUST_USE;

/*
 * Ends it: with `status` INVAR_OK it adds the entry and commits, else it rolls back and keeps the
 * error. Returns what came of it; the position is moved to `next` after a commit only.
 */
invar_status invar_ledger_commit(invar_ledger *ledger, invar_status status,
                                 const invar_ledger_position *next) INVAR_MUST_USE;

/* The chain over entries: *chain = XXH3-128(*chain || n, kind, ns, rows, total). */
void invar_ledger_entry_chain(invar_digest *chain, int64_t n, const invar_ledger_value *kind,
                              int64_t ns, int64_t rows, int64_t total);

/* ---- copies ---------------------------------------------------------------------------------- */

/* All runs of `from`, verified, without the detail that `keep` does not want. */
invar_status invar_ledger_copy_pruned(invar_ledger *ledger, invar_ledger *from,
                                      const invar_ledger_retention *keep) INVAR_MUST_USE;

/* ---- named queries --------------------------------------------------------------------------- */

/*
 * The rest of the next line of a query's head, from `from` on, that begins with "-- MARK: ".
 * Returns where it ends; NULL: there is none.
 */
const char *invar_ledger_query_line(char out[INVAR_LEDGER_QUERY_LINE], const char *from,
                                    const char *mark);

/* ---- hashes ---------------------------------------------------------------------------------- */

/* The root of a step: XXH3-128 of the digests of level 0, in order. `data` holds all of them. */
void invar_ledger_step_root(invar_digest *out, const invar_digest *digests, const bool *rooted,
                            size_t points);

/* Of a row f of the table finish: a signal ended the run before its time. */
#define INVAR_LEDGER_STOPPED "(f.reason = 'stopped' OR f.exit_code IN (130, 143, 153))"

#ifdef __cplusplus
}
#endif
#endif
