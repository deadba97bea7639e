/*
 * internal.h - what the files of goldens share: text that grows, text cut into lines, and how a
 * value becomes text and text a value.
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

/* ---- a format -------------------------------------------------------------------------------- */

/* How values of one kind are written and read. */
typedef struct invar_golden_format {
    const char *magic; /* that a file begins with, before its version */
    int version;
    const char *legend; /* its second line */
    size_t max_bytes;   /* of a file */
    size_t size;        /* of a value */
    const char *what;   /* it is called, where there is no memory for it */
    /* Into a zeroed value, which is freed where this fails. */
    invar_status (*parse)(void *value, const char *where, const char *text, size_t bytes);
    invar_status (*put)(invar_golden_buffer *out, const void *value);
    void (*free)(void *value);
} invar_golden_format;

/* A value of the text, which must be what is written for it; `free` frees it. */
invar_status invar_golden_format_parse(void **out, const invar_golden_format *format,
                                       const char *where, const char *text,
                                       size_t bytes) INVAR_MUST_USE;
invar_status invar_golden_format_read(void **out, const invar_golden_format *format,
                                      const char *path) INVAR_MUST_USE;

/* The caller owns *out. */
invar_status invar_golden_format_print(char **out, size_t *bytes_out,
                                       const invar_golden_format *format,
                                       const void *value) INVAR_MUST_USE;
invar_status invar_golden_format_write(const char *path, const invar_golden_format *format,
                                       const void *value) INVAR_MUST_USE;

/* The lines that every format begins with: magic and legend, name, identity and manifest. */
invar_status invar_golden_put_begin(invar_golden_buffer *out, const invar_golden_format *format,
                                    const char *name, const invar_digest *identity,
                                    const invar_digest *manifest) INVAR_MUST_USE;

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
 * printable UTF-8 (and tabs), each ended, of which the first two are those of the format: another
 * version is INVAR_E_UNSUPPORTED.
 */
invar_status invar_golden_lines_open(invar_golden_lines *out, char **memory_out,
                                     const invar_golden_format *format, const char *where,
                                     const char *text, size_t bytes) INVAR_MUST_USE;

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
bool invar_golden_parse_int(int64_t *out, char **at);

/* The points in the order of their names; the caller owns *out. */
invar_status invar_golden_sort_points(const invar_golden_point ***out,
                                      const invar_golden_points *points) INVAR_MUST_USE;

/* ---- the ledger ------------------------------------------------------------------------------ */

/* Rows of a query with the parameters :run and :manifest (as far as it has them). */
invar_status invar_golden_select(invar_ledger *ledger, const char *sql, int64_t run,
                                 int64_t manifest, invar_ledger_row_fn row,
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
