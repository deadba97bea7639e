/*
 * philox.c - tests of Philox4x32-10 against the known answers of Random123, and of keys, uniform
 * and Gumbel values derived from it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/support.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels-deterministic/math/philox.h"

/* Random123's kat_vectors, "philox4x32 10". */
static void test_math_philox__known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}},
        {{0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF},
         {0xFFFFFFFF, 0xFFFFFFFF},
         {0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}},
        {{0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344},
         {0xA4093822, 0x299F31D0},
         {0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t out[4];
        invar_philox4x32(out, cases[i].counter, cases[i].key);
        assert_memory_equal(out, cases[i].out, sizeof out);
    }
}

/* Each of the six input words changes each of the four output words. */
static void test_math_philox__every_word_matters(void **state)
{
    const uint32_t input[6] = {1, 2, 3, 4, 5, 6};
    uint32_t base[4];

    (void)state;
    invar_philox4x32(base, input, input + 4);
    for (int i = 0; i < 6; i++) {
        uint32_t changed[6] = {1, 2, 3, 4, 5, 6}, out[4];
        changed[i] ^= 0x80000000;
        invar_philox4x32(out, changed, changed + 4);
        for (int j = 0; j < 4; j++)
            assert_int_not_equal(out[j], base[j]);
    }
}

/* A purpose or call that is too large would get the key of another pair, so the program aborts. */
static void assert_aborts(uint32_t purpose, uint32_t call)
{
    pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0) {
        (void)close(STDERR_FILENO); // hides the message of the abort
        (void)signal(SIGABRT, SIG_DFL);
        (void)invar_philox_purpose(purpose, call);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* The key of call 0 is the purpose; the keys of the next call begin after those of all purposes. */
static void test_math_philox__purposes_and_calls_have_different_keys(void **state)
{
    (void)state;
    for (uint32_t purpose = 0; purpose < INVAR_PHILOX_PURPOSES; purpose++)
        assert_int_equal(invar_philox_purpose(purpose, 0), purpose);
    for (uint32_t call = 0; call + 1 < INVAR_PHILOX_CALLS; call = 2 * call + 1)
        assert_int_equal(invar_philox_purpose(INVAR_PHILOX_PURPOSES - 1, call) + 1,
                         invar_philox_purpose(0, call + 1));
    assert_int_equal(invar_philox_purpose(INVAR_PHILOX_PURPOSES - 1, INVAR_PHILOX_CALLS - 1),
                     UINT32_MAX);
    assert_aborts(256, 0);
    assert_aborts(0, 1u << 24);
}

static void test_math_philox__uniform_is_exact_and_open(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 1u << 23; i++) {
        double exact = (i + 0.5) * 0x1p-23;
        if ((double)invar_uniform_f32(i << 9) != exact)
            fail_msg("uniform of %08" PRIX32, i << 9);
    }
    assert_true(invar_uniform_f32(0) == invar_uniform_f32(511)); // the low nine bits have no effect
    assert_true(invar_uniform_f32(0) == 0x1p-24f);
    assert_true(invar_uniform_f32(UINT32_MAX) == 1.0f - 0x1p-24f);
}

/* All 2^23 values. The error is relative to max(1, |g|), because g is zero at u = 1/e. */
static void test_math_philox__accuracy_of_gumbel(void **state)
{
    double worst = 0.0;
    uint32_t at = 0;

    (void)state;
    for (uint32_t i = 0; i < 1u << 23; i++) {
        double exact = -log(-log((i + 0.5) * 0x1p-23));
        double error = fabs((double)invar_gumbel_f32(i << 9) - exact) / fmax(1.0, fabs(exact));
        if (!(error <= worst)) {
            worst = error;
            at = i << 9;
        }
    }
    print_message("gumbel: largest error %.4f * 2^-24 max(1, |g|) at %08" PRIX32 "\n",
                  worst * 0x1p24, at);
    assert_true(worst <= 1.95 * 0x1p-24);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_math_philox__known_answers),
        cmocka_unit_test(test_math_philox__every_word_matters),
        cmocka_unit_test(test_math_philox__purposes_and_calls_have_different_keys),
        cmocka_unit_test(test_math_philox__uniform_is_exact_and_open),
        cmocka_unit_test(test_math_philox__accuracy_of_gumbel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
