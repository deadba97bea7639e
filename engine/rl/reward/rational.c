/*
 * rational.c - exact values of written numbers, by recursive descent over a small grammar.
 *
 *     sum = product {("+" | "-") product}, product = signed {("*" | "/") signed}
 *     signed = {"-" | "+"} factor ["^" ["-"] factor], factor = number | "(" sum ")"
 *
 * Every step reduces the fraction and fails on overflow, so a value is exact or there is no value.
 * The text is untrusted: MAX_DEPTH bounds the recursion, MAX_POWER the work.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/reward/rational.h"

#include "base/invar_banned.h"

enum { MAX_DEPTH = 32, MAX_POWER = 64 };

typedef struct formula_reader {
    const char *cursor;
    const char *end;
    int depth;
} formula_reader;

static bool parse_sum(invar_rational *out, formula_reader *r);

/* ---- exact steps; false on overflow ---------------------------------------------------------- */

static uint64_t abs_u64(int64_t x)
{
    return x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
}

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static bool reduce_fraction(invar_rational *out, int64_t top, int64_t bottom)
{
    int64_t common;

    if (bottom == 0 || top == INT64_MIN || bottom == INT64_MIN)
        return false;
    common = (int64_t)greatest_common_divisor(abs_u64(top), abs_u64(bottom));
    common = bottom < 0 ? -common : common;
    out->num = top / common;
    out->den = bottom / common;
    return true;
}

static bool multiply_rationals(invar_rational *out, invar_rational a, invar_rational b)
{
    invar_rational left, right;
    int64_t top, bottom;

    // cancels crosswise first, so that the products overflow only if the result does
    return reduce_fraction(&left, a.num, b.den) && reduce_fraction(&right, b.num, a.den) &&
           !__builtin_mul_overflow(left.num, right.num, &top) &&
           !__builtin_mul_overflow(left.den, right.den, &bottom) &&
           reduce_fraction(out, top, bottom);
}

static bool divide_rationals(invar_rational *out, invar_rational a, invar_rational b)
{
    invar_rational upside_down;

    return reduce_fraction(&upside_down, b.den, b.num) && multiply_rationals(out, a, upside_down);
}

static bool add_rationals(invar_rational *out, invar_rational a, invar_rational b)
{
    int64_t left, right, top, bottom;

    return !__builtin_mul_overflow(a.num, b.den, &left) &&
           !__builtin_mul_overflow(b.num, a.den, &right) &&
           !__builtin_add_overflow(left, right, &top) &&
           !__builtin_mul_overflow(a.den, b.den, &bottom) && reduce_fraction(out, top, bottom);
}

static bool raise_to_power(invar_rational *out, invar_rational base, invar_rational exponent)
{
    invar_rational result = {1, 1};

    if (exponent.den != 1 || exponent.num > MAX_POWER || exponent.num < -MAX_POWER)
        return false;
    for (uint64_t i = abs_u64(exponent.num); i > 0; i--) {
        if (!multiply_rationals(&result, result, base))
            return false;
    }
    *out = result;
    return exponent.num >= 0 || reduce_fraction(out, result.den, result.num);
}

/* ---- grammar --------------------------------------------------------------------------------- */

static bool accept_char(formula_reader *r, char c)
{
    if (r->cursor == r->end || *r->cursor != c)
        return false;
    r->cursor++;
    return true;
}

/*
 * Parses digits with at most one point among or before them. More than 18 digits after the point
 * overflow, also if they are zeros.
 */
static bool parse_number(invar_rational *out, formula_reader *r)
{
    int64_t top = 0, bottom = 1;
    bool point = false, any = false;

    for (; r->cursor < r->end && (invar_is_digit(*r->cursor) || (*r->cursor == '.' && !point));
         r->cursor++) {
        if (*r->cursor == '.') {
            point = true;
            continue;
        }
        any = true;
        if (__builtin_mul_overflow(top, 10, &top) ||
            __builtin_add_overflow(top, *r->cursor - '0', &top) ||
            (point && __builtin_mul_overflow(bottom, 10, &bottom)))
            return false;
    }
    return any && reduce_fraction(out, top, bottom);
}

static bool parse_factor(invar_rational *out, formula_reader *r)
{
    bool fine;

    if (!accept_char(r, '('))
        return parse_number(out, r);
    if (++r->depth > MAX_DEPTH)
        return false;
    fine = parse_sum(out, r) && accept_char(r, ')');
    r->depth--;
    return fine;
}

static bool parse_signed(invar_rational *out, formula_reader *r)
{
    bool minus = false;

    for (; r->cursor < r->end && (*r->cursor == '-' || *r->cursor == '+'); r->cursor++)
        minus = minus != (*r->cursor == '-');
    if (!parse_factor(out, r))
        return false;
    if (accept_char(r, '^')) {
        invar_rational exponent;
        bool down = accept_char(r, '-');
        if (!parse_factor(&exponent, r))
            return false;
        exponent.num = down ? -exponent.num : exponent.num;
        if (!raise_to_power(out, *out, exponent))
            return false;
    }
    out->num = minus ? -out->num : out->num;
    return true;
}

static bool parse_product(invar_rational *out, formula_reader *r)
{
    if (!parse_signed(out, r))
        return false;
    while (r->cursor < r->end && (*r->cursor == '*' || *r->cursor == '/')) {
        bool times = *r->cursor++ == '*';
        invar_rational next;
        if (!parse_signed(&next, r) ||
            !(times ? multiply_rationals : divide_rationals)(out, *out, next))
            return false;
    }
    return true;
}

static bool parse_sum(invar_rational *out, formula_reader *r)
{
    if (!parse_product(out, r))
        return false;
    while (r->cursor < r->end && (*r->cursor == '+' || *r->cursor == '-')) {
        bool minus = *r->cursor++ == '-';
        invar_rational next;
        if (!parse_product(&next, r))
            return false;
        next.num = minus ? -next.num : next.num;
        if (!add_rationals(out, *out, next))
            return false;
    }
    return true;
}

bool invar_rational_parse(invar_rational *out, invar_str_view view)
{
    formula_reader r = {view.text, view.text + view.length, 0};

    return parse_sum(out, &r) && r.cursor == r.end;
}
