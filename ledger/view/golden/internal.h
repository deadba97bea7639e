/*
 * internal.h - what the files of goldens share: text that grows, and text cut into lines.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VIEW_GOLDEN_INTERNAL_H
#define INVAR_LEDGER_VIEW_GOLDEN_INTERNAL_H

#include "ledger/view/golden/golden.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- writing --------------------------------------------------------------------------------- */

/* Text that is being put together. Zeroed at first; `data` is freed by whoever has it last. */
typedef struct invar_golden_buffer {
    char *data; /* ended by NUL once something was put */
    size_t used, room;
} invar_golden_buffer;

invar_status invar_golden_put(invar_golden_buffer *out, const char *text,
                              size_t bytes) INVAR_MUST_USE;
invar_status invar_golden_putf(invar_golden_buffer *out, const char *format, ...) INVAR_MUST_USE
    INVAR_PRINTF(2, 3);

/* "KEY HEX\n". */
invar_status invar_golden_put_digest(invar_golden_buffer *out, const char *key,
                                     const invar_digest *digest) INVAR_MUST_USE;

/* ---- reading --------------------------------------------------------------------------------- */

/* A copy of a text, read line by line. */
typedef struct invar_golden_lines {
    const char *where;
    char *next;     /* the rest */
    char *line;     /* the current one, ended by NUL */
    int64_t number; /* of the current one */
} invar_golden_lines;

/*
 * A copy of the text, for the lines; the caller owns *memory_out. Checks that it is lines of
 * printable UTF-8 (and tabs), each ended, of which the first is `magic` and a version: another
 * version than `version` is INVAR_E_UNSUPPORTED.
 */
invar_status invar_golden_lines_open(invar_golden_lines *out, char **memory_out, const char *where,
                                     const char *text, size_t bytes, const char *magic,
                                     int version) INVAR_MUST_USE;

/* The next line; false: there is none. */
bool invar_golden_lines_next(invar_golden_lines *lines);

/* What follows "KEY " in the current line; NULL: it does not begin so. */
char *invar_golden_after(const invar_golden_lines *lines, const char *key);

/* The current line is not what it should be. */
invar_status invar_golden_damaged(const invar_golden_lines *lines,
                                  const char *expected) INVAR_MUST_USE;

/* The next line is "KEY TEXT" of 1 to INVAR_LEDGER_NAME_BYTES bytes, or "KEY DIGEST". */
invar_status invar_golden_read_text(const char **out, invar_golden_lines *lines,
                                    const char *key) INVAR_MUST_USE;
invar_status invar_golden_read_digest(invar_digest *out, invar_golden_lines *lines,
                                      const char *key) INVAR_MUST_USE;

/* A whole number of digits alone at *at, which moves behind it; false: there is none. */
bool invar_golden_take_int(int64_t *out, char **at);

/* Whether `text` is what `printed` would be; the failure names the first line that is not. */
invar_status invar_golden_same_text(const char *where, const char *text, size_t bytes,
                                    const invar_golden_buffer *printed) INVAR_MUST_USE;

/* The points in the order of their names; the caller owns *out. */
invar_status invar_golden_sort_points(const invar_golden_point ***out,
                                      const invar_golden_points *points) INVAR_MUST_USE;

/* ---- the ledger ------------------------------------------------------------------------------ */

/* Rows of a query with the parameters :run and :manifest (as far as it has them). */
invar_status invar_golden_select(invar_ledger *ledger, const char *sql, int64_t run,
                                 int64_t manifest, invar_ledger_row row,
                                 void *payload) INVAR_MUST_USE;

/* The manifest of the run's first step: its number, 0: none, and its hash. */
invar_status invar_golden_manifest(int64_t *number_out, invar_digest *hash_out,
                                   invar_ledger *ledger, int64_t run) INVAR_MUST_USE;

/* A digest of a row. */
invar_status invar_golden_blob(invar_digest *out, const invar_ledger_value *value) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
