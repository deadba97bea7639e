/*
 * user_facts.h - facts about a run that the user passes in the environment variable INVAR_FACTS.
 *
 *     ab.experiment=1f0c...
 *     ab.side=a
 *
 * A line is SCOPE.KEY=VALUE. Only the scopes ab, ci, bisect and user are allowed, so that a user
 * fact cannot pass for one about build or host. User facts are stored in the ledger beside those
 * and change no bit of a result.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_IDENTITY_USER_FACTS_H
#define INVAR_ENGINE_RUN_IDENTITY_USER_FACTS_H

#include <stddef.h>

#include "base/status.h"
#include "ledger/ledger.h"

#define INVAR_USER_FACTS_MAX 64
#define INVAR_USER_FACTS_BYTES 65536 /* limit for the text of all facts */
#define INVAR_USER_FACTS_KEY                                                                       \
    63 /* largest number of bytes of a key; a key has letters,
          digits, '-' and '_' */

/* Facts of a run; zeroed if there are no facts. Release with invar_user_facts_release. */
typedef struct invar_user_facts {
    invar_ledger_fact items[INVAR_USER_FACTS_MAX];
    size_t count;
    char *memory; /* owned text that the items point into */
} invar_user_facts;

/*
 * Parses the facts. Returns INVAR_E_INVALID with the line number if any line is wrong. The last
 * line may lack its newline; an empty text has no facts.
 */
invar_status invar_user_facts_parse(invar_user_facts *out, const char *text,
                                    size_t bytes) INVAR_MUST_USE;

/* Like invar_user_facts_parse, with the value of INVAR_FACTS. */
invar_status invar_user_facts_read(invar_user_facts *out) INVAR_MUST_USE;

void invar_user_facts_release(invar_user_facts *facts);

#endif
