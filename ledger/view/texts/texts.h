/*
 * texts.h - the kept samples of a ledger with their texts: expanded, checked, and readable with
 * SQL.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VIEW_TEXTS_TEXTS_H
#define INVAR_LEDGER_VIEW_TEXTS_TEXTS_H

#include <jansson.h>
#include <stddef.h>

#include "base/status.h"
#include "ledger/ledger.h"

/* A kept sample. Release it with invar_texts_release. */
typedef struct invar_texts_sample {
    json_t *members; /* the JSON object of docs/formats.md; NULL if the sample is damaged */
    char *text;      /* (bytes) the JSON that `members` was read from; NULL if damaged */
    size_t bytes;    /* expanded bytes; if damaged, an upper bound of what was expanded */
    const char *why; /* reason why the sample is damaged, a constant; NULL if it is not */
} invar_texts_sample;

/*
 * Expands, parses and checks `data` (bytes), a value of the column kept_sample.data. Damage is not
 * a failure: it sets out->why.
 */
invar_status invar_texts_read(invar_texts_sample *out, const void *data,
                              size_t bytes) INVAR_MUST_USE;
void invar_texts_release(invar_texts_sample *sample);

/*
 * Adds the view sample_texts and the function sample_text to the connection of a ledger that was
 * opened for reading. Both exist in this connection only: the file is not changed.
 */
invar_status invar_texts_add(invar_ledger *ledger) INVAR_MUST_USE;

#endif
