/*
 * ab_side.h - one side of an A/B experiment: name, program and recipe. Private to bisect/ab.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_AB_AB_SIDE_H
#define INVAR_BISECT_AB_AB_SIDE_H

#include "bisect/ab/ab.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets kind and given from the text. Reads the file system, but not the repository. */
invar_status invar_ab_side_read(invar_ab_side *out, const char *text) INVAR_MUST_USE;

/*
 * Resolves the commit of a revision; does nothing for other kinds. Returns INVAR_E_INVALID if the
 * revision does not exist.
 */
invar_status invar_ab_side_resolve(invar_ab_side *side, invar_repo *repo) INVAR_MUST_USE;

/* Builds the program of the side and stores the result in side->built. */
invar_status invar_ab_side_build(invar_ab_side *side, invar_workspace *workspace,
                                 invar_worktree *worktree, invar_repo *repo,
                                 const invar_ab_case *what,
                                 const invar_ab_options *options) INVAR_MUST_USE;

/* Returns the recipe path that the case gives for a side, INVAR_AB_A or INVAR_AB_B. */
const char *invar_ab_side_names(const invar_ab_case *what, int side);

/*
 * Reads the flattened recipe text from `path`, in the side's own tree if own_recipe is set. The
 * caller frees *out with invar_free.
 */
invar_status invar_ab_side_recipe(char **out, size_t *bytes_out, const invar_ab_side *side,
                                  const char *path, bool own_recipe, invar_worktree *worktree,
                                  invar_repo *repo) INVAR_MUST_USE;

/*
 * Reads the value of a key, from the flags or else from the recipe text: an integer of at least 0.
 * *out is `fallback` if the key is absent.
 */
invar_status invar_ab_number(int64_t *out, const char *const *flags, const char *recipe,
                             const char *key, int64_t fallback) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
