/*
 * ledger_use.h - all that can be done with a ledger, for targets that damage one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_FUZZ_LEDGER_LEDGER_USE_H
#define INVAR_TESTS_FUZZ_LEDGER_LEDGER_USE_H

#include <stdbool.h>

#include "ledger/ledger.h"
#include "tests/ledger.h"

/* A small run with something in every table, built from modified sources, resumed once. */
extern const invar_test_ledger fuzz_spec;

/*
 * Lists, seals, asks the named query of that index, compares (with itself, and with `other`),
 * exports, reports and verifies the run 1. Aborts when a failure has no proper message, or when it
 * takes a minute: a call that does not end is a finding, too. True when verify found nothing.
 */
bool fuzz_use(invar_ledger *ledger, invar_ledger *other, int query);

/* Resumes the run as its writer, and appends a step. */
void fuzz_write_on(const char *path);

#endif
