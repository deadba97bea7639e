/*
 * choices.h - the values of an enum and their words, from one list.
 *
 * A list is a .def file (engine/config/choices.def), which is included twice: in a header for the
 * enums, in a source for the words. The words of `invar_decay` are `invar_decay_choices`; recipes,
 * options, help and messages read them there.
 *
 *     INVAR_CHOICES(invar_decay, INVAR_DECAY_COUNT,
 *                   INVAR_CHOICE(INVAR_DECAY_CONSTANT, "constant")
 *                   INVAR_CHOICE(INVAR_DECAY_LINEAR, "linear"))
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_RECIPE_CHOICES_H
#define INVAR_BASE_RECIPE_CHOICES_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_choices {
    const char *const *words; /* (count) by value; NULL: this one cannot be chosen */
    int count;
} invar_choices;

/* What INVAR_CHOICES and INVAR_CHOICE are defined as, where a list is included for its enums ... */
#define INVAR_CHOICES_ENUM(TYPE, COUNT, ...)                                                       \
    typedef enum TYPE { __VA_ARGS__ COUNT } TYPE;                                                  \
    extern const invar_choices TYPE##_choices;
#define INVAR_CHOICE_ID(ID, WORD) ID,

/* ... and for its words. */
#define INVAR_CHOICES_WORDS(TYPE, COUNT, ...)                                                      \
    static const char *const TYPE##_words[COUNT] = {__VA_ARGS__};                                  \
    const invar_choices TYPE##_choices = {TYPE##_words, COUNT};
#define INVAR_CHOICE_WORD(ID, WORD) [ID] = (WORD),

/* The value of the word; -1: it is none of them. */
int invar_choices_find(const invar_choices *choices, const char *word, size_t length);

/* The word of a value; NULL out of range. */
const char *invar_choices_word(const invar_choices *choices, int value);

#define INVAR_CHOICES_TEXT_SIZE 512 /* of every list of ours, written out */

/* "a, b or c", with ", " between and " or " before the last; cut to `size`. */
void invar_choices_text(char *out, size_t size, const invar_choices *choices, const char *between,
                        const char *last);

#ifdef __cplusplus
}
#endif
#endif
