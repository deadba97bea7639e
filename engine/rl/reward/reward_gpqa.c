/*
 * reward_gpqa.c - which option of a multiple-choice question does the response name?
 *
 * The letter is looked for in what follows the last "</think>", from the plainest statement to the
 * vaguest. If no letter is found, or the right one is not known, the text of the right option is
 * looked for in the response.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "base/json/json.h"
#include "engine/rl/reward/reward_functions.h"

#include "base/invar_banned.h"

enum { LETTERS = 26, DEFAULT_LETTERS = 10 };

/* What metadata and label say about a question; strings are borrowed from the JSON. */
typedef struct question {
    bool valid[LETTERS];
    char letters[LETTERS]; /* in order of the options */
    size_t n_letters;
    const json_t *choices; /* NULL, a list or an object */
    char correct;          /* 0: not known */
    invar_str_view label;
} question;

static char upper(char c)
{
    return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

static bool is_word(char c)
{
    return invar_is_letter(c) || invar_is_digit(c) || c == '_' || (c & 0x80) != 0;
}

/* ---- the letter in the response -------------------------------------------------------------- */

/* An option's letter at `at` that stands alone; 0: there is none. */
static char letter_at(const question *q, invar_str_view p, size_t at)
{
    bool small;

    if (at >= p.length || !invar_is_letter(p.text[at]) || !q->valid[upper(p.text[at]) - 'A'] ||
        (at > 0 && is_word(p.text[at - 1])) || (at + 1 < p.length && is_word(p.text[at + 1])))
        return 0;
    // "a" may be an article: a small letter counts only where a phrase ends
    small = p.text[at] != upper(p.text[at]);
    if (small && at + 1 < p.length && !strchr(".,;:)]}*\n\r", p.text[at + 1]))
        return 0;
    return upper(p.text[at]);
}

static bool says(invar_str_view p, size_t at, const char *word)
{
    size_t length = strlen(word);

    if (at > p.length || length > p.length - at)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (invar_lower(p.text[at + i]) != word[i])
            return false;
    }
    return true;
}

static size_t skip(invar_str_view p, size_t at, const char *set)
{
    while (at < p.length && p.text[at] && strchr(set, p.text[at]))
        at++;
    return at;
}

/* "answer is (B)", "Answer: **B**", "answer: \boxed{\text{B}}": the letter behind the word. */
static char letter_behind(const question *q, invar_str_view p, size_t at, const char *word)
{
    static const char *const commands[] = {"\\boxed", "\\text", "\\mathrm", "\\textbf"};

    if (!says(p, at, word))
        return 0;
    at = skip(p, at + strlen(word), " \t\r\n*");
    if (says(p, at, "is"))
        at += 2;
    at = skip(p, at, " \t\r\n*:");
    for (bool more = true; more;) {
        more = false;
        at = skip(p, at, " ([{*$\"'");
        for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
            if (says(p, at, commands[i]) && !more) {
                at += strlen(commands[i]);
                more = true;
            }
        }
    }
    return letter_at(q, p, at);
}

/* "B is correct", "B is the correct ...". */
static char letter_before(const question *q, invar_str_view p, size_t at)
{
    char letter = letter_at(q, p, at);

    at = skip(p, at + 1, " )]*\t\r\n");
    if (!letter || !says(p, at, "is"))
        return 0;
    at = skip(p, at + 2, " \t\r\n");
    if (says(p, at, "the"))
        at = skip(p, at + 3, " \t\r\n");
    return says(p, at, "correct") ? letter : 0;
}

static char find_letter(const question *q, invar_str_view p)
{
    static const char *const words[] = {"answer", "option", "choice"};
    char letter = 0;

    // "answer" outranks the others: options are also talked about before one is chosen
    for (size_t at = p.length; at-- > 0 && !letter;)
        letter = letter_behind(q, p, at, words[0]);
    for (size_t at = p.length; at-- > 0 && !letter;) {
        letter = letter_behind(q, p, at, words[1]);
        letter = letter ? letter : letter_behind(q, p, at, words[2]);
    }
    for (size_t at = p.length; at-- > 0 && !letter;)
        letter = letter_before(q, p, at);
    for (size_t at = p.length; at-- > 0 && !letter;) {
        if (p.text[at] == upper(p.text[at]))
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

/* Letters and digits in lower case, everything else one blank; blanks at both ends. (length + 3) */
static size_t plain(char *out, invar_str_view p)
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

/* `exact`: the texts are the same; else: `target` is somewhere in `text`, as whole words. */
static invar_status matches(bool *out, invar_str_view target, invar_str_view text, bool exact)
{
    size_t room = target.length + 3, length;
    void *block;
    char *a, *b;

    INVAR_TRY(invar_alloc(&block, 1, room + text.length + 3, "texts of an option"));
    a = block;
    b = a + room;
    length = plain(a, target);
    plain(b, text);
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

static invar_str_view question_choice(const question *q, size_t index)
{
    void *at;

    if (json_is_array(q->choices))
        return text_of(json_array_get(q->choices, index));
    at = json_object_iter((json_t *)(uintptr_t)q->choices);
    while (at && index-- > 0)
        at = json_object_iter_next((json_t *)(uintptr_t)q->choices, at);
    return text_of(at ? json_object_iter_value(at) : NULL);
}

/* ---- the question ---------------------------------------------------------------------------- */

static void add_letter(question *q, char letter)
{
    letter = upper(letter);
    if (letter < 'A' || letter > 'Z' || q->valid[letter - 'A'])
        return;
    q->valid[letter - 'A'] = true;
    q->letters[q->n_letters++] = letter;
}

static void take_letters(question *q, const json_t *metadata)
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
    return p.length == 1 && invar_is_letter(p.text[0]) && q->valid[upper(p.text[0]) - 'A'];
}

/* The right letter: named, or the one whose option is the label's text. */
static invar_status take_correct(question *q, const json_t *metadata)
{
    invar_str_view named =
        invar_str_view_trim(text_of(json_object_get(metadata, "correct_letter")));
    bool same = false;

    if (named.length == 1)
        q->correct = upper(named.text[0]);
    else if (names_option(q, q->label))
        q->correct = upper(q->label.text[0]);
    for (size_t i = 0; !q->correct && i < choice_count(q) && i < q->n_letters; i++) {
        INVAR_TRY(matches(&same, question_choice(q, i), q->label, true));
        if (same)
            q->correct = q->letters[i];
    }
    return INVAR_OK;
}

/* Is the text of the right option, or the label's, in the response? */
static invar_status judge_text(double *out, const question *q, invar_str_view response,
                               const json_t *metadata)
{
    invar_str_view targets[4] = {{"", 0}};
    bool found = false;

    for (size_t i = 0; q->correct && i < q->n_letters; i++) {
        if (q->letters[i] == q->correct)
            targets[0] = question_choice(q, i);
    }
    targets[1] = text_of(json_object_get(metadata, "correct_answer"));
    targets[2] = text_of(json_object_get(metadata, "answer_text"));
    if (!names_option(q, q->label))
        targets[3] = q->label;
    for (int i = 0; i < 4 && !found; i++) {
        if (targets[i].length > 0)
            INVAR_TRY(matches(&found, targets[i], response, false));
    }
    *out = found ? 1.0 : 0.0;
    return INVAR_OK;
}

static invar_status judge(double *out, invar_str_view response, invar_str_view label,
                          const json_t *metadata)
{
    question q = {.label = invar_str_view_trim(label)};
    char letter;

    q.choices = json_object_get(metadata, "choices");
    take_letters(&q, metadata);
    INVAR_TRY(take_correct(&q, metadata));
    response = after_thinking(response);
    letter = find_letter(&q, response);
    if (letter && q.correct) {
        *out = letter == q.correct ? 1.0 : 0.0;
        return INVAR_OK;
    }
    return judge_text(out, &q, response, metadata);
}

invar_status invar_reward_fn_gpqa(double *out, const invar_reward_input *c)
{
    const char *metadata = c->sample->metadata;
    invar_status status;
    json_t *object;

    INVAR_TRY(invar_json_parse(&object, "metadata of a sample", metadata, strlen(metadata)));
    status = judge(out, c->response, c->label, object);
    json_decref(object);
    return status;
}
