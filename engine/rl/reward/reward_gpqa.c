/*
 * reward_gpqa.c - reward of a multiple-choice question: the response names the right option.
 *
 * The letter is searched in the text after the last "</think>", from the clearest statement ("the
 * answer is B") to the vaguest (a single capital). If there is no letter, or the right one is
 * unknown, the text of the right option is searched in the response.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "base/json/json.h"
#include "engine/rl/reward/reward_functions.h"

#include "base/invar_banned.h"

enum { LETTERS = 26, DEFAULT_LETTERS = 10 };

/* A question, from metadata and label; strings are borrowed from the JSON. */
typedef struct question {
    bool valid[LETTERS];
    char letters[LETTERS]; /* valid letters in the order of the options */
    size_t n_letters;
    const json_t *choices; /* options, a list or an object; NULL if absent */
    char correct;          /* right letter; 0 if unknown */
    invar_str_view label;
} question;

static char to_upper(char c)
{
    return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

/* ---- letter in the response ------------------------------------------------------------------ */

/* Returns the option's letter at `at` if it is a separate word, else 0. */
static char letter_at(const question *q, invar_str_view p, size_t at)
{
    bool small;

    if (at >= p.length || !invar_is_letter(p.text[at]) || !q->valid[to_upper(p.text[at]) - 'A'] ||
        (at > 0 && invar_is_word(p.text[at - 1])) ||
        (at + 1 < p.length && invar_is_word(p.text[at + 1])))
        return 0;
    // "a" may be an article: a small letter counts only at the end of a phrase
    small = p.text[at] != to_upper(p.text[at]);
    if (small && at + 1 < p.length && !strchr(".,;:)]}*\n\r", p.text[at + 1]))
        return 0;
    return to_upper(p.text[at]);
}

static size_t skip_chars(invar_str_view p, size_t at, const char *set)
{
    while (at < p.length && p.text[at] && strchr(set, p.text[at]))
        at++;
    return at;
}

/*
 * Returns the letter after a word, as in "answer is (B)", "Answer: **B**" or "answer:
 * \boxed{\text{B}}".
 */
static char letter_after_word(const question *q, invar_str_view p, size_t at, const char *word)
{
    static const char *const commands[] = {"\\boxed", "\\text", "\\mathrm", "\\textbf"};

    if (!invar_str_view_matches(p, at, invar_str_view_of(word)))
        return 0;
    at = skip_chars(p, at + strlen(word), " \t\r\n*");
    if (invar_str_view_matches(p, at, invar_str_view_of("is")))
        at += 2;
    at = skip_chars(p, at, " \t\r\n*:");
    for (bool more = true; more;) {
        more = false;
        at = skip_chars(p, at, " ([{*$\"'");
        for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
            if (invar_str_view_matches(p, at, invar_str_view_of(commands[i])) && !more) {
                at += strlen(commands[i]);
                more = true;
            }
        }
    }
    return letter_at(q, p, at);
}

/* Returns the letter of "B is correct" or "B is the correct ...". */
static char letter_before(const question *q, invar_str_view p, size_t at)
{
    char letter = letter_at(q, p, at);

    at = skip_chars(p, at + 1, " )]*\t\r\n");
    if (!letter || !invar_str_view_matches(p, at, invar_str_view_of("is")))
        return 0;
    at = skip_chars(p, at + 2, " \t\r\n");
    if (invar_str_view_matches(p, at, invar_str_view_of("the")))
        at = skip_chars(p, at + 3, " \t\r\n");
    return invar_str_view_matches(p, at, invar_str_view_of("correct")) ? letter : 0;
}

static char find_letter(const question *q, invar_str_view p)
{
    static const char *const words[] = {"answer", "option", "choice"};
    char letter = 0;

    // "answer" takes precedence: options are also discussed before one is chosen
    for (size_t at = p.length; at-- > 0 && !letter;)
        letter = letter_after_word(q, p, at, words[0]);
    for (size_t at = p.length; at-- > 0 && !letter;) {
        letter = letter_after_word(q, p, at, words[1]);
        letter = letter ? letter : letter_after_word(q, p, at, words[2]);
    }
    for (size_t at = p.length; at-- > 0 && !letter;)
        letter = letter_before(q, p, at);
    for (size_t at = p.length; at-- > 0 && !letter;) {
        if (p.text[at] == to_upper(p.text[at]))
            letter = letter_at(q, p, at);
    }
    return letter;
}

static invar_str_view after_thinking(invar_str_view p)
{
    static const char mark[] = "</think>";
    size_t length = sizeof mark - 1;

    for (size_t at = p.length; at >= length; at--) {
        if (memcmp(p.text + at - length, mark, length) == 0)
            return (invar_str_view){p.text + at, p.length - at};
    }
    return p;
}

/* ---- text of options ------------------------------------------------------------------------- */

/*
 * Writes letters and digits in lower case and everything else as one blank, with blanks at both
 * ends. `out` has (length + 3) bytes. Returns the length.
 */
static size_t normalize_text(char *out, invar_str_view p)
{
    size_t n = 0;

    out[n++] = ' ';
    for (size_t i = 0; i < p.length; i++) {
        char c = invar_lower(p.text[i]);
        if (invar_is_letter(c) || invar_is_digit(c))
            out[n++] = c;
        else if (out[n - 1] != ' ')
            out[n++] = ' ';
    }
    if (out[n - 1] != ' ')
        out[n++] = ' ';
    out[n] = '\0';
    return n;
}

/*
 * Compares normalized texts: equal if `exact` is set, else `text` contains `target` as whole words.
 */
static invar_status match_option(bool *out, invar_str_view target, invar_str_view text, bool exact)
{
    size_t room = target.length + 3, length;
    void *block;
    char *a, *b;

    INVAR_TRY(invar_alloc(&block, 1, room + text.length + 3, "texts of an option"));
    a = block;
    b = a + room;
    length = normalize_text(a, target);
    normalize_text(b, text);
    *out = length > 1 && (exact ? strcmp(a, b) == 0 : strstr(b, a) != NULL);
    invar_free(block);
    return INVAR_OK;
}

static invar_str_view text_of(const json_t *value)
{
    const char *text = json_string_value(value);

    return (invar_str_view){text ? text : "", text ? json_string_length(value) : 0};
}

static size_t choice_count(const question *q)
{
    return json_is_array(q->choices) ? json_array_size(q->choices) : json_object_size(q->choices);
}

static invar_str_view choice_text(const question *q, size_t index)
{
    void *at;

    if (json_is_array(q->choices))
        return text_of(json_array_get(q->choices, index));
    at = json_object_iter((json_t *)(uintptr_t)q->choices);
    while (at && index-- > 0)
        at = json_object_iter_next((json_t *)(uintptr_t)q->choices, at);
    return text_of(at ? json_object_iter_value(at) : NULL);
}

/* ---- question -------------------------------------------------------------------------------- */

static void add_letter(question *q, char letter)
{
    letter = to_upper(letter);
    if (letter < 'A' || letter > 'Z' || q->valid[letter - 'A'])
        return;
    q->valid[letter - 'A'] = true;
    q->letters[q->n_letters++] = letter;
}

static void read_letters(question *q, const json_t *metadata)
{
    const json_t *given = json_object_get(metadata, "valid_letters");
    size_t n = choice_count(q) < LETTERS ? choice_count(q) : LETTERS;
    invar_str_view all = text_of(given);

    for (size_t i = 0; i < all.length; i++)
        add_letter(q, all.text[i]);
    for (size_t i = 0; i < json_array_size(given); i++) {
        invar_str_view letter = text_of(json_array_get(given, i));
        if (letter.length == 1)
            add_letter(q, letter.text[0]);
    }
    if (q->n_letters > 0)
        return;
    n = n > 0 ? n : DEFAULT_LETTERS;
    for (size_t i = 0; i < n; i++)
        add_letter(q, (char)('A' + i));
}

static bool names_option(const question *q, invar_str_view p)
{
    return p.length == 1 && invar_is_letter(p.text[0]) && q->valid[to_upper(p.text[0]) - 'A'];
}

/*
 * Finds the right letter: given by metadata or label, or that of the option whose text is the
 * label.
 */
static invar_status read_correct_letter(question *q, const json_t *metadata)
{
    invar_str_view named =
        invar_str_view_trim(text_of(json_object_get(metadata, "correct_letter")));
    bool same = false;

    if (named.length == 1)
        q->correct = to_upper(named.text[0]);
    else if (names_option(q, q->label))
        q->correct = to_upper(q->label.text[0]);
    for (size_t i = 0; !q->correct && i < choice_count(q) && i < q->n_letters; i++) {
        INVAR_TRY(match_option(&same, choice_text(q, i), q->label, true));
        if (same)
            q->correct = q->letters[i];
    }
    return INVAR_OK;
}

/* Returns 1 if the response contains the text of the right option, or the label. */
static invar_status score_by_text(double *out, const question *q, invar_str_view response,
                                  const json_t *metadata)
{
    invar_str_view targets[4] = {{"", 0}};
    bool found = false;

    for (size_t i = 0; q->correct && i < q->n_letters; i++) {
        if (q->letters[i] == q->correct)
            targets[0] = choice_text(q, i);
    }
    targets[1] = text_of(json_object_get(metadata, "correct_answer"));
    targets[2] = text_of(json_object_get(metadata, "answer_text"));
    if (!names_option(q, q->label))
        targets[3] = q->label;
    for (int i = 0; i < 4 && !found; i++) {
        if (targets[i].length > 0)
            INVAR_TRY(match_option(&found, targets[i], response, false));
    }
    *out = found ? 1.0 : 0.0;
    return INVAR_OK;
}

static invar_status score_response(double *out, invar_str_view response, invar_str_view label,
                                   const json_t *metadata)
{
    question q = {.label = invar_str_view_trim(label)};
    char letter;

    q.choices = json_object_get(metadata, "choices");
    read_letters(&q, metadata);
    INVAR_TRY(read_correct_letter(&q, metadata));
    response = after_thinking(response);
    letter = find_letter(&q, response);
    if (letter && q.correct) {
        *out = letter == q.correct ? 1.0 : 0.0;
        return INVAR_OK;
    }
    return score_by_text(out, &q, response, metadata);
}

invar_status invar_reward_fn_gpqa(double *out, const invar_reward_input *c)
{
    const char *metadata = c->sample->data.metadata;
    invar_status status;
    json_t *object;

    INVAR_TRY(invar_json_parse(&object, "metadata of a sample", metadata, strlen(metadata)));
    status = score_response(out, c->response, c->label, object);
    json_decref(object);
    return status;
}
