/*
 * elementary.c - tests of the fp32 elementary functions against double precision.
 *
 * The bounds are the header's contract. A reduced run takes every 1021st input, a full run all.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/support.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "kernels-deterministic/math/elementary.h"
#include "kernels-deterministic/math/sfu.h"

enum { BLOCK = 4096, MAX_THREADS = 64 };

typedef struct function {
    const char *name;
    void (*apply)(float *y, const float *x); /* BLOCK values */
    double (*oracle)(double x);              /* reference in double; x is finite */
    bool (*covers)(float x);                 /* true for the finite inputs that the bound covers */
    double (*error)(float got, double exact);
    double bound; /* in the unit of `error` */
} function;

/* Inputs that one thread checks, in blocks, and the largest error among them. */
typedef struct sweep_part {
    const function *f;
    pthread_t thread;
    uint64_t first;      /* bits of the first input */
    uint64_t step;       /* difference between successive inputs, in bits */
    uint64_t block_step; /* difference between successive blocks of the thread, in bits */
    double worst;
    uint32_t worst_input;
    uint64_t wrong_nans;
    uint64_t measured;
} sweep_part;

/* ---- error measures -------------------------------------------------------------------------- */

/* Returns 1 / ulp(x) of fp32, for |x| < 2^128. */
static double inverse_ulp(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof bits);
    int64_t exponent = (int64_t)((bits >> 52) & 0x7FF) - 1023;
    if (exponent < -126)
        exponent = -126;
    bits = (uint64_t)(1023 + 23 - exponent) << 52;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Distance between both values, in ulp of the exact one. Infinity counts as 2^128. */
static double error_ulp(float got, double exact)
{
    const double top = 0x1p128;
    double g = fabs((double)got) > top ? copysign(top, (double)got) : (double)got;
    double e = fabs(exact) > top ? copysign(top, exact) : exact;

    return fabs(g - e) * inverse_ulp(fabs(e) < top ? e : 0x1p127);
}

/* Absolute distance in units of 2^-26. */
static double error_absolute(float got, double exact)
{
    return fabs((double)got - exact) * 0x1p26;
}

/* ---- functions and oracles ------------------------------------------------------------------- */

#define APPLY(name)                                                                                \
    static void apply_##name(float *y, const float *x)                                             \
    {                                                                                              \
        for (int i = 0; i < BLOCK; i++)                                                            \
            y[i] = invar_##name(x[i]);                                                             \
    }

APPLY(exp)
APPLY(exp2s)
APPLY(exp2s_bf16)
APPLY(log)
APPLY(log1p)
APPLY(tanh)
APPLY(sigmoid)
APPLY(silu)
APPLY(silu_grad)
APPLY(sfu_ex2)
APPLY(sfu_rcp)

/* Arguments of EXP2D as in a row of attention with head dim 64 and the reference -37. */
#define EXP2D_SCALE 0x1.715476p-3f
#define EXP2D_REFERENCE (-37.0f)

static float invar_exp2d_of(float s)
{
    return invar_exp2d(s, EXP2D_SCALE, EXP2D_REFERENCE);
}

static float invar_exp2d_bf16_of(float s)
{
    return invar_exp2d_bf16(s, EXP2D_SCALE, EXP2D_REFERENCE);
}

APPLY(exp2d_of)
APPLY(exp2d_bf16_of)

static double oracle_exp2s(double x)
{
    if (x < -126.5)
        return 0.0;
    return x >= 127.5 ? (double)INFINITY : exp2(x);
}

/* The exponent of exp2d_of. The product of two floats is exact. */
static double exp2d_exponent(double s)
{
    return s * (double)EXP2D_SCALE - (double)EXP2D_REFERENCE;
}

static double oracle_exp2d(double s)
{
    return oracle_exp2s(exp2d_exponent(s));
}

static double oracle_sigmoid(double x)
{
    double e = exp(-fabs(x));

    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

static double oracle_silu(double x)
{
    return x * oracle_sigmoid(x);
}

static double oracle_silu_grad(double x)
{
    return oracle_sigmoid(x) * (1.0 + x * oracle_sigmoid(-x));
}

static double oracle_sfu_ex2(double x)
{
    return x < -126.0 ? 0.0 : exp2(x);
}

static double oracle_sfu_rcp(double x)
{
    return 1.0 / x;
}

static bool covers_all(float x)
{
    (void)x;
    return true;
}

static bool covers_exp2s(float x)
{
    return x <= 128.5f;
}

static bool covers_exp2d(float s)
{
    return exp2d_exponent((double)s) < 127.5;
}

/* Neither the argument nor the result is flushed to zero. */
static bool covers_sfu_rcp(float x)
{
    return fabsf(x) >= 0x1p-126f && fabsf(x) <= 0x1p126f;
}

/* The derivative of silu is zero at -1.27846..., where an error in ulp has no meaning. */
static bool covers_near_zero(float x)
{
    return x > -1.5f && x < -1.0f;
}

static bool covers_off_zero(float x)
{
    return !covers_near_zero(x);
}

static const function functions[] = {
    {"exp", apply_exp, exp, covers_all, error_ulp, 0.775},
    {"exp2s", apply_exp2s, oracle_exp2s, covers_exp2s, error_ulp, 0.8748},
    {"exp2s_bf16", apply_exp2s_bf16, oracle_exp2s, covers_exp2s, error_ulp, 1345.1},
    {"exp2d", apply_exp2d_of, oracle_exp2d, covers_exp2d, error_ulp, 0.9373},
    {"exp2d_bf16", apply_exp2d_bf16_of, oracle_exp2d, covers_exp2d, error_ulp, 1345.3},
    {"log", apply_log, log, covers_all, error_ulp, 0.882},
    {"log1p", apply_log1p, log1p, covers_all, error_ulp, 0.957},
    {"tanh", apply_tanh, tanh, covers_all, error_ulp, 0.958},
    {"sigmoid", apply_sigmoid, oracle_sigmoid, covers_all, error_ulp, 1.476},
    {"silu", apply_silu, oracle_silu, covers_all, error_ulp, 1.484},
    {"silu_grad", apply_silu_grad, oracle_silu_grad, covers_off_zero, error_ulp, 2.77},
    {"silu_grad near its zero, in 2^-26", apply_silu_grad, oracle_silu_grad, covers_near_zero,
     error_absolute, 1.05},
    {"sfu_ex2", apply_sfu_ex2, oracle_sfu_ex2, covers_all, error_ulp, 2.056},
    {"sfu_rcp", apply_sfu_rcp, oracle_sfu_rcp, covers_sfu_rcp, error_ulp, 0.976},
};

/* ---- the sweep ------------------------------------------------------------------------------- */

static void sweep_block(sweep_part *s, uint64_t first)
{
    float x[BLOCK], y[BLOCK];

    for (int i = 0; i < BLOCK; i++)
        x[i] = invar_bits_f32((uint32_t)(first + (uint64_t)i * s->step));
    s->f->apply(y, x);
    for (int i = 0; i < BLOCK && first + (uint64_t)i * s->step <= UINT32_MAX; i++) {
        bool measurable = isfinite(x[i]) && s->f->covers(x[i]);
        double exact = measurable ? s->f->oracle((double)x[i]) : (double)NAN;
        if (isnan(exact)) {
            bool due = isnan(x[i]) || measurable;
            s->wrong_nans += due && invar_f32_bits(y[i]) != INVAR_NAN_BITS;
            continue;
        }
        double error = s->f->error(y[i], exact);
        s->measured++;
        if (!(error <= s->worst)) { // true for NaN too
            s->worst = isnan(error) ? (double)INFINITY : error;
            s->worst_input = invar_f32_bits(x[i]);
        }
    }
}

static void *sweep_span(void *argument)
{
    sweep_part *s = argument;

    for (uint64_t first = s->first; first <= UINT32_MAX; first += s->block_step)
        sweep_block(s, first);
    return NULL;
}

/* Checks every step-th of the 2^32 inputs, on all processors. */
static sweep_part sweep(const function *f, uint64_t step)
{
    sweep_part spans[MAX_THREADS], all = {.f = f, .step = step, .worst = -1.0};
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = online < 1 ? 1 : online > MAX_THREADS ? MAX_THREADS : (int)online;

    for (int t = 0; t < threads; t++) {
        spans[t] = all;
        spans[t].first = (uint64_t)t * BLOCK * step;
        spans[t].block_step = (uint64_t)threads * BLOCK * step;
        assert_int_equal(pthread_create(&spans[t].thread, NULL, sweep_span, &spans[t]), 0);
    }
    for (int t = 0; t < threads; t++) {
        assert_int_equal(pthread_join(spans[t].thread, NULL), 0);
        all.wrong_nans += spans[t].wrong_nans;
        all.measured += spans[t].measured;
        if (spans[t].worst > all.worst) {
            all.worst = spans[t].worst;
            all.worst_input = spans[t].worst_input;
        }
    }
    return all;
}

static void test_math_elementary__accuracy_within_contract(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        const function *f = &functions[i];
        sweep_part s = sweep(f, (uint64_t)invar_test_count(1021, 1));
        print_message("%s: %" PRIu64 " inputs, largest error %.4f at 0x%08" PRIX32 " (%.9g)\n",
                      f->name, s.measured, s.worst, s.worst_input,
                      (double)invar_bits_f32(s.worst_input));
        assert_true(s.measured > 0);
        assert_int_equal(s.wrong_nans, 0);
        assert_true(s.worst <= f->bound);
    }
}

/* ---- negative controls ----------------------------------------------------------------------- */

static void apply_two_ulp_off(float *y, const float *x)
{
    for (int i = 0; i < BLOCK; i++) {
        y[i] = invar_exp(x[i]);
        if (x[i] > 20.0f && x[i] < 20.5f)
            y[i] = invar_bits_f32(invar_f32_bits(y[i]) + 2);
    }
}

static void apply_other_nan(float *y, const float *x)
{
    for (int i = 0; i < BLOCK; i++)
        y[i] = isnan(x[i]) ? invar_bits_f32(0xFFC00000) : invar_exp(x[i]);
}

static void test_math_elementary__sweep_detects_faults(void **state)
{
    (void)state;
    function f = functions[0];

    f.apply = apply_two_ulp_off;
    assert_true(sweep(&f, 1021).worst > 1.0);
    f.apply = apply_other_nan;
    assert_true(sweep(&f, 1021).wrong_nans > 0);
}

/* ---- single values --------------------------------------------------------------------------- */

#define INF INVAR_INF_BITS
#define NEG INVAR_SIGN_BIT
#define NOT_A_NUMBER INVAR_NAN_BITS
#define ONE UINT32_C(0x3F800000)

static void test_math_elementary__special_values(void **state)
{
    static const struct {
        const char *name;
        float (*f)(float);
        uint32_t x, y;
    } cases[] = {
        {"exp(+0)", invar_exp, 0, ONE},
        {"exp(-0)", invar_exp, NEG, ONE},
        {"exp(subnormal)", invar_exp, 1, ONE},
        {"exp(+inf)", invar_exp, INF, INF},
        {"exp(-inf)", invar_exp, NEG | INF, 0},
        {"exp(largest)", invar_exp, 0x7F7FFFFF, INF},
        {"exp(-largest)", invar_exp, 0xFF7FFFFF, 0},
        {"exp, last finite", invar_exp, 0x42B17217, 0x7F7FFF84},
        {"exp, first infinite", invar_exp, 0x42B17218, INF},
        {"exp, last subnormal", invar_exp, 0xC2CFF1B4, 1},
        {"exp, first zero", invar_exp, 0xC2CFF1B5, 0},
        {"exp(nan)", invar_exp, 0xFFC12345, NOT_A_NUMBER},
        {"exp(signalling nan)", invar_exp, 0x7F800001, NOT_A_NUMBER},

        {"sfu_ex2(+0)", invar_sfu_ex2, 0, ONE},
        {"sfu_ex2(-0)", invar_sfu_ex2, NEG, ONE},
        {"sfu_ex2(subnormal)", invar_sfu_ex2, NEG | 0x7FFFFF, ONE},
        {"sfu_ex2(+inf)", invar_sfu_ex2, INF, INF},
        {"sfu_ex2(-inf)", invar_sfu_ex2, NEG | INF, 0},
        {"sfu_ex2(-126)", invar_sfu_ex2, 0xC2FC0000, 0x00800000},
        {"sfu_ex2, first zero", invar_sfu_ex2, 0xC2FC0001, 0},
        {"sfu_ex2(127)", invar_sfu_ex2, 0x42FE0000, 0x7F000000},
        {"sfu_ex2(128)", invar_sfu_ex2, 0x43000000, INF},
        {"sfu_ex2(largest)", invar_sfu_ex2, 0x7F7FFFFF, INF},
        {"sfu_ex2(-largest)", invar_sfu_ex2, 0xFF7FFFFF, 0},
        {"sfu_ex2(nan)", invar_sfu_ex2, 0xFFC12345, NOT_A_NUMBER},

        {"sfu_rcp(+0)", invar_sfu_rcp, 0, INF},
        {"sfu_rcp(-0)", invar_sfu_rcp, NEG, NEG | INF},
        {"sfu_rcp(subnormal)", invar_sfu_rcp, NEG | 0x7FFFFF, NEG | INF},
        {"sfu_rcp(-inf)", invar_sfu_rcp, NEG | INF, NEG},
        {"sfu_rcp(-2)", invar_sfu_rcp, 0xC0000000, 0xBF000000},
        {"sfu_rcp(2^126)", invar_sfu_rcp, 0x7E800000, 0x00800000},
        {"sfu_rcp, first zero", invar_sfu_rcp, 0x7E800001, 0},
        {"sfu_rcp(nan)", invar_sfu_rcp, 0xFFC12345, NOT_A_NUMBER},

        {"exp2s(+0)", invar_exp2s, 0, ONE},
        {"exp2s(-0)", invar_exp2s, NEG, ONE},
        {"exp2s(subnormal)", invar_exp2s, NEG | 1, ONE},
        {"exp2s(-inf)", invar_exp2s, NEG | INF, 0},
        {"exp2s(-127)", invar_exp2s, 0xC2FE0000, 0},
        {"exp2s, last above zero", invar_exp2s, 0xC2FD0000, 0x005A827A},
        {"exp2s, first zero", invar_exp2s, 0xC2FD0001, 0},
        {"exp2s(-126)", invar_exp2s, 0xC2FC0000, 0x00800000},
        {"exp2s(-1)", invar_exp2s, NEG | ONE, 0x3F000000},
        {"exp2s(1)", invar_exp2s, ONE, 0x40000000},
        {"exp2s(127)", invar_exp2s, 0x42FE0000, 0x7F000000},
        {"exp2s(127.5)", invar_exp2s, 0x42FF0000, INF},
        {"exp2s(128.5)", invar_exp2s, 0x43008000, INF},
        {"exp2s(nan)", invar_exp2s, 0xFFFFFFFF, NOT_A_NUMBER},
        {"exp2s(signalling nan)", invar_exp2s, 0x7F800001, NOT_A_NUMBER},

        {"exp2s_bf16(+0)", invar_exp2s_bf16, 0, ONE},
        {"exp2s_bf16(-inf)", invar_exp2s_bf16, NEG | INF, 0},
        {"exp2s_bf16, last above zero", invar_exp2s_bf16, 0xC2FD0000, 0x005A8021},
        {"exp2s_bf16, first zero", invar_exp2s_bf16, 0xC2FD0001, 0},
        {"exp2s_bf16(-126)", invar_exp2s_bf16, 0xC2FC0000, 0x00800000},
        {"exp2s_bf16(127)", invar_exp2s_bf16, 0x42FE0000, 0x7F000000},
        {"exp2s_bf16(128.5)", invar_exp2s_bf16, 0x43008000, INF},
        {"exp2s_bf16(signalling nan)", invar_exp2s_bf16, 0xFF800001, NOT_A_NUMBER},

        {"log(1)", invar_log, ONE, 0},
        {"log(+0)", invar_log, 0, NEG | INF},
        {"log(-0)", invar_log, NEG, NEG | INF},
        {"log(smallest)", invar_log, 1, 0xC2CE8ED0},
        {"log(+inf)", invar_log, INF, INF},
        {"log(-inf)", invar_log, NEG | INF, NOT_A_NUMBER},
        {"log(-1)", invar_log, NEG | ONE, NOT_A_NUMBER},
        {"log(-smallest)", invar_log, NEG | 1, NOT_A_NUMBER},
        {"log(nan)", invar_log, 0x7FC12345, NOT_A_NUMBER},

        {"log1p(+0)", invar_log1p, 0, 0},
        {"log1p(-0)", invar_log1p, NEG, NEG},
        {"log1p(smallest)", invar_log1p, 1, 1},
        {"log1p(-smallest)", invar_log1p, NEG | 1, NEG | 1},
        {"log1p(-1)", invar_log1p, NEG | ONE, NEG | INF},
        {"log1p(below -1)", invar_log1p, 0xBF800001, NOT_A_NUMBER},
        {"log1p(+inf)", invar_log1p, INF, INF},
        {"log1p(-inf)", invar_log1p, NEG | INF, NOT_A_NUMBER},
        {"log1p(nan)", invar_log1p, 0xFFC12345, NOT_A_NUMBER},

        {"tanh(+0)", invar_tanh, 0, 0},
        {"tanh(-0)", invar_tanh, NEG, NEG},
        {"tanh(-smallest)", invar_tanh, NEG | 1, NEG | 1},
        {"tanh(+inf)", invar_tanh, INF, ONE},
        {"tanh(-inf)", invar_tanh, NEG | INF, NEG | ONE},
        {"tanh(-nan)", invar_tanh, 0xFFFFFFFF, NOT_A_NUMBER},

        {"sigmoid(+0)", invar_sigmoid, 0, 0x3F000000},
        {"sigmoid(-0)", invar_sigmoid, NEG, 0x3F000000},
        {"sigmoid(+inf)", invar_sigmoid, INF, ONE},
        {"sigmoid(-inf)", invar_sigmoid, NEG | INF, 0},
        {"sigmoid(nan)", invar_sigmoid, 0x7FC12345, NOT_A_NUMBER},

        {"silu(+0)", invar_silu, 0, 0},
        {"silu(-0)", invar_silu, NEG, NEG},
        {"silu(+inf)", invar_silu, INF, INF},
        {"silu(-inf)", invar_silu, NEG | INF, NEG},
        {"silu(largest)", invar_silu, 0x7F7FFFFF, 0x7F7FFFFF},
        {"silu(-largest)", invar_silu, 0xFF7FFFFF, NEG},
        {"silu(nan)", invar_silu, 0xFFC12345, NOT_A_NUMBER},

        {"silu_grad(+0)", invar_silu_grad, 0, 0x3F000000},
        {"silu_grad(-0)", invar_silu_grad, NEG, 0x3F000000},
        {"silu_grad(+inf)", invar_silu_grad, INF, ONE},
        {"silu_grad(-inf)", invar_silu_grad, NEG | INF, NEG},
        {"silu_grad(nan)", invar_silu_grad, 0xFFC12345, NOT_A_NUMBER},
    };
    int wrong = 0;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t got = invar_f32_bits(cases[i].f(invar_bits_f32(cases[i].x)));
        if (got != cases[i].y) {
            print_error("%s: %08" PRIX32 ", expected %08" PRIX32 "\n", cases[i].name, got,
                        cases[i].y);
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}

/* ---- the softmax of attention ---------------------------------------------------------------- */

static uint32_t bits_of_exp2d(float s, float m)
{
    uint32_t bits = invar_f32_bits(invar_exp2d(s, 1.0f, m));

    // special values do not depend on the polynomial
    assert_int_equal(invar_f32_bits(invar_exp2d_bf16(s, 1.0f, m)), bits);
    return bits;
}

static void test_math_elementary__exp2d_special_values(void **state)
{
    const float inf = INFINITY, nan = NAN;

    (void)state;
    assert_int_equal(bits_of_exp2d(0.0f, 0.0f), ONE);
    assert_int_equal(bits_of_exp2d(8.0f, 0.0f), 0x43800000);
    assert_int_equal(bits_of_exp2d(-121.0f, 5.0f), 0x00800000);
    assert_int_equal(bits_of_exp2d(-122.0f, 5.0f), 0);
    assert_int_equal(bits_of_exp2d(-0x1p40f, -7.0f), 0);
    assert_int_equal(bits_of_exp2d(-inf, 0.0f), 0);
    assert_int_equal(bits_of_exp2d(3.0f, inf), 0);
    assert_int_equal(bits_of_exp2d(0x1p22f - 1.0f, 0x1p22f - 1.0f), ONE); // the ends of the domain
    assert_int_equal(bits_of_exp2d(1.0f - 0x1p22f, 1.0f - 0x1p22f), ONE);
    assert_int_equal(bits_of_exp2d(inf, 0.0f), NOT_A_NUMBER);
    assert_int_equal(bits_of_exp2d(inf, inf), NOT_A_NUMBER);
    assert_int_equal(bits_of_exp2d(0.0f, -inf), NOT_A_NUMBER);
    assert_int_equal(bits_of_exp2d(-inf, -inf), NOT_A_NUMBER);
    assert_int_equal(bits_of_exp2d(nan, 0.0f), NOT_A_NUMBER);
    assert_int_equal(bits_of_exp2d(-nan, 0.0f), NOT_A_NUMBER);
    assert_int_equal(bits_of_exp2d(0.0f, nan), NOT_A_NUMBER);
}

/* EXP2D with scale 1 and reference 0 is EXP2S. */
static void test_math_elementary__exp2d_is_exp2s_of_the_exponent(void **state)
{
    uint64_t step = (uint64_t)invar_test_count(1021, 1), differ = 0;

    (void)state;
    for (uint64_t i = 0; i <= UINT32_MAX; i += step) {
        float x = invar_bits_f32((uint32_t)i);
        float wide = invar_exp2d(x, 1.0f, 0.0f), narrow = invar_exp2d_bf16(x, 1.0f, 0.0f);

        differ += !(x > 128.5f) && (invar_f32_bits(wide) != invar_f32_bits(invar_exp2s(x)) ||
                                    invar_f32_bits(narrow) != invar_f32_bits(invar_exp2s_bf16(x)));
    }
    assert_int_equal(differ, 0);
}

/* Another reference multiplies EXP2D by an exact power of two, unless it underflows. */
static void test_math_elementary__exp2d_scales_with_its_reference(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 100000; i++) {
        float s = invar_test_normal(1, i, 50.0f), c = 0.2f, m = (float)(int)(i % 41) - 20.0f;
        float raised = m + (float)(1 + i % 9);

        assert_true(invar_exp2d(s, c, m) * invar_exp2s(m - raised) == invar_exp2d(s, c, raised));
        assert_true(invar_exp2d_bf16(s, c, m) * invar_exp2s(m - raised) ==
                    invar_exp2d_bf16(s, c, raised));
    }
}

static void test_math_elementary__softmax_reference_rises_by_more_than_eight(void **state)
{
    const float inf = INFINITY, nan = NAN;
    const struct {
        float m, top, expected;
    } cases[] = {
        {-inf, 0.5f, 1.0f},
        {-inf, -0.5f, 0.0f},
        {-inf, -3.0f, -3.0f},
        {-inf, 0x1p22f - 0.5f, 0x1p22f},
        {-inf, -inf, -inf},
        {-inf, inf, inf},
        {-inf, nan, nan},
        {0.0f, 8.0f, 0.0f},
        {0.0f, 0x1.000002p3f, 9.0f}, // the next float
        {0.0f, 9.0f, 9.0f},
        {-30.0f, -22.0f, -30.0f},
        {-30.0f, -0x1.5ffffep4f, -21.0f},
        {7.0f, -1000.0f, 7.0f},
        {7.0f, -inf, 7.0f},
        {7.0f, inf, inf},
        {7.0f, nan, nan},
        {inf, 3.0f, inf},
        {nan, 3.25f, 4.0f}, // EXP2S(m - m') makes the row NaN
        {nan, nan, nan},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float got = invar_softmax_reference(cases[i].m, cases[i].top);

        if (isnan(cases[i].expected) ? !isnan(got) : !(got == cases[i].expected))
            fail_msg("m %g, top %g: %g, expected %g", (double)cases[i].m, (double)cases[i].top,
                     (double)got, (double)cases[i].expected);
    }
}

/* ---- EXP2S is monotone except for its last bit ----------------------------------------------- */

/* Position of x in the ascending order of floats, where -inf has 0. */
static uint32_t ordinal(float x)
{
    uint32_t bits = invar_f32_bits(x);

    return bits & NEG ? (NEG | INF) - bits : bits + INF + 1;
}

static float float_of_ordinal(uint32_t position)
{
    return invar_bits_f32(position <= INF ? (NEG | INF) - position : position - INF - 1);
}

/* Counts by how many steps in the positions [first, last] f falls by more than one ulp. */
static int64_t count_falls(float (*f)(float), uint32_t first, uint32_t last, uint32_t step)
{
    int64_t count = 0;
    uint32_t previous = ordinal(f(float_of_ordinal(first)));

    for (uint64_t position = (uint64_t)first + step; position <= last; position += step) {
        uint32_t current = ordinal(f(float_of_ordinal((uint32_t)position)));
        count += current + 1 < previous;
        previous = current;
    }
    return count;
}

static float not_monotone(float x)
{
    return invar_bits_f32(invar_f32_bits(invar_exp2s(x)) ^ 4);
}

static void test_math_elementary__exp2s_is_monotone(void **state)
{
    uint32_t step = (uint32_t)invar_test_count(4093, 1);

    (void)state;
    assert_int_equal(count_falls(invar_exp2s, 0, ordinal(128.5f), step), 0);
    assert_int_equal(count_falls(invar_exp2s_bf16, 0, ordinal(128.5f), step), 0);
    // Every float around the midpoints between integers, where the rounded integer changes.
    for (float seam = -126.5f; seam <= 127.5f; seam += 1.0f) {
        assert_int_equal(count_falls(invar_exp2s, ordinal(seam) - 500, ordinal(seam) + 500, 1), 0);
        assert_int_equal(count_falls(invar_exp2s_bf16, ordinal(seam) - 500, ordinal(seam) + 500, 1),
                         0);
    }
    assert_true(count_falls(not_monotone, ordinal(0.25f), ordinal(0.5f), 1) > 0); // control
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_math_elementary__accuracy_within_contract),
        cmocka_unit_test(test_math_elementary__sweep_detects_faults),
        cmocka_unit_test(test_math_elementary__special_values),
        cmocka_unit_test(test_math_elementary__exp2d_special_values),
        cmocka_unit_test(test_math_elementary__exp2d_is_exp2s_of_the_exponent),
        cmocka_unit_test(test_math_elementary__exp2d_scales_with_its_reference),
        cmocka_unit_test(test_math_elementary__softmax_reference_rises_by_more_than_eight),
        cmocka_unit_test(test_math_elementary__exp2s_is_monotone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
