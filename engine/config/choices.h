/*
 * choices.h - enums of choices.def and their words, for example invar_decay and
 * invar_decay_choices.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CONFIG_CHOICES_H
#define INVAR_ENGINE_CONFIG_CHOICES_H

#include "base/recipe/choices.h"

#define INVAR_CHOICES INVAR_CHOICES_ENUM
#define INVAR_CHOICE INVAR_CHOICE_ID
#include "engine/config/choices.def"
#undef INVAR_CHOICES
#undef INVAR_CHOICE

#endif
