/*
 * ab_side.h - one side of an A/B experiment: what it is, its program, its recipe. Inside ab only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_AB_AB_SIDE_H
#define INVAR_BISECT_AB_AB_SIDE_H

#include "bisect/ab/ab.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the text names: kind and given. Looks at the disk, not at the repository. */
invar_status invar_ab_side_read(invar_ab_side *out, const char *text) INVAR_MUST_USE;

/* The commit of a revision; INVAR_E_INVALID: there is none. Nothing to do for the others. */
invar_status invar_ab_side_resolve(invar_ab_side *side, invar_repo *repo) INVAR_MUST_USE;

/* Its program, in `side->built`. */
invar_status invar_ab_side_build(invar_ab_side *side, invar_workspace *workshop,
                                 invar_worktree *slot, invar_repo *repo, const invar_ab_case *what,
                                 const invar_ab_options *options) INVAR_MUST_USE;

/* The recipe that the case has for a side, INVAR_AB_A or INVAR_AB_B. */
const char *invar_ab_side_names(const invar_ab_case *what, int side);

/* Its text, from `path`; the caller owns *out (invar_free). */
invar_status invar_ab_side_recipe(char **out, size_t *bytes_out, const invar_ab_side *side,
                                  const char *path, bool own_recipe, invar_worktree *slot,
                                  invar_repo *repo) INVAR_MUST_USE;

/* The value that a key has in the flags, else in the recipe's text; false: it is in neither. */
bool invar_ab_value(char *out, size_t size, const char *const *flags, const char *recipe,
                    const char *key);

/* The same as a number from 0 on; `fallback` when it is nowhere. */
invar_status invar_ab_number(int64_t *out, const char *const *flags, const char *recipe,
                             const char *key, int64_t fallback) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
