/*
 * op_graph.c - tests of op graphs: memory plans, dead calls, reserved rows, inputs of points.
 *
 * Random graphs of sums must give the same results in planned memory. Controls: a plan that puts
 * all values into two places gives wrong results, and poison turns a use after the end of a
 * lifetime into NaN.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/op_graph.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/graph_exec.h"
#include "tests/ops.h"

/* A row has 280 bytes, which is more than INVAR_ALIGN. A graph has 40 values. */
enum { WIDTH = 70, MAX_VALUES = 40 };

/* ---- plans ----------------------------------------------------------------------------------- */

/* A random graph of sums, and its expected values. */
typedef struct sums {
    invar_op_graph *graph;
    invar_tensor tensors[MAX_VALUES]; /* (count) tensor of each value */
    float expected[MAX_VALUES];       /* (count) value of all elements of the tensor */
    int64_t count;
} sums;

/* Adds a value of one row to the graph. */
static invar_tensor reserve(invar_op_graph *p)
{
    return invar_op_graph_tensor(p, INVAR_DTYPE_F32, 1, WIDTH);
}

/* Adds random sums of earlier values to the graph, some of them in place. */
static void write_sums(sums *s, uint64_t seed)
{
    invar_tensor one =
        invar_tensor_2d(invar_op_graph_input(s->graph, 0), INVAR_DTYPE_F32, 1, WIDTH);
    uint64_t n = 0;

    s->tensors[0] = one;
    s->expected[0] = 1;
    for (s->count = 1; s->count < MAX_VALUES; s->count++) {
        int64_t a = invar_test_random(seed, n++) % (uint32_t)s->count;
        int64_t b = invar_test_random(seed, n++) % (uint32_t)s->count;
        bool in_place = s->tensors[a].data != one.data && invar_test_random(seed, n++) % 3 == 0;
        invar_tensor out = in_place ? s->tensors[a] : reserve(s->graph);
        INVAR_APPEND(s->graph, -1, ADD, add, .out = out, .a = s->tensors[a], .b = s->tensors[b]);
        s->tensors[s->count] = out;
        s->expected[s->count] = s->expected[a] + s->expected[b];
        for (int64_t i = 0; i < s->count; i++) // earlier values in the same memory are overwritten
            if (s->tensors[i].data == out.data)
                s->expected[i] = s->expected[s->count];
    }
    invar_op_graph_host_access(s->graph, &s->tensors[MAX_VALUES - 1]);
    invar_op_graph_end_section(s->graph);
}

/* Runs the graph in memory that is NaN before it is written, and returns the last sum. */
static float run_sums(const sums *s, const invar_device *dev, bool poison)
{
    float one[WIDTH], *block, result;
    const void *given[INVAR_OP_GRAPH_MAX_INPUTS] = {one};
    invar_op_runner runner;
    invar_graph_exec_args exec_args = {.op_runner = &runner, .inputs = given, .poison = poison};
    invar_tensor last;

    for (int i = 0; i < WIDTH; i++)
        one[i] = 1;
    assert_ok(INVAR_ALLOC_SIZED(block, s->graph->block, 1, "a block"));
    for (size_t i = 0; i < s->graph->block / sizeof *block; i++)
        block[i] = NAN;
    exec_args.block = block;
    invar_op_runner_init(&runner, dev);
    assert_ok(invar_op_graph_run(s->graph, 0, &exec_args));
    last = invar_op_graph_find(s->graph, &s->tensors[MAX_VALUES - 1], &exec_args);
    result = ((const float *)last.data)[WIDTH - 1];
    invar_op_runner_release(&runner);
    invar_free(block);
    return result;
}

static void test_op_graph__planned_memory_changes_no_result(void **state)
{
    const invar_device *dev = *state;
    size_t planned = 0, unshared = 0;
    int wrong = 0, dropped = 0;

    for (uint64_t seed = 0; seed < 200; seed++) {
        sums s = {0};
        size_t block;
        assert_ok(invar_op_graph_new(&s.graph));
        write_sums(&s, seed);
        assert_ok(invar_op_graph_plan(s.graph));
        assert_true(run_sums(&s, dev, false) == s.expected[MAX_VALUES - 1]);
        block = s.graph->block;
        planned += block;
        for (int32_t i = 0; i < s.graph->n_buffers; i++)
            unshared += invar_aligned(s.graph->buffers[i].bytes);
        assert_ok(invar_op_graph_plan(s.graph)); // planning again gives the same plan
        assert_int_equal(s.graph->block, block);
        invar_op_graph_eliminate_dead(s.graph, 0);
        for (int32_t i = 0; i < s.graph->n_nodes; i++)
            dropped += s.graph->nodes[i].dropped;
        assert_true(run_sums(&s, dev, false) == s.expected[MAX_VALUES - 1]);
        for (int32_t i = 0; i < s.graph->n_buffers; i++) // control: all values share two places
            s.graph->buffers[i].offset = (size_t)(i % 2) * 512;
        wrong += run_sums(&s, dev, false) != s.expected[MAX_VALUES - 1];
        invar_op_graph_free(s.graph);
    }
    assert_true(planned < unshared);
    assert_true(wrong > 100);
    assert_true(dropped > 1000); // 7800 calls in all
}

/*
 * A lifetime that ends too early. No other value has overwritten the memory yet, so the sum is
 * still correct; with poison it is NaN.
 */
static void test_op_graph__poison_shows_a_use_after_the_lifetime(void **state)
{
    const invar_device *dev = *state;
    int noticed = 0;

    for (uint64_t seed = 0; seed < 50; seed++) {
        sums s = {0};
        invar_graph_buffer *last;
        assert_ok(invar_op_graph_new(&s.graph));
        write_sums(&s, seed);
        assert_ok(invar_op_graph_plan(s.graph));
        assert_true(run_sums(&s, dev, true) == s.expected[MAX_VALUES - 1]);
        last = &s.graph->buffers[invar_op_graph_buffer_of(s.tensors[MAX_VALUES - 1].data)];
        last->last = s.graph->n_nodes - 1; // the host reads the value after this call
        assert_true(run_sums(&s, dev, false) == s.expected[MAX_VALUES - 1]);
        noticed += isnan(run_sums(&s, dev, true));
        invar_op_graph_free(s.graph);
    }
    assert_int_equal(noticed, 50);
}

/* Asserts which calls stay: `kept` has an x for each of them, and a dot for a dropped call. */
static void assert_dropped(invar_op_graph *p, int32_t first, const char *kept)
{
    invar_op_graph_end_section(p);
    invar_op_graph_eliminate_dead(p, first);
    assert_int_equal(p->n_nodes, strlen(kept));
    for (int32_t i = 0; i < p->n_nodes; i++)
        assert_int_equal(p->nodes[i].dropped, kept[i] != 'x');
    invar_op_graph_free(p);
}

static void test_op_graph__dead_calls_are_dropped(void **state)
{
    for (int which = 0; which < 6; which++) {
        invar_tensor x, a, b, c;
        invar_op_graph *p;
        assert_ok(invar_op_graph_new(&p));
        x = invar_tensor_2d(invar_op_graph_input(p, 0), INVAR_DTYPE_F32, 1, WIDTH);
        a = reserve(p);
        b = reserve(p);
        c = which == 1 ? invar_tensor_2d(invar_op_graph_input(p, 1), INVAR_DTYPE_F32, 1, WIDTH)
                       : reserve(p);
        INVAR_APPEND(p, -1, ADD, add, .out = a, .a = x, .b = x);
        INVAR_APPEND(p, -1, ADD, add, .out = b, .a = a, .b = x);
        INVAR_APPEND(p, -1, ADD, add, .out = c, .a = a, .b = x);
        if (which == 2 || which == 3)
            invar_op_graph_point(
                p, &(invar_graph_point){
                       .name = "c", .layer = -1, .recomputed = which == 2, .rows = c});
        if (which == 4)
            invar_op_graph_host_access(p, &b);
        assert_dropped(p, which == 5 ? 1 : 0,
                       (const char *const[]){"...", "x.x", "...", "x.x", "xx.", "x.."}[which]);
    }
    (void)state;
}

/* A transfer keeps the call that computes its source, but not the call before it. */
static void test_op_graph__calls_with_transferred_results_stay(void **state)
{
    for (int which = 0; which < 2; which++) {
        invar_tensor x, a, b, c, all;
        invar_op_graph *p;

        assert_ok(invar_op_graph_new(&p));
        x = invar_tensor_2d(invar_op_graph_input(p, 0), INVAR_DTYPE_F32, 1, WIDTH);
        a = reserve(p);
        b = reserve(p);
        c = reserve(p);
        all = reserve(p);
        INVAR_APPEND(p, -1, ADD, add, .out = a, .a = x, .b = x);
        INVAR_APPEND(p, -1, ADD, add, .out = b, .a = x, .b = x);
        invar_op_graph_transfer(p, &(invar_graph_transfer){.kind = INVAR_GRAPH_TRANSFER_ROW_RANGES,
                                                           .full = all,
                                                           .local = a});
        INVAR_APPEND(p, -1, ADD, add, .out = c, .a = all, .b = x);
        if (which == 0)
            invar_op_graph_host_access(p, &c);
        invar_op_graph_eliminate_dead(p, 0);
        assert_int_equal(p->transfers[0].dropped, which);
        assert_dropped(p, 0, which == 0 ? "x.x" : "...");
    }
    (void)state;
}

/* ---- reserved rows --------------------------------------------------------------------------- */

/* Reserving 16 rows for 10 scales the memory of multiples of 10 rows, and no other. */
static void test_op_graph__rows_have_room_for_more(void **state)
{
    static const struct {
        int64_t rows, reserve;
    } cases[] = {{10, 16}, {30, 48}, {11, 11}, {5, 5}, {0, 0}};
    invar_op_graph *p;

    (void)state;
    assert_ok(invar_op_graph_new(&p));
    for (int reserving = 0; reserving < 2; reserving++) {
        if (reserving)
            invar_op_graph_reserve_rows(p, 10, 16);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            invar_tensor t = invar_op_graph_tensor(p, INVAR_DTYPE_F32, cases[i].rows, 8);
            int64_t rows = reserving ? cases[i].reserve : cases[i].rows;

            assert_int_equal(t.shape[0], cases[i].rows);
            assert_int_equal(p->buffers[invar_op_graph_buffer_of(t.data)].bytes, rows * 8 * 4);
        }
    }
    invar_op_graph_clear(p);
    assert_int_equal(invar_op_graph_rows(p, 10), 10);
    invar_op_graph_reserve_rows(p, 10, 6); // a reservation below the number of rows has no effect
    assert_int_equal(invar_op_graph_rows(p, 10), 10);
    invar_op_graph_free(p);
}

/* ---- points ---------------------------------------------------------------------------------- */

/* Points that were observed, as "name op: inputs". */
static struct {
    char text[8][160];
    int count;
} observed;

static invar_status record_value(void *payload, const invar_observed_value *value)
{
    char *out = observed.text[observed.count++];
    size_t used;

    (void)payload;
    assert_true(observed.count < 8);
    used = (size_t)snprintf(out, 160, "%s %s:", value->name.text, value->op);
    for (int i = 0; i < value->n_inputs; i++)
        used += (size_t)snprintf(out + used, 160 - used, " %s", value->inputs[i].text);
    return INVAR_OK;
}

/*
 * x is an input with a name. b is computed from a, which is no point; c replaces b in place. A
 * value that is recomputed has the name of the first one and is not observed again.
 */
static void test_op_graph__points_know_what_they_are_computed_from(void **state)
{
    static const char *const expected[] = {"b add: x", "c add: b x", "columns add: x",
                                           "d add: c columns", "f add: b"};
    static const invar_graph_point source = {.name = "x", .layer = -1};
    const invar_device *dev = *state;
    float one[WIDTH] = {0};
    const void *given[INVAR_OP_GRAPH_MAX_INPUTS] = {one};
    const int64_t start[] = {0, 1};
    const invar_row_offsets samples = {start, 1};
    const invar_forward_hooks probe = {.on_value = record_value};
    invar_graph_exec_args exec_args = {
        .inputs = given, .hooks = &probe, .samples = &samples, .device_samples = &samples};
    invar_tensor x, a, b, d, e, f, half, wide;
    invar_op_graph *p;
    invar_op_runner runner;
    void *block;

    assert_ok(invar_op_graph_new(&p));
    x = invar_tensor_2d(invar_op_graph_input(p, 0), INVAR_DTYPE_F32, 1, WIDTH);
    invar_op_graph_source(p, x.data, &source);
    a = reserve(p);
    b = reserve(p);
    d = reserve(p);
    e = reserve(p);
    f = reserve(p);
    wide = invar_op_graph_tensor(p, INVAR_DTYPE_F32, 1, 2 * WIDTH);
    half = invar_tensor_columns(&wide, WIDTH, WIDTH);
    INVAR_APPEND(p, -1, ADD, add, .out = a, .a = x, .b = x);
    INVAR_APPEND(p, -1, ADD, add, .out = b, .a = a, .b = a);
    invar_op_graph_point(p, &(invar_graph_point){.name = "b", .layer = -1, .rows = b});
    INVAR_APPEND(p, -1, ADD, add, .out = b, .a = b, .b = a);
    invar_op_graph_point(p, &(invar_graph_point){.name = "c", .layer = -1, .rows = b});
    INVAR_APPEND(p, -1, ADD, add, .out = half, .a = x, .b = x);
    invar_op_graph_point(p, &(invar_graph_point){.name = "columns", .layer = -1, .rows = half});
    INVAR_APPEND(p, -1, ADD, add, .out = d, .a = b, .b = half);
    invar_op_graph_point(p, &(invar_graph_point){.name = "d", .layer = -1, .rows = d});
    INVAR_APPEND(p, -1, ADD, add, .out = e, .a = x, .b = x);
    invar_op_graph_point(
        p, &(invar_graph_point){.name = "b", .layer = -1, .recomputed = true, .rows = e});
    INVAR_APPEND(p, -1, ADD, add, .out = f, .a = e, .b = e);
    invar_op_graph_point(p, &(invar_graph_point){.name = "f", .layer = -1, .rows = f});
    invar_op_graph_end_section(p);
    assert_ok(invar_op_graph_plan(p));
    assert_ok(invar_alloc(&block, p->block, 1, "a block"));
    exec_args.block = block;
    exec_args.op_runner = &runner;
    invar_op_runner_init(&runner, dev);
    observed.count = 0;
    assert_ok(invar_op_graph_run(p, 0, &exec_args));
    assert_int_equal(observed.count, 5);
    for (int i = 0; i < 5; i++)
        assert_string_equal(observed.text[i], expected[i]);
    invar_op_runner_release(&runner);
    invar_free(block);
    invar_op_graph_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_op_graph__planned_memory_changes_no_result),
        cmocka_unit_test(test_op_graph__poison_shows_a_use_after_the_lifetime),
        cmocka_unit_test(test_op_graph__dead_calls_are_dropped),
        cmocka_unit_test(test_op_graph__calls_with_transferred_results_stay),
        cmocka_unit_test(test_op_graph__rows_have_room_for_more),
        cmocka_unit_test(test_op_graph__points_know_what_they_are_computed_from),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
