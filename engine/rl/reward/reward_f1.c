/*
 * reward_f1.c - F1 score of the words of two texts, as SQuAD defines it.
 *
 * Words are compared in lower case without punctuation and articles. Both texts become sorted
 * lists, whose common words are counted in one merge.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "base/sort.h"
#include "engine/rl/reward/reward_functions.h"

#include "base/invar_banned.h"

/* Words of a text, in lower case, without punctuation and articles. */
typedef struct word_list {
    char *text;          /* words, each NUL-terminated */
    const void **sorted; /* (count) words in ascending order */
    size_t count;
    size_t bytes;
} word_list;

static bool is_article(const char *word)
{
    return strcmp(word, "a") == 0 || strcmp(word, "an") == 0 || strcmp(word, "the") == 0;
}

static bool is_punctuation(char c)
{
    return c > ' ' && c < 0x7F && !invar_is_letter(c) && !invar_is_digit(c);
}

/* Ends the word that begins at `start`. Articles are removed again. */
static void end_word(word_list *w, size_t *start)
{
    if (w->bytes == *start)
        return;
    w->text[w->bytes++] = '\0';
    if (is_article(w->text + *start))
        w->bytes = *start;
    else
        w->sorted[w->count++] = w->text + *start;
    *start = w->bytes;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static invar_status split_words(word_list *w, invar_str_view piece)
{
    size_t start = 0;
    void *block;

    memset(w, 0, sizeof *w);
    INVAR_TRY(invar_alloc(&block, piece.length / 2 + 1, sizeof(void *), "words of a text"));
    w->sorted = block;
    INVAR_TRY(invar_alloc(&block, piece.length + 1, 1, "a text in lower case"));
    w->text = block;
    for (size_t i = 0; i < piece.length; i++) {
        char c = piece.text[i];
        if (invar_is_blank(c) || c == '\0')
            end_word(w, &start);
        else if (!is_punctuation(c))
            w->text[w->bytes++] = invar_lower(c);
    }
    end_word(w, &start);
    return invar_sort(w->sorted, w->count, by_text);
}

static void release_words(word_list *w)
{
    invar_free(w->sorted);
    invar_free(w->text);
}

/* Returns the number of common words; repeated words count as often as both texts have them. */
static size_t count_common_words(const word_list *a, const word_list *b)
{
    size_t i = 0, j = 0, n = 0;

    while (i < a->count && j < b->count) {
        int order = strcmp(a->sorted[i], b->sorted[j]);
        n += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    return n;
}

/* Returns true for "yes", "no" and "noanswer", which must match completely. */
static bool is_verdict(const word_list *w)
{
    const char *word = w->count == 1 ? w->sorted[0] : "";

    return strcmp(word, "yes") == 0 || strcmp(word, "no") == 0 || strcmp(word, "noanswer") == 0;
}

static double score_words(const word_list *given, const word_list *label)
{
    size_t same = count_common_words(given, label);
    double precision, recall;

    if (same == 0 || ((is_verdict(given) || is_verdict(label)) &&
                      (same != given->count || same != label->count)))
        return 0.0;
    precision = (double)same / (double)given->count;
    recall = (double)same / (double)label->count;
    return 2.0 * precision * recall / (precision + recall);
}

invar_status invar_reward_fn_f1(double *out, const invar_reward_input *c)
{
    word_list given, expected = {0};
    invar_status status = split_words(&given, c->response);

    if (status == INVAR_OK)
        status = split_words(&expected, c->label);
    if (status == INVAR_OK)
        *out = score_words(&given, &expected);
    release_words(&given);
    release_words(&expected);
    return status;
}
