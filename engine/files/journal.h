/*
 * journal.h - line journals: files of JSON lines, each of them durable when it was appended, and
 * protected by a chain of sums.
 *
 * File format, version 2. A journal is a sequence of lines, each one JSON object. The first line
 * begins with the kind of the journal and its version, as in {"invar_schedule":2,...}. The last
 * member of every line is its sum:
 *
 *     {"invar_schedule":2,"run":"fa9b...","sum":"5c1d..."}
 *     {"tick":0,"batch":[0,1,5,6],"sum":"07aa..."}
 *
 * The sum of line n is XXH3-128(sum of line n - 1, 16 bytes || the bytes of line n before
 * `,"sum":`), in 32 lower-case hexadecimal digits. The sum before the first line is 16 zero bytes.
 * A line that was changed, removed, added or moved breaks the chain at that line or at the next
 * one. The sums find damage; they do not protect against an attacker, who can compute them as well.
 *
 * The last line may lack its newline, because the process was killed while it wrote the line. Such
 * a line never had an effect, and readers drop it. A line that is complete except for its newline,
 * which another byte replaces, is damage. Complete lines that are missing at the end of a file are
 * not visible here: the reader of a journal compares its length with the ledger.
 *
 * Version 1 had no sums. It is still read, and `checked` of the reader is false then.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_JOURNAL_H
#define INVAR_ENGINE_FILES_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json/json.h"
#include "base/json/text.h"
#include "base/status.h"

#define INVAR_JOURNAL_VERSION 2
/* Kind of the ledger event that a reader records after reading a journal of version 1. */
#define INVAR_JOURNAL_UNCHECKED "unchecked-journal"
#define INVAR_JOURNAL_WHERE_SIZE (INVAR_PATH_SHOWN_SIZE + 64)

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct invar_journal invar_journal;

/*
 * Replaces the file at `path` by these lines and opens it for more. Lines are JSON objects with at
 * least one member and without a sum, each with its newline; the journal adds the sums.
 */
invar_status invar_journal_create(invar_journal **out, const char *path, const char *lines,
                                  size_t bytes) INVAR_MUST_USE;

/*
 * Appends one line or several. They are durable when the call returns. After a failure the last
 * line of the file may be incomplete, so every later call fails.
 */
invar_status invar_journal_append(invar_journal *journal, const char *lines,
                                  size_t bytes) INVAR_MUST_USE;
/* Closes the file and frees the journal; NULL is ignored. */
void invar_journal_close(invar_journal *journal);

/*
 * Adds the lines with their sums to `out`, as the file has them. *chain is the sum of the line
 * before, zeros at first, and becomes the sum of the last line.
 */
invar_status invar_journal_add_sums(invar_json_text *out, invar_digest *chain, const char *lines,
                                    size_t bytes) INVAR_MUST_USE;

/* ---- reading --------------------------------------------------------------------------------- */

/* A pass over the text of a journal. Holds no resources. */
typedef struct invar_journal_reader {
    const char *position, *end; /* the text that was not read yet; borrowed */
    const char *file;           /* used in error messages only */
    const char *kind;           /* first member of the first line; NULL for lines without a head */
    int64_t line;               /* number of the last line that was read, from 1 */
    bool checked;               /* the lines have sums (version 2) */
    invar_digest sum;           /* sum of the last line */
    char where[INVAR_JOURNAL_WHERE_SIZE]; /* "FILE:LINE" of the last line */
} invar_journal_reader;

/* Begins a pass over the text of a journal; `text` and `file` are borrowed. */
void invar_journal_read(invar_journal_reader *out, const char *kind, const char *text, size_t bytes,
                        const char *file);

/*
 * Checks and parses the next line; *out is NULL after the last complete one. The caller releases
 * *out with json_decref. Returns INVAR_E_CORRUPT, naming file and line, if a line has not the sum
 * that follows from the line before, is not JSON, or has an unknown version.
 */
invar_status invar_journal_next(json_t **out, invar_journal_reader *reader) INVAR_MUST_USE;

/*
 * Reads the hash `key` of a line. Returns INVAR_E_INVALID if there is no such string, and
 * INVAR_E_CORRUPT if it is not a hash.
 */
invar_status invar_journal_digest(invar_digest *out, const json_t *line, const char *key,
                                  const char *where) INVAR_MUST_USE;

#endif
