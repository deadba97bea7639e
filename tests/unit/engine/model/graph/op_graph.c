/*
 * op_graph.c - planned memory changes no result, and points know what they are computed from.
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

enum { WIDTH = 70, MOST = 40 }; /* 280 bytes: more than one unit of alignment */

/* ---- plans ----------------------------------------------------------------------------------- */

typedef struct sums {
    invar_op_graph *program;
    invar_tensor at[MOST]; /* where each value was left */
    float expected[MOST];  /* all elements of a value are the same */
    int64_t count;
} sums;

static invar_tensor room(invar_op_graph *p)
{
    return invar_op_graph_tensor(p, INVAR_DTYPE_F32, 1, WIDTH);
}

/* Random sums of earlier values, some in place. */
static void write_sums(sums *s, uint64_t seed)
{
    invar_tensor one =
        invar_tensor_2d(invar_op_graph_input(s->program, 0), INVAR_DTYPE_F32, 1, WIDTH);
    uint64_t n = 0;

    s->at[0] = one;
    s->expected[0] = 1;
    for (s->count = 1; s->count < MOST; s->count++) {
        int64_t a = invar_test_random(seed, n++) % (uint32_t)s->count;
        int64_t b = invar_test_random(seed, n++) % (uint32_t)s->count;
        bool in_place = s->at[a].data != one.data && invar_test_random(seed, n++) % 3 == 0;
        invar_tensor out = in_place ? s->at[a] : room(s->program);
        INVAR_APPEND(s->program, -1, ADD, add, .out = out, .a = s->at[a], .b = s->at[b]);
        s->at[s->count] = out;
        s->expected[s->count] = s->expected[a] + s->expected[b];
        for (int64_t i = 0; i < s->count; i++) // what lay there is gone
            if (s->at[i].data == out.data)
                s->expected[i] = s->expected[s->count];
    }
    invar_op_graph_host_access(s->program, &s->at[MOST - 1]);
    invar_op_graph_end_section(s->program);
}

/* The last sum, with memory that holds no number before it is written. */
static float run_sums(const sums *s, const invar_device *dev, bool poison)
{
    float one[WIDTH], *block, result;
    const void *given[INVAR_OP_GRAPH_MAX_INPUTS] = {one};
    invar_op_runner caller;
    invar_graph_exec_args run = {.op_runner = &caller, .inputs = given, .poison = poison};
    invar_tensor last;

    for (int i = 0; i < WIDTH; i++)
        one[i] = 1;
    assert_ok(invar_alloc((void **)&block, s->program->block, 1, "a block"));
    for (size_t i = 0; i < s->program->block / sizeof *block; i++)
        block[i] = NAN;
    run.block = block;
    invar_op_runner_init(&caller, dev);
    assert_ok(invar_op_graph_run(s->program, 0, &run));
    last = invar_op_graph_find(s->program, &s->at[MOST - 1], &run);
    result = ((const float *)last.data)[WIDTH - 1];
    invar_op_runner_release(&caller);
    invar_free(block);
    return result;
}

static void test_program__planned_memory_changes_no_result(void **state)
{
    const invar_device *dev = *state;
    size_t planned = 0, apart = 0;
    int wrong = 0, dropped = 0;

    for (uint64_t seed = 0; seed < 200; seed++) {
        sums s = {0};
        size_t block;
        assert_ok(invar_op_graph_new(&s.program));
        write_sums(&s, seed);
        assert_ok(invar_op_graph_plan(s.program));
        assert_true(run_sums(&s, dev, false) == s.expected[MOST - 1]);
        block = s.program->block;
        planned += block;
        for (int32_t i = 0; i < s.program->n_buffers; i++)
            apart += invar_aligned(s.program->buffers[i].bytes);
        assert_ok(invar_op_graph_plan(s.program)); // a pure function
        assert_int_equal(s.program->block, block);
        invar_op_graph_eliminate_dead(s.program, 0);
        for (int32_t i = 0; i < s.program->n_nodes; i++)
            dropped += s.program->nodes[i].dropped;
        assert_true(run_sums(&s, dev, false) == s.expected[MOST - 1]);
        for (int32_t i = 0; i < s.program->n_buffers; i++) // the control: two places for all
            s.program->buffers[i].offset = (size_t)(i % 2) * 512;
        wrong += run_sums(&s, dev, false) != s.expected[MOST - 1];
        invar_op_graph_free(s.program);
    }
    assert_true(planned < apart);
    assert_true(wrong > 100);
    assert_true(dropped > 1000); // of 7800
}

/*
 * A lifetime that ends too early: nothing lies there yet, so the sum is right by luck. With poison
 * it is no number.
 */
static void test_program__poison_shows_a_use_of_what_is_dead(void **state)
{
    const invar_device *dev = *state;
    int noticed = 0;

    for (uint64_t seed = 0; seed < 50; seed++) {
        sums s = {0};
        invar_graph_buffer *last;
        assert_ok(invar_op_graph_new(&s.program));
        write_sums(&s, seed);
        assert_ok(invar_op_graph_plan(s.program));
        assert_true(run_sums(&s, dev, true) == s.expected[MOST - 1]);
        last = &s.program->buffers[invar_op_graph_buffer_of(s.at[MOST - 1].data)];
        last->last = s.program->n_nodes - 1; // the host touches it after that
        assert_true(run_sums(&s, dev, false) == s.expected[MOST - 1]);
        noticed += isnan(run_sums(&s, dev, true));
        invar_op_graph_free(s.program);
    }
    assert_int_equal(noticed, 50);
}

/* Which calls stay: `kept` has an x for each. */
static void assert_dropped(invar_op_graph *p, int32_t first, const char *kept)
{
    invar_op_graph_end_section(p);
    invar_op_graph_eliminate_dead(p, first);
    assert_int_equal(p->n_nodes, strlen(kept));
    for (int32_t i = 0; i < p->n_nodes; i++)
        assert_int_equal(p->nodes[i].dropped, kept[i] != 'x');
    invar_op_graph_free(p);
}

static void test_program__calls_that_nobody_wants_are_dropped(void **state)
{
    for (int which = 0; which < 6; which++) {
        invar_tensor x, a, b, c;
        invar_op_graph *p;
        assert_ok(invar_op_graph_new(&p));
        x = invar_tensor_2d(invar_op_graph_input(p, 0), INVAR_DTYPE_F32, 1, WIDTH);
        a = room(p);
        b = room(p);
        c = which == 1 ? invar_tensor_2d(invar_op_graph_input(p, 1), INVAR_DTYPE_F32, 1, WIDTH)
                       : room(p);
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

/* What a move brings keeps the call that it comes from, and not the one that it stands behind. */
static void test_program__calls_whose_results_move_stay(void **state)
{
    for (int which = 0; which < 2; which++) {
        invar_tensor x, a, b, c, all;
        invar_op_graph *p;

        assert_ok(invar_op_graph_new(&p));
        x = invar_tensor_2d(invar_op_graph_input(p, 0), INVAR_DTYPE_F32, 1, WIDTH);
        a = room(p);
        b = room(p);
        c = room(p);
        all = room(p);
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

/* ---- rows that are some of others ------------------------------------------------------------ */

/* Memory for so many rows has room for more; that for other numbers is what they need. */
static void test_program__rows_have_room_for_more(void **state)
{
    static const struct {
        int64_t rows, room;
    } cases[] = {{10, 16}, {30, 48}, {11, 11}, {5, 5}, {0, 0}};
    invar_op_graph *p;

    (void)state;
    assert_ok(invar_op_graph_new(&p));
    for (int stretched = 0; stretched < 2; stretched++) {
        if (stretched)
            invar_op_graph_reserve_rows(p, 10, 16);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            invar_tensor t = invar_op_graph_tensor(p, INVAR_DTYPE_F32, cases[i].rows, 8);
            int64_t rows = stretched ? cases[i].room : cases[i].rows;

            assert_int_equal(t.shape[0], cases[i].rows);
            assert_int_equal(p->buffers[invar_op_graph_buffer_of(t.data)].bytes, rows * 8 * 4);
        }
    }
    invar_op_graph_clear(p);
    assert_int_equal(invar_op_graph_rows(p, 10), 10);
    invar_op_graph_reserve_rows(p, 10, 6); // never less than there are
    assert_int_equal(invar_op_graph_rows(p, 10), 10);
    invar_op_graph_free(p);
}

/* ---- points ---------------------------------------------------------------------------------- */

static struct {
    char text[8][160];
    int count;
} shown;

static invar_status take(void *payload, const invar_observed_value *value)
{
    char *out = shown.text[shown.count++];
    size_t used;

    (void)payload;
    assert_true(shown.count < 8);
    used = (size_t)snprintf(out, 160, "%s %s:", value->name.text, value->op);
    for (int i = 0; i < value->n_inputs; i++)
        used += (size_t)snprintf(out + used, 160 - used, " %s", value->inputs[i].text);
    return INVAR_OK;
}

/*
 * x is given and has a name; b is made of a, which nobody sees; c is made in place of b; what is
 * made again has its name, and is not shown.
 */
static void test_program__points_know_what_they_are_computed_from(void **state)
{
    static const char *const expected[] = {"b add: x", "c add: b x", "columns add: x",
                                           "d add: c columns", "f add: b"};
    static const invar_graph_point source = {.name = "x", .layer = -1};
    const invar_device *dev = *state;
    float one[WIDTH] = {0};
    const void *given[INVAR_OP_GRAPH_MAX_INPUTS] = {one};
    const int64_t start[] = {0, 1};
    const invar_row_offsets samples = {start, 1};
    const invar_forward_hooks probe = {.on_value = take};
    invar_graph_exec_args run = {
        .inputs = given, .hooks = &probe, .samples = &samples, .device_samples = &samples};
    invar_tensor x, a, b, d, e, f, half, wide;
    invar_op_graph *p;
    invar_op_runner caller;
    void *block;

    assert_ok(invar_op_graph_new(&p));
    x = invar_tensor_2d(invar_op_graph_input(p, 0), INVAR_DTYPE_F32, 1, WIDTH);
    invar_op_graph_source(p, x.data, &source);
    a = room(p);
    b = room(p);
    d = room(p);
    e = room(p);
    f = room(p);
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
    run.block = block;
    run.op_runner = &caller;
    invar_op_runner_init(&caller, dev);
    shown.count = 0;
    assert_ok(invar_op_graph_run(p, 0, &run));
    assert_int_equal(shown.count, 5);
    for (int i = 0; i < 5; i++)
        assert_string_equal(shown.text[i], expected[i]);
    invar_op_runner_release(&caller);
    invar_free(block);
    invar_op_graph_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_program__planned_memory_changes_no_result),
        cmocka_unit_test(test_program__poison_shows_a_use_of_what_is_dead),
        cmocka_unit_test(test_program__calls_that_nobody_wants_are_dropped),
        cmocka_unit_test(test_program__calls_whose_results_move_stay),
        cmocka_unit_test(test_program__rows_have_room_for_more),
        cmocka_unit_test(test_program__points_know_what_they_are_computed_from),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
