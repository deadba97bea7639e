/*
 * point_list.c - tests of lists of what is shown: those of stages, united, are that of one rank.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/point_list.h"

#include <stdio.h>
#include <string.h>

#include "tests/ops.h"

enum { LAYERS = 6, STAGES = 3 };

/* ---- what is shown --------------------------------------------------------------------------- */

static void show(invar_point_list *to, const char *text, int64_t layer, bool backward)
{
    const invar_tensor rows = {.dtype = INVAR_DTYPE_BF16, .rank = 2, .shape = {7, 32}};
    invar_observed_value value = {.name = {.layer = layer},
                                  .op = "add",
                                  .backward = backward,
                                  .inputs = {{.layer = layer, .text = "input"}},
                                  .n_inputs = 1,
                                  .rows = &rows};

    snprintf(value.name.text, sizeof value.name.text, "%s", text);
    assert_ok(invar_point_list_add(to, &value));
}

static void add_to(invar_point_list *to, int64_t number, const char *input)
{
    invar_observed_grad sum = {.n_inputs = 1};

    snprintf(sum.inputs[0].text, sizeof sum.inputs[0].text, "%s", input);
    assert_ok(invar_point_list_add_sum(to, number, &sum));
}

/* Layers first ... end of a pass, which shows what comes before and behind all of them, too. */
static void forward(invar_point_list *to, int64_t first, int64_t end)
{
    if (first == 0)
        show(to, "embed", -1, false);
    for (int64_t i = first; i < end; i++) {
        show(to, "attn", i, false);
        show(to, "mlp", i, false);
    }
    if (end == LAYERS)
        show(to, "head.logits", -1, false);
}

static void backward(invar_point_list *to, int64_t first, int64_t end)
{
    if (end == LAYERS)
        show(to, "head.dx", -1, true);
    for (int64_t i = end - 1; i >= first; i--) {
        show(to, "dattn", i, true);
        show(to, "dx", i, true);
        add_to(to, i, "dx");
    }
}

/* A stage has two runs of layers, and learns two micro-batches. */
static void show_stage(invar_point_list *to, int64_t stage)
{
    for (int again = 0; again < 2; again++)
        for (int64_t i = stage; i < LAYERS; i += STAGES)
            forward(to, i, i + 1);
    for (int again = 0; again < 2; again++)
        for (int64_t i = LAYERS - STAGES + stage; i >= 0; i -= STAGES)
            backward(to, i, i + 1);
}

static void unite(invar_point_list *to, const invar_point_list *stages)
{
    for (int s = 0; s < STAGES; s++) {
        invar_rank_buffer parcel = {0};
        invar_rank_buffer_reader rest;

        assert_ok(invar_point_list_pack(&parcel, &stages[s]));
        rest = (invar_rank_buffer_reader){parcel.data, parcel.bytes};
        assert_ok(invar_point_list_unpack(to, &rest));
        assert_int_equal(rest.bytes, 0);
        invar_rank_buffer_release(&parcel);
    }
}

/* The order that one rank has: layers up, then down. */
static bool same_order(const invar_point_list *a, const invar_point_list *b)
{
    int64_t at = 0;

    if (a->count != b->count)
        return false;
    for (int64_t i = 0; i < a->count; i++)
        at += strcmp(a->values[i].name.text, b->values[i].name.text) == 0 &&
              a->values[i].name.layer == b->values[i].name.layer;
    return at == a->count;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_listing__stages_are_one_rank(void **state)
{
    invar_point_list one = {0}, stages[STAGES] = {{0}}, all = {0}, wrong = {0};

    (void)state;
    forward(&one, 0, LAYERS);
    backward(&one, 0, LAYERS);
    for (int s = 0; s < STAGES; s++)
        show_stage(&stages[s], s);
    unite(&all, stages);
    assert_true(same_order(&all, &one));
    assert_int_equal(all.n_sums, LAYERS);
    assert_string_equal(all.values[0].op, "add");
    assert_int_equal(invar_point_def_value(&all.values[0]).rows->shape[1], 32);
    // a head in the place of the embedding
    for (int64_t i = 0; i < stages[STAGES - 1].count; i++)
        if (stages[STAGES - 1].values[i].name.layer < 0)
            stages[STAGES - 1].values[i].place = stages[0].values[0].place;
    unite(&wrong, stages);
    assert_false(same_order(&wrong, &one));
    for (int s = 0; s < STAGES; s++)
        invar_point_list_release(&stages[s]);
    invar_point_list_release(&one);
    invar_point_list_release(&all);
    invar_point_list_release(&wrong);
}

/* Of a gradient to which several calls add, the last says what it is computed from. */
static void test_listing__last_sum_counts(void **state)
{
    invar_point_list l = {0};

    (void)state;
    add_to(&l, 4, "first");
    add_to(&l, 5, "other");
    add_to(&l, 4, "last");
    assert_int_equal(l.n_sums, 2);
    assert_string_equal(l.sums[0].inputs[0].text, "last");
    invar_point_list_reset(&l);
    assert_int_equal(l.n_sums, 0);
    invar_point_list_release(&l);
}

static void test_listing__damage(void **state)
{
    invar_point_list l = {0}, to = {0};
    invar_rank_buffer parcel = {0};
    invar_rank_buffer_reader rest;

    (void)state;
    forward(&l, 0, 2);
    add_to(&l, 0, "dx");
    assert_ok(invar_point_list_pack(&parcel, &l));
    for (size_t bytes = 0; bytes < parcel.bytes; bytes += 8) {
        rest = (invar_rank_buffer_reader){parcel.data, bytes};
        assert_fails(invar_point_list_unpack(&to, &rest), INVAR_E_CORRUPT, "damaged");
    }
    ((invar_point_def *)(void *)(parcel.data + 8))->n_inputs = INVAR_DATAFLOW_INPUTS + 1;
    rest = (invar_rank_buffer_reader){parcel.data, parcel.bytes};
    assert_fails(invar_point_list_unpack(&to, &rest), INVAR_E_CORRUPT, "damaged");
    invar_rank_buffer_release(&parcel);
    invar_point_list_release(&l);
    invar_point_list_release(&to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_listing__stages_are_one_rank),
        cmocka_unit_test(test_listing__last_sum_counts),
        cmocka_unit_test(test_listing__damage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
