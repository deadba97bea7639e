/*
 * choices.c - the words of choices.def.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/choices/choices.h"

#include "base/invar_banned.h"

#define INVAR_CHOICES INVAR_CHOICES_WORDS
#define INVAR_CHOICE INVAR_CHOICE_WORD
#include "engine/choices/choices.def"
#undef INVAR_CHOICES
#undef INVAR_CHOICE
