/*
 * compare.c - every op against the results of PyTorch and transformers in float64.
 *
 *   test.oracle.compare [FILE]
 *
 * Runs the cases of FILE (default tests/oracle/fixtures.bin) with both storage types and both
 * numerics, then prints the largest error of each result. README.md describes the cases. Every
 * comparison has a control: shifted expected values must be outside the limit (run.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/ops/cases.h"

static invar_oracle *oracle;

/* ---- cases ----------------------------------------------------------------------------------- */

typedef struct oracle_case {
    const char *name;
    void (*run)(invar_oracle_run *r);
} oracle_case;

static const oracle_case cases[] = {
    {"convert", invar_oracle_convert},
    {"quantise", invar_oracle_quantize},
    {"linear", invar_oracle_linear},
    {"linear.low", invar_oracle_linear_low},
    {"embedding", invar_oracle_embedding},
    {"rmsnorm", invar_oracle_rmsnorm},
    {"rmsnorm.wide", invar_oracle_rmsnorm},
    {"rope.default", invar_oracle_rope},
    {"rope.llama3", invar_oracle_rope},
    {"swiglu", invar_oracle_swiglu},
    {"attention.gqa", invar_oracle_attention},
    {"attention.window", invar_oracle_attention},
    {"attention.wide", invar_oracle_attention},
    {"route.qwen3", invar_oracle_route},
    {"route.deepseek_v2", invar_oracle_route},
    {"route.deepseek_v3", invar_oracle_route},
    {"moe.ops", invar_oracle_moe_ops},
    {"moe.qwen3", invar_oracle_moe_block},
    {"moe.deepseek_v3", invar_oracle_moe_block},
    {"layer", invar_oracle_layer},
    {"logprob", invar_oracle_logprob},
    {"logprob.peaked", invar_oracle_logprob},
    {"sample", invar_oracle_sample},
    {"optimizer", invar_oracle_optimizer},
};

#define CASES (sizeof cases / sizeof *cases)

static void test_oracle__accuracy(void **state)
{
    const oracle_case *c = *state;

    for (int storage = 0; storage < 2; storage++)
        for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++) {
            invar_oracle_run r;

            invar_oracle_run_init(&r, oracle, c->name, invar_test_storage[storage],
                                  (invar_numerics)numerics);
            c->run(&r);
            invar_oracle_run_release(&r);
        }
}

/* Runs last: every tensor of the file must have been compared or used as an input. */
static void test_oracle__uses_every_tensor(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < oracle->count; i++)
        if (!oracle->tensors[i].used)
            fail_msg("nobody used %s", oracle->tensors[i].name);
}

/* ---- the reader ------------------------------------------------------------------------------ */

/* A file of two tensors: "a", two f32, and "b", one i64 without extents. */
static const struct image {
    char magic[8];
    uint32_t count, origin_length;
    char origin[8];
    char a_type[4];
    uint32_t a_rank, a_name_length, a_zero;
    int64_t a_shape;
    char a_name[8];
    float a[2];
    char b_type[4];
    uint32_t b_rank, b_name_length, b_zero;
    char b_name[8];
    int64_t b;
} image = {{'I', 'N', 'V', 'O', 'R', 'A', '0', '1'},
           2,
           4,
           "test",
           {'f', '3', '2', ' '},
           1,
           1,
           0,
           2,
           "a",
           {1.0f, 2.0f},
           {'i', '6', '4', ' '},
           0,
           1,
           0,
           "b",
           3};

/*
 * Parses `size` bytes in a block of exactly that size, so that a sanitizer finds reads past its
 * end.
 */
static invar_status parse_copy(const void *bytes, size_t size)
{
    void *copy = malloc(size + !size);
    invar_oracle *o = NULL;
    invar_status status;

    assert_non_null(copy);
    memcpy(copy, bytes, size);
    status = invar_oracle_parse(&o, copy, size);
    invar_oracle_close(o);
    free(copy);
    return status;
}

static void test_reader__reads(void **state)
{
    invar_oracle *o;

    (void)state;
    assert_ok(invar_oracle_parse(&o, &image, sizeof image));
    assert_string_equal(o->origin, "test");
    assert_int_equal(o->count, 2);
    assert_int_equal(invar_oracle_find(o, "a")->count, 2);
    assert_int_equal(*(const int64_t *)invar_oracle_find(o, "b")->data, 3);
    assert_null(invar_oracle_find(o, "c"));
    invar_oracle_close(o);
}

static void test_reader__refuses_every_truncation(void **state)
{
    (void)state;
    for (size_t size = 0; size < sizeof image; size++)
        assert_int_equal(parse_copy(&image, size), INVAR_E_CORRUPT);
}

/* Sets every byte to every value: parsing must return a status and stay inside the block. */
static void test_reader__survives_damage(void **state)
{
    struct image damaged = image;
    uint8_t *bytes = (uint8_t *)&damaged;

    (void)state;
    for (size_t i = 0; i < sizeof damaged; i++) {
        uint8_t good = bytes[i];
        for (int value = 0; value < 256; value++) {
            invar_status status;
            bytes[i] = (uint8_t)value;
            status = parse_copy(&damaged, sizeof damaged);
            assert_true(status == INVAR_OK || status == INVAR_E_CORRUPT);
        }
        bytes[i] = good;
    }
}

static void check_rejected(struct image damaged, const char *message)
{
    invar_oracle *o;

    assert_fails(invar_oracle_parse(&o, &damaged, sizeof damaged), INVAR_E_CORRUPT, message);
}

static void test_reader__names_what_is_wrong(void **state)
{
    struct image bad;

    (void)state;
    bad = image, bad.magic[0] = 'X', check_rejected(bad, "no fixture file");
    bad = image, bad.count = UINT32_MAX, check_rejected(bad, "more tensors");
    bad = image, bad.count = 1, check_rejected(bad, "behind its last tensor");
    bad = image, bad.origin_length = 3, check_rejected(bad, "does not end where");
    bad = image, bad.origin_length = UINT32_MAX, check_rejected(bad, "ends too early");
    bad = image, bad.a_type[0] = 'g', check_rejected(bad, "unknown type");
    bad = image, bad.a_rank = 5, check_rejected(bad, "head is damaged");
    bad = image, bad.a_shape = 0, check_rejected(bad, "extent out of range");
    bad = image, bad.a_shape = -1, check_rejected(bad, "extent out of range");
    bad = image, bad.a_shape = INT64_MAX, check_rejected(bad, "extent out of range");
    bad = image, bad.a_shape = 13, check_rejected(bad, "ends too early");
    bad = image, bad.b_name[0] = 'a', check_rejected(bad, "do not ascend");
}

/* ---- main ------------------------------------------------------------------------------------ */

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : INVAR_TEST_DATA "/oracle/fixtures.bin";
    const struct CMUnitTest reader[] = {
        cmocka_unit_test(test_reader__reads),
        cmocka_unit_test(test_reader__refuses_every_truncation),
        cmocka_unit_test(test_reader__survives_damage),
        cmocka_unit_test(test_reader__names_what_is_wrong),
    };
    struct CMUnitTest tests[CASES + 1];
    int failed = cmocka_run_group_tests(reader, NULL, NULL);

    if (invar_oracle_open(&oracle, path) != INVAR_OK) {
        fprintf(stderr, "%s\n", invar_error_last()->message);
        return 1;
    }
    for (size_t i = 0; i < CASES; i++) {
        oracle_case *c = (oracle_case *)(uintptr_t)&cases[i]; // cmocka's state is not const
        tests[i] = (struct CMUnitTest){c->name, test_oracle__accuracy, NULL, NULL, c};
    }
    tests[CASES] = (struct CMUnitTest)cmocka_unit_test(test_oracle__uses_every_tensor);
    failed += cmocka_run_group_tests(tests, NULL, NULL);
    invar_oracle_report(oracle);
    invar_oracle_close(oracle);
    return failed != 0;
}
