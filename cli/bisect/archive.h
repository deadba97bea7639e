/*
 * archive.h - stores results of bisect and ci in a ledger, so that queries find them later.
 *
 * A check or a search is a run without steps, of kind "ci" or "bisect"; each case, trial and change
 * is an event whose data is the object that --json prints for it. No table is needed, and import,
 * verify, seal and export work for such ledgers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BISECT_ARCHIVE_H
#define INVAR_CLI_BISECT_ARCHIVE_H

#include "bisect/bisect.h"
#include "bisect/ci/ci.h"

/*
 * Opens the ledger at `path` and creates it if needed, so that a path that cannot be written fails
 * before a long computation.
 */
invar_status invar_archive_check(const char *path) INVAR_MUST_USE;

/*
 * Appends a check to the ledger `path`, which is created if it does not exist. `code` is the exit
 * code of the command, here and below.
 */
invar_status invar_archive_ci(const char *path, const invar_ci_result *results, size_t count,
                              int code) INVAR_MUST_USE;

/* Writes answer.db next to the other forms of the result and replaces an earlier one. */
invar_status invar_archive_answer(const invar_bisect_result *result, int code) INVAR_MUST_USE;

#endif
