/*
 * choices.h - the enums of choices.def, and their words: invar_decay and invar_decay_choices.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CHOICES_CHOICES_H
#define INVAR_ENGINE_CHOICES_CHOICES_H

#include "base/recipe/choices.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_CHOICE(ID, WORD) ID,
#define INVAR_CHOICES(TYPE, COUNT, ...)                                                            \
    typedef enum TYPE { __VA_ARGS__ COUNT } TYPE;                                                  \
    extern const invar_choices TYPE##_choices;
#include "engine/choices/choices.def"
#undef INVAR_CHOICES
#undef INVAR_CHOICE

#ifdef __cplusplus
}
#endif
#endif
