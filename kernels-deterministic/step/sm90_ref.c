/*
 * sm90_ref.c - the Hopper tensor-core step in integers: the definition of numerics sm90.
 *
 * Terms are decoded, multiplied exactly, aligned to the largest exponent with truncation, summed,
 * and encoded with truncation. Numerics contract (rev 1), docs/arithmetic.md section 2; verified on
 * an H200 (tests/golden). Speed does not matter here: the SIMD kernels call it only for groups out
 * of range.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdbool.h>

#include "kernels-deterministic/step/step.h"

#include "base/invar_banned.h"

#define NAN_BITS UINT32_C(0x7FFFFFFF)
#define INF_BITS UINT32_C(0x7F800000)
#define SIGN_BIT UINT32_C(0x80000000)

/* The constants of one form of the step. */
typedef struct step_form {
    int fraction;        /* F: bits kept below the largest exponent when terms are aligned */
    int result_fraction; /* fraction bits of the result */
    int floor;           /* smallest exponent for the alignment */
} step_form;

static const step_form BF16_FORM = {25, 23, -133};
static const step_form E4M3_FORM = {13, 13, -133}; // no e4m3 product reaches the floor

/* value = (-1)^negative * significand * 2^(exponent - scale); the significand is not normalized. */
typedef struct term {
    bool negative;
    bool special; /* infinity, or NaN if significand != 0 */
    int exponent;
    int scale;
    uint64_t significand;
} term;

static term decode_f32(uint32_t bits)
{
    int field = (int)(bits >> 23 & 0xFF);
    uint64_t fraction = bits & 0x7FFFFF;
    term t = {(bits & SIGN_BIT) != 0, field == 0xFF, 0, 23, fraction};

    t.exponent = field == 0 ? -126 : field - 127;
    if (field != 0 && field != 0xFF)
        t.significand |= UINT64_C(1) << 23;
    return t;
}

static term decode_bf16(uint16_t bits)
{
    term t = decode_f32((uint32_t)bits << 16);

    t.significand >>= 16;
    t.scale = 7;
    return t;
}

static term decode_e4m3(uint8_t bits)
{
    int field = bits >> 3 & 0xF;
    uint64_t fraction = bits & 7;
    term t = {(bits & 0x80) != 0, (bits & 0x7F) == 0x7F, field == 0 ? -6 : field - 7, 3, fraction};

    if (field != 0)
        t.significand |= 8;
    return t;
}

static bool is_nan(const term *t)
{
    return t->special && t->significand != 0;
}

static bool is_zero(const term *t)
{
    return !t->special && t->significand == 0;
}

static term multiply_terms(const term *a, const term *b)
{
    term p = {a->negative != b->negative, false, a->exponent + b->exponent, a->scale + b->scale,
              a->significand * b->significand};

    if (a->special || b->special) {
        // infinity with the sign of the product, or NaN
        p.special = true;
        p.significand = is_nan(a) || is_nan(b) || is_zero(a) || is_zero(b);
    }
    return p;
}

/*
 * Returns trunc(|t| * 2^(F - E)) with the sign of t: the hardware drops the bits shifted out of
 * each term.
 */
static int64_t align_term(const term *t, int fraction, int largest)
{
    int shift = t->exponent - t->scale + fraction - largest;
    uint64_t magnitude;

    if (t->significand == 0)
        return 0; // a zero has no exponent, and its shift may be out of range
    if (shift >= 0)
        magnitude = t->significand << shift;
    else
        magnitude = -shift > 63 ? 0 : t->significand >> -shift;
    return t->negative ? -(int64_t)magnitude : (int64_t)magnitude;
}

/*
 * Returns |sum| * 2^(largest - F) with the sign of sum, truncated to the result's fraction bits,
 * with gradual underflow.
 */
static uint32_t encode_result(int64_t sum, int largest, const step_form *f)
{
    uint32_t sign = sum < 0 ? SIGN_BIT : 0;
    uint64_t magnitude = sum < 0 ? (uint64_t)-sum : (uint64_t)sum;
    int top = 63, exponent, ulp, shift;
    uint64_t kept;

    if (sum == 0)
        return 0;
    while (!(magnitude >> top & 1))
        top--;
    exponent = largest - f->fraction + top;
    if (exponent >= 128)
        return sign | INF_BITS;
    // the result in units of 2^ulp, the last bit that survives
    ulp = (exponent > -126 ? exponent : -126) - f->result_fraction;
    shift = ulp - (largest - f->fraction);
    if (shift >= 0)
        kept = shift > 63 ? 0 : magnitude >> shift;
    else
        kept = magnitude << -shift;
    if (kept == 0)
        return 0; // the hardware never returns -0, not even for a negative sum
    kept <<= 23 - f->result_fraction;
    // the implicit bit carries into the exponent field of a normal result
    if (exponent < -126)
        return sign | (uint32_t)kept;
    return sign | (((uint32_t)(exponent + 126) << 23) + (uint32_t)kept);
}

static uint32_t run_step(uint32_t c_bits, const term *a, const term *b, int count,
                         const step_form *f)
{
    term terms[INVAR_STEP_FP8 + 1];
    bool plus_infinity = false, minus_infinity = false;
    int largest = f->floor;
    int64_t sum = 0;

    for (int i = 0; i < count; i++)
        terms[i] = multiply_terms(&a[i], &b[i]);
    terms[count] = decode_f32(c_bits);

    for (int i = 0; i <= count; i++) {
        const term *t = &terms[i];
        if (is_nan(t))
            return NAN_BITS;
        if (t->special)
            *(t->negative ? &minus_infinity : &plus_infinity) = true;
        else if (t->significand != 0 && t->exponent > largest)
            largest = t->exponent;
    }
    if (plus_infinity && minus_infinity)
        return NAN_BITS;
    if (plus_infinity || minus_infinity)
        return minus_infinity ? SIGN_BIT | INF_BITS : INF_BITS;

    for (int i = 0; i <= count; i++)
        sum += align_term(&terms[i], f->fraction, largest);
    return encode_result(sum, largest, f);
}

uint32_t invar_step_sm90_bf16_ref(uint32_t c, const uint16_t a[INVAR_STEP_BF16],
                                  const uint16_t b[INVAR_STEP_BF16])
{
    term ta[INVAR_STEP_BF16], tb[INVAR_STEP_BF16];

    for (int i = 0; i < INVAR_STEP_BF16; i++) {
        ta[i] = decode_bf16(a[i]);
        tb[i] = decode_bf16(b[i]);
    }
    return run_step(c, ta, tb, INVAR_STEP_BF16, &BF16_FORM);
}

uint32_t invar_step_sm90_e4m3_ref(uint32_t c, const uint8_t a[INVAR_STEP_FP8],
                                  const uint8_t b[INVAR_STEP_FP8])
{
    term ta[INVAR_STEP_FP8], tb[INVAR_STEP_FP8];

    for (int i = 0; i < INVAR_STEP_FP8; i++) {
        ta[i] = decode_e4m3(a[i]);
        tb[i] = decode_e4m3(b[i]);
    }
    return run_step(c, ta, tb, INVAR_STEP_FP8, &E4M3_FORM);
}
