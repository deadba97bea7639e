/*
 * user_facts.h - facts about a run that whoever starts it gives along, in the variable INVAR_FACTS.
 *
 *     ab.experiment=1f0c...
 *     ab.side=a
 *
 * A line is SCOPE.KEY=VALUE. The scopes are ab, ci, bisect and user: nobody can pass off a fact of
 * the build or of the host this way. They stand in the ledger beside the others and change no bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_USER_FACTS_H
#define INVAR_ENGINE_RUN_USER_FACTS_H

#include <stddef.h>

#include "base/status.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_USER_FACTS_MAX 64
#define INVAR_USER_FACTS_BYTES 65536 /* of all lines */
#define INVAR_USER_FACTS_KEY 63      /* bytes of a key: letters, digits, '-' and '_' */

/* Zeroed, it has none. */
typedef struct invar_user_facts {
    invar_ledger_fact items[INVAR_USER_FACTS_MAX];
    size_t count;
    char *memory; /* what the items point into */
} invar_user_facts;

/* Every line must be right; the last may end with a line end. No text is no fact. */
invar_status invar_user_facts_parse(invar_user_facts *out, const char *text,
                                    size_t bytes) INVAR_MUST_USE;

/* Those of the environment. */
invar_status invar_user_facts_read(invar_user_facts *out) INVAR_MUST_USE;

void invar_user_facts_release(invar_user_facts *facts);

#ifdef __cplusplus
}
#endif
#endif
