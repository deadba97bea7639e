/*
 * choices.c - the words of choices.def.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/choices/choices.h"

#include "base/invar_banned.h"

#define INVAR_CHOICE(ID, WORD) [ID] = (WORD),
#define INVAR_CHOICES(TYPE, COUNT, ...)                                                            \
    static const char *const TYPE##_words[COUNT] = {__VA_ARGS__};                                  \
    const invar_choices TYPE##_choices = {TYPE##_words, COUNT};
#include "engine/choices/choices.def"
#undef INVAR_CHOICES
#undef INVAR_CHOICE
