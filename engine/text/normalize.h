/*
 * normalize.h - the steps of a tokenizer's normalizer.
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

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_normal_step {
    enum {
        INVAR_NORMAL_FORM,
        INVAR_NORMAL_LOWERCASE,
        INVAR_NORMAL_STRIP,         /* white space at `left` and `right` */
        INVAR_NORMAL_STRIP_ACCENTS, /* all marks */
        INVAR_NORMAL_PREPEND,       /* `to`, unless the text is empty */
        INVAR_NORMAL_REPLACE        /* every `from` by `to` */
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
 * The caller owns *out (invar_free); it is NULL where nothing changed: use the text itself, which
 * is valid UTF-8 as the result is.
 */
invar_status invar_normalize(char **out, size_t *bytes_out, const invar_normalizer *normalizer,
                             const char *text, size_t bytes) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
