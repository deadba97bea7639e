/*
 * rng_coords.c - tests of the text of RNG coordinates: round trip, and strict parsing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/rng_coords.h"

#include <stdio.h>
#include <string.h>

#include "tests/support.h"

#define HEX "000102030405060708090a0b0c0d0e0f"

static void test_rng_coords__round_trip(void **state)
{
    const invar_rl_sample sample = {
        .rollout = UINT32_MAX, .draw_index = 0, .data.line = INT64_MAX, .weights.hash = {{7, 8}}};
    const invar_rng_coords coords = invar_rng_coords_of(&sample, UINT32_MAX, 1);
    char text[INVAR_RNG_COORDS_SIZE], again[INVAR_RNG_COORDS_SIZE];
    invar_rng_coords read;

    (void)state;
    invar_rng_coords_format(text, &coords);
    assert_ok(invar_rng_coords_parse(&read, text));
    invar_rng_coords_format(again, &read);
    assert_string_equal(again, text);
    assert_true(read.seed == UINT32_MAX && read.purpose == 1 && read.rollout == UINT32_MAX);
    assert_true(read.draw == 0 && read.prompt == INT64_MAX);
    assert_true(invar_digest_equal(&read.weights, &sample.weights.hash));
}

static void test_rng_coords__refuses_other_text(void **state)
{
    static const char *const bad[] = {
        "",
        "seed=1",
        "seed=01,purpose=0,rollout=3,draw=4,prompt=5,weights=" HEX,
        "seed=-1,purpose=0,rollout=3,draw=4,prompt=5,weights=" HEX,
        "seed=4294967296,purpose=0,rollout=3,draw=4,prompt=5,weights=" HEX,
        "seed=1,purpose=256,rollout=3,draw=4,prompt=5,weights=" HEX,
        "seed=1,purpose=0,rollout=3,draw=4,prompt=9223372036854775808,weights=" HEX,
        "seed=1, purpose=0,rollout=3,draw=4,prompt=5,weights=" HEX,
        "purpose=0,seed=1,rollout=3,draw=4,prompt=5,weights=" HEX,
        "seed=1,purpose=0,rollout=3,draw=4,prompt=5,weights=" HEX "0",
        "seed=1,purpose=0,rollout=3,draw=4,prompt=5,weights=",
    };
    invar_rng_coords read;

    (void)state;
    assert_ok(
        invar_rng_coords_parse(&read, "seed=1,purpose=0,rollout=3,draw=4,prompt=5,weights=" HEX));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(invar_rng_coords_parse(&read, bad[i]), INVAR_E_INVALID, "are no coordinates");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rng_coords__round_trip),
        cmocka_unit_test(test_rng_coords__refuses_other_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
