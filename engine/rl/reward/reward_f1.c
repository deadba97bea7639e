/*
 * reward_f1.c - the F1 of two texts' words, as SQuAD counts them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "base/sort.h"
#include "engine/rl/reward/reward_functions.h"

#include "base/invar_banned.h"

/* The words of a text, in lower case, without punctuation and articles. */
typedef struct words {
    char *text;          /* each word ends with NUL */
    const void **sorted; /* (count) strings */
    size_t count;
    size_t bytes;
} words;

static bool is_article(const char *word)
{
    return strcmp(word, "a") == 0 || strcmp(word, "an") == 0 || strcmp(word, "the") == 0;
}

static bool is_punctuation(char c)
{
    return c > ' ' && c < 0x7F && !invar_is_letter(c) && !invar_is_digit(c);
}

/* A word begins at `start` in the text and ends at `end`. Articles are taken back. */
static void end_word(words *w, size_t *start)
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

static invar_status words_init(words *w, invar_str_view piece)
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

static void words_release(words *w)
{
    invar_free(w->sorted);
    invar_free(w->text);
}

/* Words of both, each as often as it is in both. */
static size_t words_common(const words *a, const words *b)
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

/* "yes", "no", "noanswer": right or wrong, nothing between. */
static bool is_verdict(const words *w)
{
    const char *word = w->count == 1 ? w->sorted[0] : "";

    return strcmp(word, "yes") == 0 || strcmp(word, "no") == 0 || strcmp(word, "noanswer") == 0;
}

static double words_score(const words *given, const words *label)
{
    size_t same = words_common(given, label);
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
    words given, expected = {0};
    invar_status status = words_init(&given, c->response);

    if (status == INVAR_OK)
        status = words_init(&expected, c->label);
    if (status == INVAR_OK)
        *out = words_score(&given, &expected);
    words_release(&given);
    words_release(&expected);
    return status;
}
