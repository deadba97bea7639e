/*
 * reward_math.c - is the boxed answer the label?
 *
 * Two readings of an answer are compared, and either is enough. As text: the rewriting that graders
 * of the MATH data set use. As a value: LaTeX is turned into a plain formula; integers, decimals
 * and fractions are compared exactly, tuples and intervals element by element.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/rl/reward/rational.h"
#include "engine/rl/reward/reward_functions.h"

#include "base/invar_banned.h"

static bool answer_text_starts(const invar_answer_text *a, size_t at, const char *what)
{
    size_t length = strlen(what);

    return length <= a->length && at <= a->length - length &&
           memcmp(a->text + at, what, length) == 0;
}

/* Bytes of the UTF-8 character at `at`, as far as there are any. */
static size_t char_bytes(const invar_answer_text *a, size_t at)
{
    size_t end = at + 1;

    while (end < a->length && (a->text[end] & 0xC0) == 0x80)
        end++;
    return end - at;
}

static void answer_text_insert(invar_answer_text *a, size_t at, const char *text)
{
    invar_answer_text_splice(a, at, 0, (invar_str_view){text, strlen(text)});
}

static void answer_text_erase(invar_answer_text *a, size_t at, size_t length)
{
    invar_answer_text_splice(a, at, length, (invar_str_view){"", 0});
}

/* \text{...} around the whole answer. */
static void open_text(invar_answer_text *a)
{
    static const char head[] = "\\text{";
    size_t length = sizeof head - 1;

    if (!answer_text_starts(a, 0, head) || a->length < length + 2 || a->text[a->length - 1] != '}')
        return;
    answer_text_erase(a, a->length - 1, 1);
    answer_text_erase(a, 0, length);
    invar_answer_text_trim(a);
}

/* ---- as text --------------------------------------------------------------------------------- */

/* "\sqrt3" becomes "\sqrt{3}". False: nothing follows. */
static bool brace_roots(invar_answer_text *a)
{
    static const char root[] = "\\sqrt";

    for (size_t at = 0;;) {
        at = invar_str_view_find(invar_answer_text_piece(a), at, root);
        if (at >= a->length)
            return true;
        at += sizeof root - 1;
        if (at >= a->length || answer_text_starts(a, at, root))
            return false;
        if (a->text[at] == '{')
            continue;
        answer_text_insert(a, at + char_bytes(a, at), "}");
        answer_text_insert(a, at, "{");
    }
}

/* "\frac12" becomes "\frac{1}{2}", "\frac1{72}" "\frac{1}{72}". False: nothing follows. */
static bool brace_fractions(invar_answer_text *a)
{
    static const char head[] = "\\frac";
    invar_answer_text before = *a;

    for (size_t at = 0;;) {
        size_t second;
        at = invar_str_view_find(invar_answer_text_piece(a), at, head);
        if (at >= a->length)
            return true;
        at += sizeof head - 1;
        if (at >= a->length || answer_text_starts(a, at, head))
            return false;
        if (a->text[at] == '{')
            continue;
        second = at + char_bytes(a, at);
        if (second >= a->length || answer_text_starts(a, second, head)) {
            *a = before; // one argument only: the text stays as it was
            return true;
        }
        if (a->text[second] != '{') {
            answer_text_insert(a, second + char_bytes(a, second), "}");
            answer_text_insert(a, second, "{");
        }
        answer_text_insert(a, second, "}");
        answer_text_insert(a, at, "{");
    }
}

/* An integer as it is usually written: no sign but -, no leading zero. */
static bool plain_integer(invar_str_view p)
{
    bool minus = p.length > 0 && p.text[0] == '-';
    size_t first = minus ? 1 : 0;

    if (p.length == first || (p.text[first] == '0' && (minus || p.length > 1)))
        return false;
    for (size_t i = first; i < p.length; i++) {
        if (!invar_is_digit(p.text[i]))
            return false;
    }
    return true;
}

/* "3/4" becomes "\frac{3}{4}". */
static void write_quotient(invar_answer_text *a)
{
    invar_str_view all = invar_answer_text_piece(a);
    size_t slash = invar_str_view_find(all, 0, "/");

    if (slash >= a->length || !plain_integer((invar_str_view){a->text, slash}) ||
        !plain_integer((invar_str_view){a->text + slash + 1, a->length - slash - 1}))
        return;
    invar_answer_text_splice(a, slash, 1, (invar_str_view){"}{", 2});
    answer_text_insert(a, 0, "\\frac{");
    answer_text_insert(a, a->length, "}");
}

/* "x=5" becomes "5": one sign of equality, at most two characters before it. */
static void drop_name(invar_answer_text *a)
{
    invar_str_view all = invar_answer_text_piece(a);
    size_t sign = invar_str_view_find(all, 0, "=");

    if (sign < a->length && sign <= 2 && invar_str_view_find(all, sign + 1, "=") == a->length)
        answer_text_erase(a, 0, sign + 1);
}

/* What stands before a unit, "\text{ m}". False: there is more than one. */
static bool drop_unit(invar_answer_text *a)
{
    static const char unit[] = "\\text{ ";
    size_t at = invar_str_view_find(invar_answer_text_piece(a), 0, unit);

    if (at >= a->length)
        return true;
    if (invar_str_view_find(invar_answer_text_piece(a), at + 1, unit) < a->length)
        return false;
    answer_text_erase(a, at, a->length - at);
    return true;
}

static bool answer_text_rewrite(invar_answer_text *a)
{
    static const char *const first[][2] = {
        {"\n", ""},     {"\\!", ""},     {"\\\\", "\\"},    {"tfrac", "frac"}, {"dfrac", "frac"},
        {"\\left", ""}, {"\\right", ""}, {"^{\\circ}", ""}, {"^\\circ", ""},   {"\\$", ""},
    };

    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++)
        invar_answer_text_replace(a, first[i][0], first[i][1]);
    if (!drop_unit(a))
        return false;
    invar_answer_text_replace(a, "\\%", "");
    invar_answer_text_replace(a, " .", " 0.");
    invar_answer_text_replace(a, "{.", "{0.");
    if (a->length > 0 && a->text[0] == '.')
        answer_text_insert(a, 0, "0");
    drop_name(a);
    if (!brace_roots(a))
        return false;
    invar_answer_text_replace(a, " ", "");
    if (!brace_fractions(a))
        return false;
    if (strcmp(a->text, "0.5") == 0)
        invar_answer_text_set(a, (invar_str_view){"\\frac{1}{2}", 11});
    write_quotient(a);
    return true;
}

static void as_text(invar_answer_text *out, invar_str_view piece)
{
    invar_answer_text before;

    invar_answer_text_set(out, invar_str_view_trim(piece));
    open_text(out);
    before = *out;
    if (!answer_text_rewrite(out))
        *out = before;
}

/* ---- as a value ------------------------------------------------------------------------------ */

/* "meters^2" and the like, wherever it stands. */
static void drop_units(invar_answer_text *a)
{
    static const char *const units[] = {"degree", "cm",   "centimeter", "meter", "mile",  "second",
                                        "minute", "hour", "day",        "week",  "month", "year",
                                        "foot",   "feet", "inch",       "yard"};

    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        size_t at = 0;
        for (;;) {
            size_t end, mark;
            at = invar_str_view_find(invar_answer_text_piece(a), at, units[i]);
            if (at >= a->length)
                break;
            end = at + strlen(units[i]);
            end += answer_text_starts(a, end, "es") ? 2 : 0;
            end += answer_text_starts(a, end, "s") ? 1 : 0;
            while (end < a->length && a->text[end] == ' ')
                end++;
            mark = end;
            if (answer_text_starts(a, mark, "^")) {
                for (mark++; mark < a->length && invar_is_digit(a->text[mark]);)
                    mark++;
                end = mark > end + 1 ? mark : end;
            }
            answer_text_erase(a, at, end - at);
        }
    }
}

/* The end of the argument at `at`: of its braces, or of one character. 0: there is none. */
static size_t argument_end(const invar_answer_text *a, size_t at)
{
    size_t depth = 0;

    if (at >= a->length)
        return 0;
    if (a->text[at] != '{')
        return at + char_bytes(a, at);
    for (size_t i = at; i < a->length; i++) {
        depth += a->text[i] == '{';
        depth -= a->text[i] == '}';
        if (depth == 0)
            return i + 1;
    }
    return 0;
}

/* "{x+1}" becomes "(x+1)", "{12}" "12": parentheses only where leaving them out could mislead. */
static void open_braces(invar_answer_text *a, size_t at, size_t end, bool always)
{
    bool composite = always;

    if (a->text[at] != '{')
        return;
    for (size_t i = at + 1; i + 1 < end; i++) {
        bool sign = a->text[i] == '-' && i == at + 1;
        composite = composite || (!sign && !invar_is_digit(a->text[i]) && a->text[i] != '.');
    }
    composite = composite && end - at > 3;
    invar_answer_text_splice(a, end - 1, 1, (invar_str_view){")", composite ? 1 : 0});
    invar_answer_text_splice(a, at, 1, (invar_str_view){"(", composite ? 1 : 0});
}

/* From the right, so that arguments hold no fraction any more: "\frac{a}{b}" becomes " a/b". */
static void open_fractions(invar_answer_text *a)
{
    static const char head[] = "\\frac";

    for (size_t at = a->length; at-- > 0;) {
        size_t top = at + sizeof head - 1, middle, end;
        if (!answer_text_starts(a, at, head))
            continue;
        while (top < a->length && a->text[top] == ' ')
            top++;
        middle = argument_end(a, top);
        end = middle ? argument_end(a, middle) : 0;
        if (!end)
            continue;
        open_braces(a, middle, end, false);
        answer_text_insert(a, middle, "/");
        open_braces(a, top, middle, false);
        invar_answer_text_splice(a, at, top - at, (invar_str_view){" ", 1});
    }
}

/* The argument of \sqrt, ^ and _ in parentheses, unless it is one character. */
static void open_arguments(invar_answer_text *a)
{
    for (size_t at = a->length; at-- > 0;) {
        bool root = answer_text_starts(a, at, "\\sqrt");
        size_t open = at + (root ? 5 : 1), end;
        if (!root && a->text[at] != '^' && a->text[at] != '_')
            continue;
        end = argument_end(a, open);
        if (end)
            open_braces(a, open, end, true);
    }
}

static void open_latex(invar_answer_text *a)
{
    static const char *const plain[][2] = {
        {"\\left", ""},  {"\\right", ""},  {"\\infty", "inf"}, {"\\pi", "pi"},   {"\\cup", "u"},
        {"\\cdot", "*"}, {"\\times", "*"}, {"\\text", ""},     {"\\mathrm", ""}, {"\\mbox", ""},
        {"\\ ", " "},    {"\\,", ""},      {"\\;", ""},        {"\\:", ""},      {"\\!", ""},
        {"\\{", ""},     {"\\}", ""},      {"\\", ""}};

    invar_answer_text_replace(a, "\\tfrac", "\\frac");
    invar_answer_text_replace(a, "\\dfrac", "\\frac");
    open_fractions(a);
    open_arguments(a);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        invar_answer_text_replace(a, plain[i][0], plain[i][1]);
}

/* "7 3/4" becomes "7+3/4", "-7 3/4" "-7-3/4"; other blanks go. */
static void join_mixed(invar_answer_text *a)
{
    size_t out = 0;
    char sign = '+';

    for (size_t i = 0; i < a->length; i++) {
        size_t next = i;
        if (!invar_is_digit(a->text[i]) && a->text[i] != ' ')
            sign = a->text[i] == '-' ? '-' : '+';
        if (a->text[i] != ' ') {
            a->text[out++] = a->text[i];
            continue;
        }
        while (next < a->length && a->text[next] == ' ')
            next++;
        if (i > 0 && invar_is_digit(a->text[i - 1]) && next < a->length &&
            invar_is_digit(a->text[next]))
            a->text[out++] = sign;
        i = next - 1;
    }
    a->length = out;
    a->text[out] = '\0';
}

/* "- 5" becomes "-5". */
static void join_signs(invar_answer_text *a)
{
    for (size_t at = 0; at < a->length; at++) {
        while (a->text[at] == '-' && at + 1 < a->length && a->text[at + 1] == ' ')
            answer_text_erase(a, at + 1, 1);
    }
}

/* "1,234,567" becomes "1234567"; the commas of "1,2" and "1,2345" stay. */
static void join_thousands(invar_answer_text *a)
{
    for (size_t at = 1; at + 3 < a->length; at++) {
        const char *c = a->text + at;
        if (*c == ',' && invar_is_digit(c[-1]) && invar_is_digit(c[1]) && invar_is_digit(c[2]) &&
            invar_is_digit(c[3]) && !invar_is_digit(c[4]))
            answer_text_erase(a, at, 1);
    }
}

static void as_value(invar_answer_text *a, invar_str_view piece)
{
    static const char *const first[][2] = {{"\\%", ""},
                                           {"\\$", ""},
                                           {"$", ""},
                                           {"%", ""},
                                           {" or ", " , "},
                                           {" and ", " , "},
                                           {"million", "*10^6"},
                                           {"billion", "*10^9"},
                                           {"trillion", "*10^12"}};

    invar_answer_text_set(a, invar_str_view_trim(piece));
    open_text(a);
    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++)
        invar_answer_text_replace(a, first[i][0], first[i][1]);
    drop_units(a);
    invar_answer_text_replace(a, "^{\\circ}", "");
    invar_answer_text_replace(a, "^\\circ", "");
    if (a->length > 1 && a->text[0] == '{' && argument_end(a, 0) == a->length) {
        answer_text_erase(a, a->length - 1, 1);
        answer_text_erase(a, 0, 1);
    }
    invar_answer_text_replace(a, ",\\! ", "");
    invar_answer_text_replace(a, ",\\!", "");
    open_latex(a);
    join_signs(a);
    invar_answer_text_trim(a);
    join_mixed(a);
    invar_answer_text_replace(a, "{", "");
    invar_answer_text_replace(a, "}", "");
    if (a->length > 1 && a->text[a->length - 1] == '.')
        answer_text_erase(a, a->length - 1, 1);
    invar_answer_text_to_lower(a);
    join_thousands(a);
}

/* Digits with at most one point, a sign before: what counts as written out. */
static bool is_decimal(invar_str_view p)
{
    size_t points = 0;

    if (p.length > 0 && (p.text[0] == '-' || p.text[0] == '+')) {
        p.text++;
        p.length--;
    }
    for (size_t i = 0; i < p.length; i++) {
        points += p.text[i] == '.';
        if (!invar_is_digit(p.text[i]) && p.text[i] != '.')
            return false;
    }
    return points < 2 && p.length > points;
}

static bool is_integer(invar_str_view p)
{
    invar_rational value;

    return is_decimal(p) && invar_rational_parse(&value, p) && value.bottom == 1;
}

static bool is_fraction(invar_str_view p)
{
    size_t slash = invar_str_view_find(p, 0, "/");
    invar_str_view bottom;

    if (slash >= p.length)
        return false;
    bottom = (invar_str_view){p.text + slash + 1, p.length - slash - 1};
    return is_decimal((invar_str_view){p.text, slash}) && is_decimal(bottom) &&
           invar_str_view_find(p, 0, ".") == p.length;
}

/* Two fractions must be the same text: an unreduced one is no answer. Nor is "4/2" for "2". */
static bool equal_elements(invar_str_view a, invar_str_view b)
{
    invar_rational x, y;

    if (a.length == b.length && memcmp(a.text, b.text, a.length) == 0)
        return true;
    if ((is_fraction(a) && is_fraction(b)) || is_integer(a) != is_integer(b))
        return false;
    return invar_rational_parse(&x, a) && invar_rational_parse(&y, b) && x.top == y.top &&
           x.bottom == y.bottom;
}

static bool is_bracket(char c)
{
    return c == '(' || c == ')' || c == '[' || c == ']';
}

/* A tuple or an interval: brackets at both ends and nowhere else. */
static bool is_tuple(const invar_answer_text *a)
{
    if (a->length < 3 || !is_bracket(a->text[0]) || !is_bracket(a->text[a->length - 1]))
        return false;
    for (size_t i = 1; i + 1 < a->length; i++) {
        if (is_bracket(a->text[i]))
            return false;
    }
    return true;
}

/* The element at `at`; empty at and behind the end. */
static invar_str_view answer_text_element(const invar_answer_text *a, size_t at)
{
    size_t last = a->length - 1;
    size_t end = invar_str_view_find((invar_str_view){a->text, last}, at, ",");

    return at < last ? (invar_str_view){a->text + at, end - at} : (invar_str_view){"", 0};
}

static size_t answer_text_commas(const invar_answer_text *a)
{
    size_t n = 0;

    for (size_t i = 0; i < a->length; i++)
        n += a->text[i] == ',';
    return n;
}

/* Element by element; an interval's brackets count too, those of a single value do not. */
static bool equal_tuples(const invar_answer_text *given, const invar_answer_text *label)
{
    size_t left = answer_text_commas(label), i = 1, j = 1;
    bool same_ends = given->text[0] == label->text[0] &&
                     given->text[given->length - 1] == label->text[label->length - 1];

    if (left != answer_text_commas(given) || (left > 0 && !same_ends))
        return false;
    for (;; left--) {
        invar_str_view a = answer_text_element(given, i), b = answer_text_element(label, j);
        if (!equal_elements(a, b))
            return false;
        if (left == 0)
            return true;
        i += a.length + 1;
        j += b.length + 1;
    }
}

static bool equal_values(invar_str_view given, invar_str_view label)
{
    invar_answer_text a, b;

    as_value(&a, given);
    as_value(&b, label);
    if (a.too_long || b.too_long || a.length == 0 || b.length == 0)
        return false;
    if (is_tuple(&a) && is_tuple(&b))
        return equal_tuples(&a, &b);
    return equal_elements(invar_answer_text_piece(&a), invar_answer_text_piece(&b));
}

invar_status invar_reward_fn_math(double *out, const invar_reward_input *c)
{
    invar_str_view given, label = c->label;
    invar_answer_text a, b;

    *out = 0.0;
    if (!invar_str_view_boxed(&given, c->response))
        return INVAR_OK;
    if (invar_str_view_find(label, 0, "\\boxed") < label.length &&
        !invar_str_view_boxed(&label, label))
        return INVAR_OK;
    if (label.length == 0)
        return INVAR_OK;
    as_text(&a, given);
    as_text(&b, label);
    if (invar_answer_text_equal(&a, &b) || equal_values(given, label))
        *out = 1.0;
    return INVAR_OK;
}
