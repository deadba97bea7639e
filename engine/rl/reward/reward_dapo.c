/*
 * reward_dapo.c - reward of the DAPO data set: the text after the last "Answer:" equals the label.
 *
 * Only the last 300 characters are searched. Answer and label are normalized by the rewriting rules
 * of DAPO's grader, in its order; the order of the rules changes results and must stay.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "engine/rl/reward/reward_functions.h"

#include "base/invar_banned.h"

enum { TAIL_CHARACTERS = 300 };

static invar_str_view last_characters(invar_str_view p)
{
    size_t at = p.length, characters = 0;

    while (at > 0 && characters < TAIL_CHARACTERS) {
        at--;
        characters += (p.text[at] & 0xC0) != 0x80;
    }
    return (invar_str_view){p.text + at, p.length - at};
}

static size_t skip_blanks(invar_str_view p, size_t at)
{
    while (at < p.length && invar_is_blank(p.text[at]))
        at++;
    return at;
}

/* Matches "answer", blanks, ":", blanks, then text up to the end of the line. */
static bool answer_at(invar_str_view *out, invar_str_view p, size_t at)
{
    size_t first, end;

    if (!invar_str_view_matches(p, at, invar_str_view_of("answer")))
        return false;
    at = skip_blanks(p, at + 6);
    if (at == p.length || p.text[at] != ':')
        return false;
    first = skip_blanks(p, ++at);
    while (first == p.length || (first > at && p.text[first] == '\n')) {
        if (first == at)
            return false; // only line ends follow
        first--;
    }
    for (end = first; end < p.length && p.text[end] != '\n';)
        end++;
    *out = (invar_str_view){p.text + first, end - first};
    return end > first;
}

/* Finds the last answer; answers do not overlap, from left to right. */
static bool last_answer(invar_str_view *out, invar_str_view p)
{
    bool found = false;

    for (size_t at = 0; at < p.length;) {
        bool here = answer_at(out, p, at);
        at = here ? (size_t)(out->text - p.text) + out->length : at + 1;
        if (here)
            found = true;
    }
    return found;
}

/* ---- normalization --------------------------------------------------------------------------- */

/* Replaces "head...}" by its content, up to the first brace, or the last one if `last` is set. */
static void unwrap_command(invar_answer_text *a, const char *head, bool last)
{
    for (size_t at = 0;;) {
        size_t end, found;
        at = invar_str_view_find(invar_answer_text_view(a), at, head);
        if (at >= a->length)
            return;
        found = end = invar_str_view_find(invar_answer_text_view(a), at + strlen(head), "}");
        while (last && found < a->length) {
            end = found;
            found = invar_str_view_find(invar_answer_text_view(a), end + 1, "}");
        }
        if (end >= a->length)
            return;
        invar_answer_text_erase(a, end, 1);
        invar_answer_text_erase(a, at, strlen(head));
        at = end - strlen(head);
    }
}

/* Keeps the text from the first to the second dollar, if there are two. */
static void keep_formula(invar_answer_text *a)
{
    size_t first = invar_str_view_find(invar_answer_text_view(a), 0, "$");
    size_t second = invar_str_view_find(invar_answer_text_view(a), first + 1, "$");

    if (first >= a->length || second >= a->length)
        return;
    invar_answer_text_erase(a, second + 1, a->length - second - 1);
    invar_answer_text_erase(a, 0, first);
}

/* Adds braces: "frac12" becomes "frac{1}{2}", "sqrt3" becomes "sqrt{3}". */
static void brace_arguments(invar_answer_text *a, const char *word, bool two)
{
    for (size_t at = 0;;) {
        size_t middle, end;
        at = invar_str_view_find(invar_answer_text_view(a), at, word);
        if (at >= a->length)
            return;
        at += strlen(word);
        if (at >= a->length || a->text[at] == '{')
            continue;
        middle = at + invar_str_view_character(invar_answer_text_view(a), at);
        if (two && middle >= a->length)
            continue;
        end = two ? middle + invar_str_view_character(invar_answer_text_view(a), middle) : middle;
        if (two && a->text[middle] != '{') {
            invar_answer_text_insert(a, end, "}");
            invar_answer_text_insert(a, middle, "{");
        }
        invar_answer_text_insert(a, middle, "}");
        invar_answer_text_insert(a, at, "{");
        at = end;
    }
}

/* Removes the commas of "1,234" if all other characters are digits. */
static void join_digits(invar_answer_text *a)
{
    bool digit = false;

    for (size_t i = 0; i < a->length; i++) {
        digit = digit || invar_is_digit(a->text[i]);
        if (!invar_is_digit(a->text[i]) && a->text[i] != ',')
            return;
    }
    if (digit)
        invar_answer_text_replace(a, ",", "");
}

static void normalize_answer(invar_answer_text *a, invar_str_view piece)
{
    static const char *const replaced[][2] = {{"an ", ""},          {"a ", ""},
                                              {".$", "$"},          {"\\$", ""},
                                              {"\\ ", ""},          {" ", ""},
                                              {"mbox", "text"},     {",\\text{and}", ","},
                                              {"\\text{and}", ","}, {"\\text{m}", "\\text{}"}};
    static const char *const removed[] = {
        "square",     "ways",       "integers",     "dollars",      "mph",
        "inches",     "hours",      "km",           "units",        "\\ldots",
        "sue",        "points",     "feet",         "minutes",      "digits",
        "cents",      "degrees",    "cm",           "gm",           "pounds",
        "meters",     "meals",      "edges",        "students",     "childrentickets",
        "multiples",  "\\text{s}",  "\\text{.}",    "\\text{\ns}",  "\\text{}^2",
        "\\text{}^3", "\\text{\n}", "\\text{}",     "\\mathrm{th}", "^\\circ",
        "^{\\circ}",  "\\;",        ",\\!",         "{,}",          "\"",
        "\\dots",     "<|im_end|>", "<|endoftext|>"};
    size_t sign = piece.length;

    while (sign > 0 && piece.text[sign - 1] != '=')
        sign--;
    invar_answer_text_set(a, (invar_str_view){piece.text + sign, piece.length - sign});
    for (size_t i = 0; i < sizeof replaced / sizeof replaced[0]; i++)
        invar_answer_text_replace(a, replaced[i][0], replaced[i][1]);
    for (size_t i = 0; i < sizeof removed / sizeof removed[0]; i++)
        invar_answer_text_replace(a, removed[i], "");
    keep_formula(a);
    unwrap_command(a, "\\text{", false);
    unwrap_command(a, "\\textbf{", false);
    unwrap_command(a, "\\overline{", false);
    unwrap_command(a, "\\boxed{", true);
    brace_arguments(a, "frac", true);
    brace_arguments(a, "sqrt", false);
    invar_answer_text_replace(a, "$", "");
    join_digits(a);
    invar_answer_text_trim(a);
}

/*
 * Truncates a number to an integer, like the labels of this data set: "42.0" becomes "42". Other
 * text stays.
 */
static void truncate_to_integer(invar_answer_text *a)
{
    char text[32];
    double value;

    for (size_t i = 0; i < a->length; i++) {
        if (!invar_is_digit(a->text[i]) && !strchr("+-.eE", a->text[i]))
            return;
    }
    if (invar_number_parse(&value, a->text) != INVAR_OK) {
        invar_error_clear();
        return;
    }
    if (!(value > -0x1p53 && value < 0x1p53))
        return;
    snprintf(text, sizeof text, "%lld", (long long)value);
    invar_answer_text_set(a, (invar_str_view){text, strlen(text)});
}

static bool is_correct(const invar_reward_input *c)
{
    invar_answer_text given, expected;
    invar_str_view answer;

    if (!last_answer(&answer, last_characters(c->response)))
        return false;
    normalize_answer(&given, answer);
    normalize_answer(&expected, c->label);
    truncate_to_integer(&expected);
    return invar_answer_text_equal(&given, &expected);
}

invar_status invar_reward_fn_dapo(double *out, const invar_reward_input *c)
{
    bool right = is_correct(c);

    *out = right ? 1.0 : -1.0;
    INVAR_TRY(invar_reward_parts_add(c->parts, "score", strlen("score"), *out, "dapo"));
    return invar_reward_parts_add(c->parts, "acc", strlen("acc"), right ? 1.0 : 0.0, "dapo");
}
