/*
 * ledger_use.h - all reading commands on a ledger, for targets that damage one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_FUZZ_LEDGER_LEDGER_USE_H
#define INVAR_TESTS_FUZZ_LEDGER_LEDGER_USE_H

#include <stdbool.h>

#include "ledger/ledger.h"
#include "tests/ledger.h"

/* A small run with rows in every table, built from modified sources and resumed once. */
extern const invar_test_ledger fuzz_spec;

/*
 * Lists, seals, queries (the named query at index `query`), compares (with itself and with
 * `other`), exports, reports and verifies run 1. Aborts if a failure has no proper message, or if a
 * part takes more than a minute: a call that does not return is a finding, too. Returns true if
 * verify found no problem.
 */
bool fuzz_use(invar_ledger *ledger, invar_ledger *other, int query);

/* Resumes the run as its writer and appends a step. A failure must have a proper message. */
void fuzz_write_on(const char *path);

#endif
