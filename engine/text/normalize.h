/*
 * normalize.h - the normalizer of a tokenizer: a list of steps that each rewrite a text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_NORMALIZE_H
#define INVAR_ENGINE_TEXT_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "engine/text/replace.h"
#include "engine/text/unicode.h"

typedef struct invar_normal_step {
    enum {
        INVAR_NORMAL_FORM,
        INVAR_NORMAL_LOWERCASE,
        INVAR_NORMAL_STRIP,         /* removes white space at `left` and `right` */
        INVAR_NORMAL_STRIP_ACCENTS, /* removes all marks */
        INVAR_NORMAL_PREPEND,       /* puts `to` before the text, unless the text is empty */
        INVAR_NORMAL_REPLACE        /* replaces every `from` by `to` */
    } kind;
    invar_unicode_form form;
    bool left, right;
    invar_literal from, to;
} invar_normal_step;

#define INVAR_NORMAL_STEPS_MAX 16

typedef struct invar_normalizer {
    invar_normal_step steps[INVAR_NORMAL_STEPS_MAX];
    size_t n_steps;
} invar_normalizer;

/*
 * Normalizes a valid UTF-8 text; the result is valid UTF-8 as well, has *bytes_out bytes and is not
 * terminated. *out is NULL if no step rewrote the text: use the text itself. The caller frees *out
 * with invar_free.
 */
invar_status invar_normalize(char **out, size_t *bytes_out, const invar_normalizer *normalizer,
                             const char *text, size_t bytes) INVAR_MUST_USE;

#endif
