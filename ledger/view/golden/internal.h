/*
 * internal.h - shared by the files of goldens. Private to ledger/view/golden/.
 *
 * A growing buffer, a strict reader of lines, and the functions that write, read and check the file
 * formats of goldens and of their points.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VIEW_GOLDEN_INTERNAL_H
#define INVAR_LEDGER_VIEW_GOLDEN_INTERNAL_H

#include "ledger/internal.h"
#include "ledger/view/golden/golden.h"

/* ---- writing --------------------------------------------------------------------------------- */

/* A growing text. Zero-initialize before use; the caller frees `data` with invar_free. */
typedef struct invar_golden_buffer {
    char *data;         /* terminated by a NUL; NULL if nothing was added */
    int64_t used, room; /* bytes without the NUL, and capacity */
} invar_golden_buffer;

invar_status invar_golden_put(invar_golden_buffer *out, const char *text,
                              size_t bytes) INVAR_MUST_USE;
invar_status invar_golden_putf(invar_golden_buffer *out, const char *format, ...) INVAR_MUST_USE
    INVAR_PRINTF(2, 3);

/* ---- a format -------------------------------------------------------------------------------- */

/* A file format: how a value is written and read. */
typedef struct invar_golden_format {
    const char *magic; /* first bytes of a file, before the version */
    int version;
    const char *legend; /* second line of a file */
    size_t max_bytes;   /* maximum size of a file */
    size_t size;        /* sizeof the value */
    const char *what;   /* name of the value in messages about lack of memory */
    /* Parses into a zeroed value; the caller frees the value if this fails. */
    invar_status (*parse)(void *value, const char *where, const char *text, size_t bytes);
    invar_status (*put)(invar_golden_buffer *out, const void *value);
    void (*free)(void *value);
} invar_golden_format;

/*
 * *out = the value of a text, which must be exactly the text that is written for the value. The
 * caller frees *out with format->free.
 */
invar_status invar_golden_format_parse(void **out, const invar_golden_format *format,
                                       const char *where, const char *text,
                                       size_t bytes) INVAR_MUST_USE;
invar_status invar_golden_format_read(void **out, const invar_golden_format *format,
                                      const char *path) INVAR_MUST_USE;

/* *out = the text of a value. The caller frees *out with invar_free. */
invar_status invar_golden_format_print(char **out, size_t *bytes_out,
                                       const invar_golden_format *format,
                                       const void *value) INVAR_MUST_USE;
invar_status invar_golden_format_write(const char *path, const invar_golden_format *format,
                                       const void *value) INVAR_MUST_USE;

/* Appends the first lines of every format: magic and legend, name, identity, manifest. */
invar_status invar_golden_put_begin(invar_golden_buffer *out, const invar_golden_format *format,
                                    const char *name, const invar_digest *identity,
                                    const invar_digest *manifest) INVAR_MUST_USE;

/* ---- reading --------------------------------------------------------------------------------- */

/* A copy of a text, read line by line. */
typedef struct invar_golden_lines {
    const char *where; /* name of the text in messages */
    char *next;        /* the lines that were not read yet */
    char *line;        /* the current line, terminated by a NUL instead of its line end */
    int64_t number;    /* number of the current line */
} invar_golden_lines;

/*
 * Begins to read a copy of the text, *memory_out, which the caller frees with invar_free after the
 * lines were used. Checks that the text is lines of printable UTF-8 and tabs, that the last one has
 * a line end, and that the first two are those of the format. Returns INVAR_E_UNSUPPORTED for
 * another version of the format.
 */
invar_status invar_golden_lines_open(invar_golden_lines *out, char **memory_out,
                                     const invar_golden_format *format, const char *where,
                                     const char *text, size_t bytes) INVAR_MUST_USE;

/* Advances to the next line; false if there are no more lines. */
bool invar_golden_lines_next(invar_golden_lines *lines);

/* Returns the text after "KEY " in the current line; NULL if it does not begin with that. */
char *invar_golden_after(const invar_golden_lines *lines, const char *key);

/* Fails with INVAR_E_CORRUPT for the current line, which should have been `expected`. */
invar_status invar_golden_damaged(const invar_golden_lines *lines,
                                  const char *expected) INVAR_MUST_USE;

/*
 * Read the next line, which must be "KEY TEXT" with a text of 1 to INVAR_LEDGER_NAME_BYTES bytes,
 * or "KEY DIGEST". The text lies in the memory of `lines`.
 */
invar_status invar_golden_read_text(const char **out, invar_golden_lines *lines,
                                    const char *key) INVAR_MUST_USE;
invar_status invar_golden_read_digest(invar_digest *out, invar_golden_lines *lines,
                                      const char *key) INVAR_MUST_USE;

/* Parses the decimal digits at *at and advances *at past them; false if there is no number. */
bool invar_golden_parse_int(int64_t *out, char **at);

/* *out = pointers to the points, sorted by name. The caller frees *out with invar_free. */
invar_status invar_golden_sort_points(const invar_golden_point ***out,
                                      const invar_golden_points *points) INVAR_MUST_USE;

/* ---- the ledger ------------------------------------------------------------------------------ */

/* Reads number and hash of the manifest of the run's first step; number 0 if there is none. */
invar_status invar_golden_manifest(int64_t *number_out, invar_digest *hash_out,
                                   invar_ledger *ledger, int64_t run) INVAR_MUST_USE;

/* *out = the digest in a column. Returns INVAR_E_CORRUPT if the value is not one. */
invar_status invar_golden_blob(invar_digest *out, invar_sql_stmt *row, int column) INVAR_MUST_USE;

#endif
