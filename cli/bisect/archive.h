/*
 * archive.h - answers of bisect and ci as runs of a ledger, so that queries find them later.
 *
 * A check or a search is a run without steps, of kind "ci" or "bisect"; each of its cases, trials
 * and changes is an event whose data is the object that --json has for it. So no table is needed,
 * and import, verify, seal and export know such ledgers already.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BISECT_ARCHIVE_H
#define INVAR_CLI_BISECT_ARCHIVE_H

#include "bisect/bisect.h"
#include "bisect/ci/ci.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Before long work: is there a ledger at `path` that can be written, or a place for one? */
invar_status invar_archive_check(const char *path) INVAR_MUST_USE;

/* Appends a check to the ledger `path`, which is made where it is missing. */
invar_status invar_archive_ci(const char *path, const invar_ci_result *results, size_t count,
                              int code) INVAR_MUST_USE;

/* Makes answer.db beside the other forms of the answer; an earlier one is replaced. */
invar_status invar_archive_answer(const invar_bisect_result *answer, int code) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
