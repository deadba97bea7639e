/*
 * choices.c - tables of words for the enums of choices.def.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/choices.h"

#include "base/invar_banned.h"

#define INVAR_CHOICES INVAR_CHOICES_WORDS
#define INVAR_CHOICE INVAR_CHOICE_WORD
#include "engine/config/choices.def"
#undef INVAR_CHOICES
#undef INVAR_CHOICE
