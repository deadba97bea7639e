/*
 * reward_math.c - reward of math problems: the last \boxed{} of the response equals the label.
 *
 * Two normal forms are compared, and either is enough. As text: the rewriting rules that graders of
 * the MATH data set use. As a value: LaTeX becomes a plain formula; integers, decimals and
 * fractions are compared exactly, tuples and intervals element by element. The order of the
 * rewriting rules changes results and must stay.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/rl/reward/rational.h"
#include "engine/rl/reward/reward_functions.h"

#include "base/invar_banned.h"

static bool starts_with(const invar_answer_text *a, size_t at, const char *what)
{
    size_t length = strlen(what);

    return length <= a->length && at <= a->length - length &&
           memcmp(a->text + at, what, length) == 0;
}

/* Removes \text{...} around the complete answer. */
static void unwrap_text(invar_answer_text *a)
{
    static const char head[] = "\\text{";
    size_t length = sizeof head - 1;

    if (!starts_with(a, 0, head) || a->length < length + 2 || a->text[a->length - 1] != '}')
        return;
    invar_answer_text_erase(a, a->length - 1, 1);
    invar_answer_text_erase(a, 0, length);
    invar_answer_text_trim(a);
}

/* ---- normal form as text --------------------------------------------------------------------- */

/* Adds braces: "\sqrt3" becomes "\sqrt{3}". Returns false if nothing follows. */
static bool brace_roots(invar_answer_text *a)
{
    static const char root[] = "\\sqrt";

    for (size_t at = 0;;) {
        at = invar_str_view_find(invar_answer_text_view(a), at, root);
        if (at >= a->length)
            return true;
        at += sizeof root - 1;
        if (at >= a->length || starts_with(a, at, root))
            return false;
        if (a->text[at] == '{')
            continue;
        invar_answer_text_insert(a, at + invar_str_view_character(invar_answer_text_view(a), at),
                                 "}");
        invar_answer_text_insert(a, at, "{");
    }
}

/*
 * Adds braces: "\frac12" becomes "\frac{1}{2}", "\frac1{72}" becomes "\frac{1}{72}". Returns false
 * if nothing follows.
 */
static bool brace_fractions(invar_answer_text *a)
{
    static const char head[] = "\\frac";
    invar_answer_text before = *a;

    for (size_t at = 0;;) {
        size_t second;
        at = invar_str_view_find(invar_answer_text_view(a), at, head);
        if (at >= a->length)
            return true;
        at += sizeof head - 1;
        if (at >= a->length || starts_with(a, at, head))
            return false;
        if (a->text[at] == '{')
            continue;
        second = at + invar_str_view_character(invar_answer_text_view(a), at);
        if (second >= a->length || starts_with(a, second, head)) {
            *a = before; // there is one argument only: keep the text unchanged
            return true;
        }
        if (a->text[second] != '{') {
            invar_answer_text_insert(
                a, second + invar_str_view_character(invar_answer_text_view(a), second), "}");
            invar_answer_text_insert(a, second, "{");
        }
        invar_answer_text_insert(a, second, "}");
        invar_answer_text_insert(a, at, "{");
    }
}

/* Returns true for an integer as usually written: no sign but -, no leading zero. */
static bool is_plain_integer(invar_str_view p)
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

/* Replaces "3/4" by "\frac{3}{4}". */
static void write_quotient(invar_answer_text *a)
{
    invar_str_view all = invar_answer_text_view(a);
    size_t slash = invar_str_view_find(all, 0, "/");

    if (slash >= a->length || !is_plain_integer((invar_str_view){a->text, slash}) ||
        !is_plain_integer((invar_str_view){a->text + slash + 1, a->length - slash - 1}))
        return;
    invar_answer_text_splice(a, slash, 1, (invar_str_view){"}{", 2});
    invar_answer_text_insert(a, 0, "\\frac{");
    invar_answer_text_insert(a, a->length, "}");
}

/* Removes the name of "x=5": one equals sign, with at most two characters before it. */
static void drop_name(invar_answer_text *a)
{
    invar_str_view all = invar_answer_text_view(a);
    size_t sign = invar_str_view_find(all, 0, "=");

    if (sign < a->length && sign <= 2 && invar_str_view_find(all, sign + 1, "=") == a->length)
        invar_answer_text_erase(a, 0, sign + 1);
}

/* Removes a unit, "\text{ m}", and everything after it. Returns false if there are two units. */
static bool drop_unit(invar_answer_text *a)
{
    static const char unit[] = "\\text{ ";
    size_t at = invar_str_view_find(invar_answer_text_view(a), 0, unit);

    if (at >= a->length)
        return true;
    if (invar_str_view_find(invar_answer_text_view(a), at + 1, unit) < a->length)
        return false;
    invar_answer_text_erase(a, at, a->length - at);
    return true;
}

static bool rewrite_as_text(invar_answer_text *a)
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
        invar_answer_text_insert(a, 0, "0");
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

static void normalize_as_text(invar_answer_text *out, invar_str_view piece)
{
    invar_answer_text before;

    invar_answer_text_set(out, invar_str_view_trim(piece));
    unwrap_text(out);
    before = *out;
    if (!rewrite_as_text(out))
        *out = before;
}

/* ---- normal form as a value ------------------------------------------------------------------ */

/* Removes units such as "meters^2", at any position. */
static void drop_units(invar_answer_text *a)
{
    static const char *const units[] = {"degree", "cm",   "centimeter", "meter", "mile",  "second",
                                        "minute", "hour", "day",        "week",  "month", "year",
                                        "foot",   "feet", "inch",       "yard"};

    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        size_t at = 0;
        for (;;) {
            size_t end, mark;
            at = invar_str_view_find(invar_answer_text_view(a), at, units[i]);
            if (at >= a->length)
                break;
            end = at + strlen(units[i]);
            end += starts_with(a, end, "es") ? 2 : 0;
            end += starts_with(a, end, "s") ? 1 : 0;
            while (end < a->length && a->text[end] == ' ')
                end++;
            mark = end;
            if (starts_with(a, mark, "^")) {
                for (mark++; mark < a->length && invar_is_digit(a->text[mark]);)
                    mark++;
                end = mark > end + 1 ? mark : end;
            }
            invar_answer_text_erase(a, at, end - at);
        }
    }
}

/*
 * Returns the end of the argument at `at`: of its braces, or of one character. 0 if there is no
 * argument.
 */
static size_t argument_end(const invar_answer_text *a, size_t at)
{
    size_t depth = 0;

    if (at >= a->length)
        return 0;
    if (a->text[at] != '{')
        return at + invar_str_view_character(invar_answer_text_view(a), at);
    for (size_t i = at; i < a->length; i++) {
        depth += a->text[i] == '{';
        depth -= a->text[i] == '}';
        if (depth == 0)
            return i + 1;
    }
    return 0;
}

/*
 * Replaces braces by parentheses: "{x+1}" becomes "(x+1)", "{12}" becomes "12". Parentheses are
 * left out if the meaning is clear without them.
 */
static void replace_braces(invar_answer_text *a, size_t at, size_t end, bool always)
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

/*
 * Replaces "\frac{a}{b}" by " a/b", from right to left, so that arguments contain no other
 * fraction.
 */
static void replace_fractions(invar_answer_text *a)
{
    static const char head[] = "\\frac";

    for (size_t at = a->length; at-- > 0;) {
        size_t top = at + sizeof head - 1, middle, end;
        if (!starts_with(a, at, head))
            continue;
        while (top < a->length && a->text[top] == ' ')
            top++;
        middle = argument_end(a, top);
        end = middle ? argument_end(a, middle) : 0;
        if (!end)
            continue;
        replace_braces(a, middle, end, false);
        invar_answer_text_insert(a, middle, "/");
        replace_braces(a, top, middle, false);
        invar_answer_text_splice(a, at, top - at, (invar_str_view){" ", 1});
    }
}

/* Puts the argument of \sqrt, ^ and _ into parentheses, unless it is one character. */
static void replace_arguments(invar_answer_text *a)
{
    for (size_t at = a->length; at-- > 0;) {
        bool root = starts_with(a, at, "\\sqrt");
        size_t open = at + (root ? 5 : 1), end;
        if (!root && a->text[at] != '^' && a->text[at] != '_')
            continue;
        end = argument_end(a, open);
        if (end)
            replace_braces(a, open, end, true);
    }
}

static void replace_latex(invar_answer_text *a)
{
    static const char *const plain[][2] = {
        {"\\left", ""},  {"\\right", ""},  {"\\infty", "inf"}, {"\\pi", "pi"},   {"\\cup", "u"},
        {"\\cdot", "*"}, {"\\times", "*"}, {"\\text", ""},     {"\\mathrm", ""}, {"\\mbox", ""},
        {"\\ ", " "},    {"\\,", ""},      {"\\;", ""},        {"\\:", ""},      {"\\!", ""},
        {"\\{", ""},     {"\\}", ""},      {"\\", ""}};

    invar_answer_text_replace(a, "\\tfrac", "\\frac");
    invar_answer_text_replace(a, "\\dfrac", "\\frac");
    replace_fractions(a);
    replace_arguments(a);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        invar_answer_text_replace(a, plain[i][0], plain[i][1]);
}

/* Replaces "7 3/4" by "7+3/4" and "-7 3/4" by "-7-3/4", and removes other blanks. */
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

/* Replaces "- 5" by "-5". */
static void join_signs(invar_answer_text *a)
{
    for (size_t at = 0; at < a->length; at++) {
        while (a->text[at] == '-' && at + 1 < a->length && a->text[at + 1] == ' ')
            invar_answer_text_erase(a, at + 1, 1);
    }
}

/* Replaces "1,234,567" by "1234567"; the commas of "1,2" and "1,2345" stay. */
static void join_thousands(invar_answer_text *a)
{
    for (size_t at = 1; at + 3 < a->length; at++) {
        const char *c = a->text + at;
        if (*c == ',' && invar_is_digit(c[-1]) && invar_is_digit(c[1]) && invar_is_digit(c[2]) &&
            invar_is_digit(c[3]) && !invar_is_digit(c[4]))
            invar_answer_text_erase(a, at, 1);
    }
}

static void normalize_as_value(invar_answer_text *a, invar_str_view piece)
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
    unwrap_text(a);
    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++)
        invar_answer_text_replace(a, first[i][0], first[i][1]);
    drop_units(a);
    invar_answer_text_replace(a, "^{\\circ}", "");
    invar_answer_text_replace(a, "^\\circ", "");
    if (a->length > 1 && a->text[0] == '{' && argument_end(a, 0) == a->length) {
        invar_answer_text_erase(a, a->length - 1, 1);
        invar_answer_text_erase(a, 0, 1);
    }
    invar_answer_text_replace(a, ",\\! ", "");
    invar_answer_text_replace(a, ",\\!", "");
    replace_latex(a);
    join_signs(a);
    invar_answer_text_trim(a);
    join_mixed(a);
    invar_answer_text_replace(a, "{", "");
    invar_answer_text_replace(a, "}", "");
    if (a->length > 1 && a->text[a->length - 1] == '.')
        invar_answer_text_erase(a, a->length - 1, 1);
    invar_answer_text_to_lower(a);
    join_thousands(a);
}

/* Returns true for digits with at most one point and an optional sign. */
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

    return is_decimal(p) && invar_rational_parse(&value, p) && value.den == 1;
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

/*
 * Compares two elements. Two fractions must be equal as text, since an unreduced one is wrong; a
 * fraction such as "4/2" does not equal the integer "2".
 */
static bool equal_elements(invar_str_view a, invar_str_view b)
{
    invar_rational x, y;

    if (a.length == b.length && memcmp(a.text, b.text, a.length) == 0)
        return true;
    if ((is_fraction(a) && is_fraction(b)) || is_integer(a) != is_integer(b))
        return false;
    return invar_rational_parse(&x, a) && invar_rational_parse(&y, b) && x.num == y.num &&
           x.den == y.den;
}

static bool is_bracket(char c)
{
    return c == '(' || c == ')' || c == '[' || c == ']';
}

/* Returns true for a tuple or an interval: brackets at both ends and nowhere else. */
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

/* Returns the element at `at`; empty at or after the end. */
static invar_str_view element_at(const invar_answer_text *a, size_t at)
{
    size_t last = a->length - 1;
    size_t end = invar_str_view_find((invar_str_view){a->text, last}, at, ",");

    return at < last ? (invar_str_view){a->text + at, end - at} : (invar_str_view){"", 0};
}

static size_t count_commas(const invar_answer_text *a)
{
    size_t n = 0;

    for (size_t i = 0; i < a->length; i++)
        n += a->text[i] == ',';
    return n;
}

/* Compares element by element. Brackets must be equal too, except those of a single value. */
static bool equal_tuples(const invar_answer_text *given, const invar_answer_text *label)
{
    size_t left = count_commas(label), i = 1, j = 1;
    bool same_ends = given->text[0] == label->text[0] &&
                     given->text[given->length - 1] == label->text[label->length - 1];

    if (left != count_commas(given) || (left > 0 && !same_ends))
        return false;
    for (;; left--) {
        invar_str_view a = element_at(given, i), b = element_at(label, j);
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

    normalize_as_value(&a, given);
    normalize_as_value(&b, label);
    if (a.too_long || b.too_long || a.length == 0 || b.length == 0)
        return false;
    if (is_tuple(&a) && is_tuple(&b))
        return equal_tuples(&a, &b);
    return equal_elements(invar_answer_text_view(&a), invar_answer_text_view(&b));
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
    normalize_as_text(&a, given);
    normalize_as_text(&b, label);
    if (invar_answer_text_equal(&a, &b) || equal_values(given, label))
        *out = 1.0;
    return INVAR_OK;
}
