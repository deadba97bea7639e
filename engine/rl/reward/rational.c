/*
 * rational.c - arithmetic of written numbers, exact or refused.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/reward/rational.h"

#include "base/invar_banned.h"

enum { MAX_DEPTH = 32, MAX_POWER = 64 };

typedef struct reader {
    const char *at;
    const char *end;
    int depth;
} reader;

static bool parse_sum(invar_rational *out, reader *r);

/* ---- exact steps; false on overflow ---------------------------------------------------------- */

static uint64_t magnitude(int64_t x)
{
    return x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
}

static uint64_t divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static bool reduce(invar_rational *out, int64_t top, int64_t bottom)
{
    int64_t common;

    if (bottom == 0 || top == INT64_MIN || bottom == INT64_MIN)
        return false;
    common = (int64_t)divisor(magnitude(top), magnitude(bottom));
    common = bottom < 0 ? -common : common;
    out->top = top / common;
    out->bottom = bottom / common;
    return true;
}

static bool multiply(invar_rational *out, invar_rational a, invar_rational b)
{
    invar_rational left, right;
    int64_t top, bottom;

    // across first, so that what can be written can be multiplied
    return reduce(&left, a.top, b.bottom) && reduce(&right, b.top, a.bottom) &&
           !__builtin_mul_overflow(left.top, right.top, &top) &&
           !__builtin_mul_overflow(left.bottom, right.bottom, &bottom) && reduce(out, top, bottom);
}

static bool divide(invar_rational *out, invar_rational a, invar_rational b)
{
    invar_rational upside_down;

    return reduce(&upside_down, b.bottom, b.top) && multiply(out, a, upside_down);
}

static bool add(invar_rational *out, invar_rational a, invar_rational b)
{
    int64_t left, right, top, bottom;

    return !__builtin_mul_overflow(a.top, b.bottom, &left) &&
           !__builtin_mul_overflow(b.top, a.bottom, &right) &&
           !__builtin_add_overflow(left, right, &top) &&
           !__builtin_mul_overflow(a.bottom, b.bottom, &bottom) && reduce(out, top, bottom);
}

static bool power(invar_rational *out, invar_rational base, invar_rational exponent)
{
    invar_rational result = {1, 1};

    if (exponent.bottom != 1 || exponent.top > MAX_POWER || exponent.top < -MAX_POWER)
        return false;
    for (uint64_t i = magnitude(exponent.top); i > 0; i--) {
        if (!multiply(&result, result, base))
            return false;
    }
    *out = result;
    return exponent.top >= 0 || reduce(out, result.bottom, result.top);
}

/* ---- grammar --------------------------------------------------------------------------------- */

static bool reader_accept(reader *r, char c)
{
    if (r->at == r->end || *r->at != c)
        return false;
    r->at++;
    return true;
}

/* Digits, a point among or before them. Zeros after the point beyond 18 places are refused too. */
static bool parse_number(invar_rational *out, reader *r)
{
    int64_t top = 0, bottom = 1;
    bool point = false, any = false;

    for (; r->at < r->end && (invar_is_digit(*r->at) || (*r->at == '.' && !point)); r->at++) {
        if (*r->at == '.') {
            point = true;
            continue;
        }
        any = true;
        if (__builtin_mul_overflow(top, 10, &top) ||
            __builtin_add_overflow(top, *r->at - '0', &top) ||
            (point && __builtin_mul_overflow(bottom, 10, &bottom)))
            return false;
    }
    return any && reduce(out, top, bottom);
}

static bool parse_factor(invar_rational *out, reader *r)
{
    bool fine;

    if (!reader_accept(r, '('))
        return parse_number(out, r);
    if (++r->depth > MAX_DEPTH)
        return false;
    fine = parse_sum(out, r) && reader_accept(r, ')');
    r->depth--;
    return fine;
}

static bool parse_signed(invar_rational *out, reader *r)
{
    bool minus = false;

    for (; r->at < r->end && (*r->at == '-' || *r->at == '+'); r->at++)
        minus = minus != (*r->at == '-');
    if (!parse_factor(out, r))
        return false;
    if (reader_accept(r, '^')) {
        invar_rational exponent;
        bool down = reader_accept(r, '-');
        if (!parse_factor(&exponent, r))
            return false;
        exponent.top = down ? -exponent.top : exponent.top;
        if (!power(out, *out, exponent))
            return false;
    }
    out->top = minus ? -out->top : out->top;
    return true;
}

static bool parse_product(invar_rational *out, reader *r)
{
    if (!parse_signed(out, r))
        return false;
    while (r->at < r->end && (*r->at == '*' || *r->at == '/')) {
        bool times = *r->at++ == '*';
        invar_rational next;
        if (!parse_signed(&next, r) || !(times ? multiply : divide)(out, *out, next))
            return false;
    }
    return true;
}

static bool parse_sum(invar_rational *out, reader *r)
{
    if (!parse_product(out, r))
        return false;
    while (r->at < r->end && (*r->at == '+' || *r->at == '-')) {
        bool minus = *r->at++ == '-';
        invar_rational next;
        if (!parse_product(&next, r))
            return false;
        next.top = minus ? -next.top : next.top;
        if (!add(out, *out, next))
            return false;
    }
    return true;
}

bool invar_rational_parse(invar_rational *out, invar_str_view piece)
{
    reader r = {piece.text, piece.text + piece.length, 0};

    return parse_sum(out, &r) && r.at == r.end;
}
