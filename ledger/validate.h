/*
 * validate.h - checks the values that callers pass to ledger calls. Private to ledger/.
 *
 * Called before a transaction begins. Every function returns INVAR_E_INVALID if a value is not
 * allowed; `what` names it in the message.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VALIDATE_H
#define INVAR_LEDGER_VALIDATE_H

#include "base/recipe/choices.h"
#include "base/status.h"
#include "ledger/ledger.h"

/* Checks a name: 1 to INVAR_LEDGER_NAME_BYTES bytes of UTF-8 without control characters. */
invar_status invar_ledger_validate_name(const char *what, const char *name) INVAR_MUST_USE;

/* Checks that `word` is one of `words`. */
invar_status invar_ledger_validate_word(const char *what, const char *word,
                                        const invar_choices *words) INVAR_MUST_USE;

/* Checks a text: UTF-8 of any length, without control characters except tabs and line ends. */
invar_status invar_ledger_validate_text(const char *what, const char *text) INVAR_MUST_USE;

/* Checks level, kind, message and data of an event. */
invar_status invar_ledger_validate_event(const invar_ledger_event *event) INVAR_MUST_USE;

/*
 * Checks that there are at most INVAR_LEDGER_VALIDATE_METRICS metrics and that their names are
 * unique. Writes pointers to them, sorted by name, to `order` (count).
 */
invar_status invar_ledger_validate_metrics(const invar_ledger_metric **order, const char *what,
                                           const invar_ledger_metric *metrics,
                                           size_t count) INVAR_MUST_USE;

#define INVAR_LEDGER_VALIDATE_METRICS 4096

#endif
