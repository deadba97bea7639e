/*
 * verbs.c - which verbs this build has, in the order in which help lists them.
 *
 * What people use most comes first.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/verb.h"

#include "base/invar_banned.h"

const invar_verb *const invar_verbs[] = {
#ifdef INVAR_LEDGER
    &invar_verb_train,
    &invar_verb_plan,
    &invar_verb_eval,
    &invar_verb_generate,
    &invar_verb_score,
    &invar_verb_serve,
    &invar_verb_convert,
    &invar_verb_replay,
    &invar_verb_pack,
    &invar_verb_import_miles,
    &invar_verb_ledger,
    &invar_verb_diff,
    &invar_verb_triage,
#endif
#ifdef INVAR_BISECT
    &invar_verb_bisect,
    &invar_verb_blame,
    &invar_verb_ab,
    &invar_verb_ci,
#endif
    &invar_verb_selfcheck,
    &invar_verb_doctor,
    &invar_verb_bench,
    &invar_verb_version,
    NULL,
};
