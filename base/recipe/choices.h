/*
 * choices.h - enums and the words of their values, from one list.
 *
 * A list is a .def file (engine/config/choices.def) that is included twice: in a header for the
 * enums, and in a source file for the words. The words of `invar_decay` are `invar_decay_choices`;
 * recipes, options, help and messages use them.
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

/* The words of an enum. */
typedef struct invar_choices {
    const char *const *words; /* (count) indexed by value; NULL for a value that cannot be chosen */
    int count;
} invar_choices;

/* Definitions of INVAR_CHOICES and INVAR_CHOICE for including a list for its enums. */
#define INVAR_CHOICES_ENUM(TYPE, COUNT, ...)                                                       \
    typedef enum TYPE { __VA_ARGS__ COUNT } TYPE;                                                  \
    extern const invar_choices TYPE##_choices;
#define INVAR_CHOICE_ID(ID, WORD) ID,

/* Definitions of INVAR_CHOICES and INVAR_CHOICE for including a list for its words. */
#define INVAR_CHOICES_WORDS(TYPE, COUNT, ...)                                                      \
    static const char *const TYPE##_words[COUNT] = {__VA_ARGS__};                                  \
    const invar_choices TYPE##_choices = {TYPE##_words, COUNT};
#define INVAR_CHOICE_WORD(ID, WORD) [ID] = (WORD),

/* Returns the value of a word of `length` bytes; -1 if it is unknown. */
int invar_choices_find(const invar_choices *choices, const char *word, size_t length);

/* Returns the word of a value; NULL if the value is out of range or cannot be chosen. */
const char *invar_choices_word(const invar_choices *choices, int value);

#define INVAR_CHOICES_TEXT_SIZE 512 /* capacity for the text of any list */

/*
 * Writes all words, such as "a, b or c" with ", " between them and " or " before the last. The text
 * is cut to `size` bytes.
 */
void invar_choices_text(char *out, size_t size, const invar_choices *choices, const char *between,
                        const char *last);

#ifdef __cplusplus
}
#endif
#endif
