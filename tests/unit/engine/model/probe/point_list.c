/*
 * point_list.c - tests of point lists of pipeline stages.
 *
 * Merged, the lists of all stages must be the list of one rank. Control: a value with a wrong
 * position gives another order. Cut lists are rejected as damaged.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/point_list.h"

#include <stdio.h>
#include <string.h>

#include "tests/ops.h"

enum { LAYERS = 6, STAGES = 3 };

/* ---- lists of passes ------------------------------------------------------------------------- */

static void list_value(invar_point_list *to, const char *text, int64_t layer, bool backward)
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

static void list_grad(invar_point_list *to, int64_t number, const char *input)
{
    invar_observed_grad sum = {.n_inputs = 1};

    snprintf(sum.inputs[0].text, sizeof sum.inputs[0].text, "%s", input);
    assert_ok(invar_point_list_add_sum(to, number, &sum));
}

/* Lists the values of layers [first, end), with the embedding and the head at their ends. */
static void forward(invar_point_list *to, int64_t first, int64_t end)
{
    if (first == 0)
        list_value(to, "embed", -1, false);
    for (int64_t i = first; i < end; i++) {
        list_value(to, "attn", i, false);
        list_value(to, "mlp", i, false);
    }
    if (end == LAYERS)
        list_value(to, "head.logits", -1, false);
}

static void backward(invar_point_list *to, int64_t first, int64_t end)
{
    if (end == LAYERS)
        list_value(to, "head.dx", -1, true);
    for (int64_t i = end - 1; i >= first; i--) {
        list_value(to, "dattn", i, true);
        list_value(to, "dx", i, true);
        list_grad(to, i, "dx");
    }
}

/* Lists the values of a stage with two model chunks and two micro-batches. */
static void list_stage(invar_point_list *to, int64_t stage)
{
    for (int micro_batch = 0; micro_batch < 2; micro_batch++)
        for (int64_t i = stage; i < LAYERS; i += STAGES)
            forward(to, i, i + 1);
    for (int micro_batch = 0; micro_batch < 2; micro_batch++)
        for (int64_t i = LAYERS - STAGES + stage; i >= 0; i -= STAGES)
            backward(to, i, i + 1);
}

static void merge_stages(invar_point_list *to, const invar_point_list *stages)
{
    for (int s = 0; s < STAGES; s++) {
        invar_rank_buffer buffer = {0};
        invar_rank_buffer_reader reader;

        assert_ok(invar_point_list_pack(&buffer, &stages[s]));
        reader = (invar_rank_buffer_reader){buffer.data, buffer.bytes};
        assert_ok(invar_point_list_unpack(to, &reader));
        assert_int_equal(reader.bytes, 0);
        invar_rank_buffer_release(&buffer);
    }
}

/* Returns true if both lists have the same values in the same order. */
static bool same_order(const invar_point_list *a, const invar_point_list *b)
{
    int64_t n_equal = 0;

    if (a->count != b->count)
        return false;
    for (int64_t i = 0; i < a->count; i++)
        n_equal += strcmp(a->values[i].name.text, b->values[i].name.text) == 0 &&
                   a->values[i].name.layer == b->values[i].name.layer;
    return n_equal == a->count;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_point_list__stages_are_one_rank(void **state)
{
    invar_point_list one = {0}, stages[STAGES] = {{0}}, all = {0}, wrong = {0};

    (void)state;
    forward(&one, 0, LAYERS);
    backward(&one, 0, LAYERS);
    for (int s = 0; s < STAGES; s++)
        list_stage(&stages[s], s);
    merge_stages(&all, stages);
    assert_true(same_order(&all, &one));
    assert_int_equal(all.n_sums, LAYERS);
    assert_string_equal(all.values[0].op, "add");
    assert_int_equal(invar_point_def_value(&all.values[0]).rows->shape[1], 32);
    // control: values of the head at the position of the embedding
    for (int64_t i = 0; i < stages[STAGES - 1].count; i++)
        if (stages[STAGES - 1].values[i].name.layer < 0)
            stages[STAGES - 1].values[i].place = stages[0].values[0].place;
    merge_stages(&wrong, stages);
    assert_false(same_order(&wrong, &one));
    for (int s = 0; s < STAGES; s++)
        invar_point_list_release(&stages[s]);
    invar_point_list_release(&one);
    invar_point_list_release(&all);
    invar_point_list_release(&wrong);
}

/* If several calls add to one gradient, the inputs of the last call count. */
static void test_point_list__last_sum_counts(void **state)
{
    invar_point_list list = {0};

    (void)state;
    list_grad(&list, 4, "first");
    list_grad(&list, 5, "other");
    list_grad(&list, 4, "last");
    assert_int_equal(list.n_sums, 2);
    assert_string_equal(list.sums[0].inputs[0].text, "last");
    invar_point_list_reset(&list);
    assert_int_equal(list.n_sums, 0);
    invar_point_list_release(&list);
}

static void test_point_list__damage(void **state)
{
    invar_point_list list = {0}, to = {0};
    invar_rank_buffer buffer = {0};
    invar_rank_buffer_reader reader;

    (void)state;
    forward(&list, 0, 2);
    list_grad(&list, 0, "dx");
    assert_ok(invar_point_list_pack(&buffer, &list));
    for (size_t bytes = 0; bytes < buffer.bytes; bytes += 8) {
        reader = (invar_rank_buffer_reader){buffer.data, bytes};
        assert_fails(invar_point_list_unpack(&to, &reader), INVAR_E_CORRUPT, "damaged");
    }
    ((invar_point_def *)(void *)(buffer.data + 8))->n_inputs = INVAR_DATAFLOW_INPUTS + 1;
    reader = (invar_rank_buffer_reader){buffer.data, buffer.bytes};
    assert_fails(invar_point_list_unpack(&to, &reader), INVAR_E_CORRUPT, "damaged");
    invar_rank_buffer_release(&buffer);
    invar_point_list_release(&list);
    invar_point_list_release(&to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_point_list__stages_are_one_rank),
        cmocka_unit_test(test_point_list__last_sum_counts),
        cmocka_unit_test(test_point_list__damage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
