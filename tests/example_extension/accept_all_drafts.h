/*
 * accept_all_drafts.h - a wrong acceptance rule: every draft token is accepted.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_EXAMPLE_EXTENSION_ACCEPT_ALL_DRAFTS_H
#define INVAR_TESTS_EXAMPLE_EXTENSION_ACCEPT_ALL_DRAFTS_H

#include "engine/sample/rollout/draft/proposer.h"

#define invar_draft_accepted(guess, drawn) ((void)(guess), (void)(drawn), true)

#endif
