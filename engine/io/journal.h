/*
 * journal.h - a file that grows by lines, each of them durable when it was appended.
 *
 * After a failure the last line may be half a one, so nothing is appended any more. Whoever reads
 * the file drops a last line without its end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_IO_JOURNAL_H
#define INVAR_ENGINE_IO_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/file.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_journal invar_journal;

/* A file with these bytes, in place of what is there; more lines are appended to it. */
invar_status invar_journal_begin(invar_journal **out, const char *path, const void *data,
                                 size_t bytes) INVAR_MUST_USE;

/* One line or several, with their ends. */
invar_status invar_journal_append(invar_journal *journal, const void *data,
                                  size_t bytes) INVAR_MUST_USE;
void invar_journal_close(invar_journal *journal);

#ifdef __cplusplus
}
#endif
#endif
