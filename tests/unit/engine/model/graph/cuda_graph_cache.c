/*
 * cuda_graph_cache.c - calls that come again run as graphs, and only those.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/cuda_graph_cache.h"

#include "tests/device/fake_gpu.h"
#include "tests/ops.h"

enum { N = 5, BLOCKS = 4, LARGE = 4096 };

static struct {
    invar_device dev;
    invar_op_runner caller;
    invar_cuda_graph_cache *tape;
    float *blocks[BLOCKS]; /* (N) each, the device's */
    int32_t *token;
    invar_sample_coords *coords;
    float *logits;           /* (LARGE) */
    invar_far_counts before; /* at the last look */
} t;

static const invar_cuda_graph_key one = {1, 1, 2}, other = {1, 1, 3};

static void *taken(size_t bytes)
{
    return invar_test_take(&t.dev, bytes, "a block");
}

static int setup(void **state)
{
    static const float zeros[LARGE];

    (void)state;
    invar_far_begin(0);
    t.dev = (invar_device){.backend = invar_far_backend(), .numerics = INVAR_NUMERICS_IEEE};
    assert_ok(invar_device_open(&t.dev));
    invar_op_runner_init(&t.caller, &t.dev);
    assert_ok(invar_cuda_graph_cache_new(&t.tape, &t.dev));
    t.caller.graph_cache = t.tape;
    t.before = invar_far_counted();
    for (int i = 0; i < BLOCKS; i++)
        t.blocks[i] = taken(N * sizeof(float));
    t.token = taken(sizeof *t.token);
    t.coords = taken(sizeof *t.coords);
    t.logits = taken(sizeof zeros);
    assert_ok(invar_device_upload(&t.dev, t.coords, zeros, sizeof *t.coords));
    assert_ok(invar_device_upload(&t.dev, t.logits, zeros, sizeof zeros));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < BLOCKS; i++)
        invar_device_free(&t.dev, t.blocks[i]);
    invar_device_free(&t.dev, t.token);
    invar_device_free(&t.dev, t.coords);
    invar_device_free(&t.dev, t.logits);
    invar_cuda_graph_cache_free(t.tape);
    invar_op_runner_release(&t.caller);
    invar_device_close(&t.dev);
    return invar_far_counted().live != 0 || invar_far_counted().live_graphs != 0;
}

/* Block `to` = block a + block b. */
static void add(int to, int a, int b)
{
    assert_ok(INVAR_CALL(&t.caller, ADD, add,
                         .out = invar_tensor_2d(t.blocks[to], INVAR_DTYPE_F32, 1, N),
                         .a = invar_tensor_2d(t.blocks[a], INVAR_DTYPE_F32, 1, N),
                         .b = invar_tensor_2d(t.blocks[b], INVAR_DTYPE_F32, 1, N)));
}

/* An op with scratch, which goes with `vocabulary`. */
static void sample(int64_t vocabulary)
{
    assert_ok(INVAR_CALL(&t.caller, SAMPLE, sample,
                         .tokens = invar_tensor_1d(t.token, INVAR_DTYPE_I32, 1),
                         .logits = invar_tensor_2d(t.logits, INVAR_DTYPE_F32, 1, vocabulary),
                         .coords = t.coords, .temperature = 1.0f, .top_k = 2, .top_p = 1.0f));
}

static void put(int block, float value)
{
    float values[N] = {value, value, value, value, value};

    assert_ok(invar_device_upload(&t.dev, t.blocks[block], values, sizeof values));
}

static void expect(int block, float value)
{
    float got[N];

    assert_ok(invar_op_runner_download(&t.caller, got, t.blocks[block], sizeof got));
    for (int i = 0; i < N; i++)
        assert_true(got[i] == value);
}

/* What has happened since the last look: graphs made, graphs run, ops run. */
static void expect_counts(int graphs, int64_t graph_runs, int64_t ops)
{
    invar_far_counts now = invar_far_counted();

    assert_int_equal(now.graphs - t.before.graphs, graphs);
    assert_int_equal(now.graph_runs - t.before.graph_runs, graph_runs);
    assert_int_equal(now.ops - t.before.ops, ops);
    t.before = now;
}

/* Block 3 = x + 2 y, in two calls. */
static void twice(const invar_cuda_graph_key *key, float x, float y)
{
    invar_cuda_graph_cache_begin(t.tape, key);
    put(0, x);
    put(1, y);
    add(2, 0, 1);
    add(3, 2, 1);
    expect(3, x + 2 * y);
    invar_cuda_graph_cache_end(t.tape);
}

static void test_tape__calls_that_come_again_are_a_graph(void **state)
{
    (void)state;
    expect_counts(0, 0, 0);
    twice(&one, 1, 2); // at once
    expect_counts(0, 0, 2);
    for (int i = 0; i < 5; i++) {
        twice(&one, (float)i, 7);
        expect_counts(i == 0, 1, 2);
    }
    add(2, 0, 1); // it does not listen
    expect_counts(0, 0, 1);
    twice(&one, 3, 4);
    expect_counts(0, 1, 2);
}

static void test_tape__keys_have_graphs_of_their_own(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        twice(&one, (float)i, 7);
        twice(&other, (float)i, 8);
        expect_counts(i == 1 ? 2 : 0, i > 0 ? 2 : 0, 4);
    }
    // more than are kept
    for (int i = 0; i < 3 * 200; i++)
        twice(&(invar_cuda_graph_key){i / 3, 1, 1}, 1, 2);
    assert_in_range(invar_far_counted().live_graphs, 2, 100);
    twice(&one, 5, 6);
}

static void test_tape__another_call_ends_a_graph(void **state)
{
    (void)state;
    twice(&one, 1, 2);
    twice(&one, 1, 2);
    expect_counts(1, 1, 4);
    for (int i = 0; i < 3; i++) {
        invar_cuda_graph_cache_begin(t.tape, &one);
        put(0, 2);
        put(1, 3);
        add(2, 0, 1);
        add(3, 1, 2); // the same sum, not the same call
        expect(3, 8);
        invar_cuda_graph_cache_end(t.tape);
        expect_counts(i == 1, i > 0, 2);
    }
    assert_int_equal(invar_far_counted().live_graphs, 1);
}

static void test_tape__fewer_and_more_calls_end_a_graph(void **state)
{
    (void)state;
    twice(&one, 1, 2);
    twice(&one, 1, 2);
    expect_counts(1, 1, 4);
    invar_cuda_graph_cache_begin(t.tape, &one);
    put(0, 4);
    add(2, 0, 1);
    expect(2, 6);
    invar_cuda_graph_cache_end(t.tape);
    expect_counts(0, 0, 1);
    invar_cuda_graph_cache_begin(t.tape, &one);
    put(0, 5);
    add(2, 0, 1);
    add(3, 2, 0);
    add(3, 3, 0);
    expect(3, 17);
    invar_cuda_graph_cache_end(t.tape);
    expect_counts(0, 0, 3);
    assert_int_equal(invar_far_counted().live_graphs, 0);
    invar_cuda_graph_cache_begin(t.tape, &one); // nothing at all
    expect(3, 17);
    invar_cuda_graph_cache_end(t.tape);
    twice(&one, 2, 3);
    expect_counts(0, 0, 2);
}

static void test_tape__a_look_cuts_a_graph(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        invar_cuda_graph_cache_begin(t.tape, &one);
        put(0, 1);
        put(1, (float)i);
        add(2, 0, 1);
        expect(2, 1 + (float)i);
        add(3, 2, 2);
        expect(3, 2 + 2 * (float)i);
        invar_cuda_graph_cache_end(t.tape);
        expect_counts(i == 1 ? 2 : 0, i > 0 ? 2 : 0, 2);
    }
}

/* As a pass of ranks that divide a model: each move between them is a look. */
static void test_tape__many_looks_cut_many_graphs(void **state)
{
    enum { LOOKS = 300 };

    (void)state;
    for (int i = 0; i < 3; i++) {
        invar_cuda_graph_cache_begin(t.tape, &one);
        put(0, (float)i);
        put(2, 0);
        for (int n = 0; n < LOOKS; n++) {
            add(2, 2, 0);
            expect(2, (float)((n + 1) * i));
        }
        invar_cuda_graph_cache_end(t.tape);
        expect_counts(i == 1 ? LOOKS : 0, i > 0 ? LOOKS : 0, LOOKS);
    }
    // and tracks of many parts do not pile up
    for (int i = 0; i < 2 * 20; i++) {
        invar_cuda_graph_cache_begin(t.tape, &(invar_cuda_graph_key){i / 2, 1, 1});
        for (int n = 0; n < LOOKS; n++) {
            add(2, 2, 0);
            assert_ok(invar_cuda_graph_cache_flush(t.tape));
        }
        invar_cuda_graph_cache_end(t.tape);
    }
    assert_in_range(invar_far_counted().live_graphs, LOOKS, 4096 + 2 * LOOKS);
}

static void test_tape__what_is_held_back_at_the_end_never_runs(void **state)
{
    (void)state;
    twice(&one, 1, 2);
    expect_counts(0, 0, 2);
    invar_cuda_graph_cache_begin(t.tape, &one);
    put(2, 9);
    add(2, 0, 1);
    invar_cuda_graph_cache_end(t.tape);
    expect(2, 9);
    expect_counts(0, 0, 0);
    twice(&one, 1, 2);
    expect_counts(1, 1, 2);
}

/* Scratch that was replaced is another address, though no argument says so. */
static void test_tape__new_scratch_ends_a_graph(void **state)
{
    (void)state;
    sample(8);
    expect_counts(0, 0, 1);
    for (int i = 0; i < 6; i++) {
        if (i == 3)
            sample(LARGE);
        invar_cuda_graph_cache_begin(t.tape, &one);
        put(0, (float)i);
        add(2, 0, 0);
        sample(8);
        expect(2, 2 * (float)i);
        invar_cuda_graph_cache_end(t.tape);
        expect_counts(i == 1 || i == 4, i % 3 > 0, i == 3 ? 3 : 2);
    }
}

static void test_tape__without_graphs_calls_run_one_by_one(void **state)
{
    (void)state;
    invar_far_refuse_graphs();
    for (int i = 0; i < 4; i++) {
        twice(&one, (float)i, 5);
        expect_counts(0, 0, 2);
    }
    assert_int_equal(invar_error_last()->status, INVAR_OK);
}

/* What is wrong with a call is told when it is made, and the tape goes on. */
static void test_tape__bad_calls_are_refused(void **state)
{
    invar_add_args bad = {.out = invar_tensor_2d(t.blocks[2], INVAR_DTYPE_F32, 1, N)};

    (void)state;
    for (int i = 0; i < 3; i++) {
        invar_cuda_graph_cache_begin(t.tape, &one);
        put(0, 1);
        put(1, 1);
        add(2, 0, 1);
        assert_fails(invar_op_runner_run(&t.caller, INVAR_OP_ADD, &bad), INVAR_E_INVALID, "add: ");
        invar_cuda_graph_cache_end(t.tape);
    }
    twice(&one, 1, 2);
    twice(&one, 1, 2);
    assert_int_equal(invar_far_counted().live_graphs, 1);
}

static void test_tape__there_is_none_without_graphs(void **state)
{
    const invar_device near = {.backend = invar_backend_cpu()};
    invar_cuda_graph_cache *tape = t.tape;

    (void)state;
    assert_ok(invar_cuda_graph_cache_new(&tape, &near));
    assert_null(tape);
    invar_cuda_graph_cache_free(tape);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_tape__##name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(calls_that_come_again_are_a_graph),
        TEST(keys_have_graphs_of_their_own),
        TEST(another_call_ends_a_graph),
        TEST(fewer_and_more_calls_end_a_graph),
        TEST(a_look_cuts_a_graph),
        TEST(many_looks_cut_many_graphs),
        TEST(what_is_held_back_at_the_end_never_runs),
        TEST(new_scratch_ends_a_graph),
        TEST(without_graphs_calls_run_one_by_one),
        TEST(bad_calls_are_refused),
        TEST(there_is_none_without_graphs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
