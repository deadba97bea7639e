/*
 * validate.h - what callers hand in is checked before a transaction begins. Inside ledger/ only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VALIDATE_H
#define INVAR_LEDGER_VALIDATE_H

#include "base/recipe/choices.h"
#include "base/status.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A name: 1 to INVAR_LEDGER_NAME_BYTES bytes of printable UTF-8. `what` is for the message. */
invar_status invar_ledger_validate_name(const char *what, const char *name) INVAR_MUST_USE;

/* One of the words. */
invar_status invar_ledger_validate_word(const char *what, const char *word,
                                        const invar_choices *words) INVAR_MUST_USE;

/* A text: UTF-8 of any length; tabs and line ends are allowed. */
invar_status invar_ledger_validate_text(const char *what, const char *text) INVAR_MUST_USE;

invar_status invar_ledger_validate_event(const invar_ledger_event *event) INVAR_MUST_USE;

/* At most 4096, names unique; `order` gets pointers to them, sorted by name. */
invar_status invar_ledger_validate_metrics(const invar_ledger_metric **order, const char *what,
                                           const invar_ledger_metric *metrics,
                                           size_t count) INVAR_MUST_USE;

#define INVAR_LEDGER_VALIDATE_METRICS 4096

#ifdef __cplusplus
}
#endif
#endif
