/*
 * cuda_graph_cache.c - tests that repeated calls, and only those, are launched as CUDA graphs.
 *
 * The backend is tests/device/fake_gpu.c, which counts graphs, launches and ops. Every sequence of
 * calls must give the result of single launches. Controls: another call, fewer or more calls, a
 * download in between or new scratch must not be served by the recorded graph.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/cuda_graph_cache.h"

#include "tests/device/fake_gpu.h"
#include "tests/ops.h"

enum { N = 5, BLOCKS = 4, LARGE = 4096 };

static struct {
    invar_device dev;
    invar_op_runner runner;
    invar_cuda_graph_cache *cache;
    float *blocks[BLOCKS]; /* (N) each, in device memory */
    int32_t *token;
    invar_sample_coords *coords;
    float *logits;                /* (LARGE) */
    invar_fake_gpu_counts before; /* counts at the last assert_counts */
} fixture;

static const invar_cuda_graph_key first_key = {1, 1, 2}, second_key = {1, 1, 3};

/* Allocates device memory. */
static void *alloc_block(size_t bytes)
{
    return invar_test_device_alloc(&fixture.dev, bytes, "a block");
}

static int setup(void **state)
{
    static const float zeros[LARGE];

    (void)state;
    invar_fake_gpu_begin(0);
    fixture.dev =
        (invar_device){.backend = invar_fake_gpu_backend(), .numerics = INVAR_NUMERICS_IEEE};
    assert_ok(invar_device_open(&fixture.dev));
    invar_op_runner_init(&fixture.runner, &fixture.dev);
    assert_ok(invar_cuda_graph_cache_new(&fixture.cache, &fixture.dev));
    fixture.runner.graph_cache = fixture.cache;
    fixture.before = invar_fake_gpu_counted();
    for (int i = 0; i < BLOCKS; i++)
        fixture.blocks[i] = alloc_block(N * sizeof(float));
    fixture.token = alloc_block(sizeof *fixture.token);
    fixture.coords = alloc_block(sizeof *fixture.coords);
    fixture.logits = alloc_block(sizeof zeros);
    assert_ok(invar_device_upload(&fixture.dev, fixture.coords, zeros, sizeof *fixture.coords));
    assert_ok(invar_device_upload(&fixture.dev, fixture.logits, zeros, sizeof zeros));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < BLOCKS; i++)
        invar_device_free(&fixture.dev, fixture.blocks[i]);
    invar_device_free(&fixture.dev, fixture.token);
    invar_device_free(&fixture.dev, fixture.coords);
    invar_device_free(&fixture.dev, fixture.logits);
    invar_cuda_graph_cache_free(fixture.cache);
    invar_op_runner_release(&fixture.runner);
    invar_device_close(&fixture.dev);
    return invar_fake_gpu_counted().live != 0 || invar_fake_gpu_counted().live_graphs != 0;
}

/* Calls an op: block `to` = block a + block b. */
static void add(int to, int a, int b)
{
    assert_ok(INVAR_CALL(&fixture.runner, ADD, add,
                         .out = invar_tensor_2d(fixture.blocks[to], INVAR_DTYPE_F32, 1, N),
                         .a = invar_tensor_2d(fixture.blocks[a], INVAR_DTYPE_F32, 1, N),
                         .b = invar_tensor_2d(fixture.blocks[b], INVAR_DTYPE_F32, 1, N)));
}

/* Calls an op with scratch, whose size depends on `vocabulary`. */
static void sample(int64_t vocabulary)
{
    assert_ok(INVAR_CALL(&fixture.runner, SAMPLE, sample,
                         .tokens = invar_tensor_1d(fixture.token, INVAR_DTYPE_I32, 1),
                         .logits = invar_tensor_2d(fixture.logits, INVAR_DTYPE_F32, 1, vocabulary),
                         .coords = fixture.coords, .temperature = 1.0f, .top_k = 2, .top_p = 1.0f));
}

/* Uploads a block with all elements equal to `value`. */
static void upload_value(int block, float value)
{
    float values[N] = {value, value, value, value, value};

    assert_ok(invar_device_upload(&fixture.dev, fixture.blocks[block], values, sizeof values));
}

/* Downloads a block and checks its elements; the download flushes the cache. */
static void check_block(int block, float value)
{
    float got[N];

    assert_ok(invar_op_runner_download(&fixture.runner, got, fixture.blocks[block], sizeof got));
    for (int i = 0; i < N; i++)
        assert_true(got[i] == value);
}

/* Asserts the numbers of graphs made, graphs launched and ops run since the last call. */
static void assert_counts(int graphs, int64_t graph_runs, int64_t ops)
{
    invar_fake_gpu_counts counts = invar_fake_gpu_counted();

    assert_int_equal(counts.graphs - fixture.before.graphs, graphs);
    assert_int_equal(counts.graph_runs - fixture.before.graph_runs, graph_runs);
    assert_int_equal(counts.ops - fixture.before.ops, ops);
    fixture.before = counts;
}

/* One pass with two calls: block 3 = x + 2 y. */
static void run_two_adds(const invar_cuda_graph_key *key, float x, float y)
{
    invar_cuda_graph_cache_begin(fixture.cache, key);
    upload_value(0, x);
    upload_value(1, y);
    add(2, 0, 1);
    add(3, 2, 1);
    check_block(3, x + 2 * y);
    invar_cuda_graph_cache_end(fixture.cache);
}

static void test_graph_cache__repeated_calls_are_a_graph(void **state)
{
    (void)state;
    assert_counts(0, 0, 0);
    run_two_adds(&first_key, 1, 2); // runs call by call and is recorded
    assert_counts(0, 0, 2);
    for (int i = 0; i < 5; i++) {
        run_two_adds(&first_key, (float)i, 7);
        assert_counts(i == 0, 1, 2);
    }
    add(2, 0, 1); // outside a pass
    assert_counts(0, 0, 1);
    run_two_adds(&first_key, 3, 4);
    assert_counts(0, 1, 2);
}

static void test_graph_cache__keys_have_graphs_of_their_own(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        run_two_adds(&first_key, (float)i, 7);
        run_two_adds(&second_key, (float)i, 8);
        assert_counts(i == 1 ? 2 : 0, i > 0 ? 2 : 0, 4);
    }
    // more keys than the cache keeps
    for (int i = 0; i < 3 * 200; i++)
        run_two_adds(&(invar_cuda_graph_key){i / 3, 1, 1}, 1, 2);
    assert_in_range(invar_fake_gpu_counted().live_graphs, 2, 100);
    run_two_adds(&first_key, 5, 6);
}

static void test_graph_cache__another_call_ends_a_graph(void **state)
{
    (void)state;
    run_two_adds(&first_key, 1, 2);
    run_two_adds(&first_key, 1, 2);
    assert_counts(1, 1, 4);
    for (int i = 0; i < 3; i++) {
        invar_cuda_graph_cache_begin(fixture.cache, &first_key);
        upload_value(0, 2);
        upload_value(1, 3);
        add(2, 0, 1);
        add(3, 1, 2); // an equal sum by another call
        check_block(3, 8);
        invar_cuda_graph_cache_end(fixture.cache);
        assert_counts(i == 1, i > 0, 2);
    }
    assert_int_equal(invar_fake_gpu_counted().live_graphs, 1);
}

static void test_graph_cache__fewer_and_more_calls_end_a_graph(void **state)
{
    (void)state;
    run_two_adds(&first_key, 1, 2);
    run_two_adds(&first_key, 1, 2);
    assert_counts(1, 1, 4);
    invar_cuda_graph_cache_begin(fixture.cache, &first_key);
    upload_value(0, 4);
    add(2, 0, 1);
    check_block(2, 6);
    invar_cuda_graph_cache_end(fixture.cache);
    assert_counts(0, 0, 1);
    invar_cuda_graph_cache_begin(fixture.cache, &first_key);
    upload_value(0, 5);
    add(2, 0, 1);
    add(3, 2, 0);
    add(3, 3, 0);
    check_block(3, 17);
    invar_cuda_graph_cache_end(fixture.cache);
    assert_counts(0, 0, 3);
    assert_int_equal(invar_fake_gpu_counted().live_graphs, 0);
    invar_cuda_graph_cache_begin(fixture.cache, &first_key); // a pass without calls
    check_block(3, 17);
    invar_cuda_graph_cache_end(fixture.cache);
    run_two_adds(&first_key, 2, 3);
    assert_counts(0, 0, 2);
}

static void test_graph_cache__a_download_ends_a_graph(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        invar_cuda_graph_cache_begin(fixture.cache, &first_key);
        upload_value(0, 1);
        upload_value(1, (float)i);
        add(2, 0, 1);
        check_block(2, 1 + (float)i);
        add(3, 2, 2);
        check_block(3, 2 + 2 * (float)i);
        invar_cuda_graph_cache_end(fixture.cache);
        assert_counts(i == 1 ? 2 : 0, i > 0 ? 2 : 0, 2);
    }
}

/* Like a pass of parallel ranks, where each transfer between them flushes the cache. */
static void test_graph_cache__many_downloads_make_many_graphs(void **state)
{
    enum { DOWNLOADS = 300 };

    (void)state;
    for (int i = 0; i < 3; i++) {
        invar_cuda_graph_cache_begin(fixture.cache, &first_key);
        upload_value(0, (float)i);
        upload_value(2, 0);
        for (int n = 0; n < DOWNLOADS; n++) {
            add(2, 2, 0);
            check_block(2, (float)((n + 1) * i));
        }
        invar_cuda_graph_cache_end(fixture.cache);
        assert_counts(i == 1 ? DOWNLOADS : 0, i > 0 ? DOWNLOADS : 0, DOWNLOADS);
    }
    // the cache also limits the number of graphs over all keys
    for (int i = 0; i < 2 * 20; i++) {
        invar_cuda_graph_cache_begin(fixture.cache, &(invar_cuda_graph_key){i / 2, 1, 1});
        for (int n = 0; n < DOWNLOADS; n++) {
            add(2, 2, 0);
            assert_ok(invar_cuda_graph_cache_flush(fixture.cache));
        }
        invar_cuda_graph_cache_end(fixture.cache);
    }
    assert_in_range(invar_fake_gpu_counted().live_graphs, DOWNLOADS, 4096 + 2 * DOWNLOADS);
}

static void test_graph_cache__what_is_held_back_at_the_end_never_runs(void **state)
{
    (void)state;
    run_two_adds(&first_key, 1, 2);
    assert_counts(0, 0, 2);
    invar_cuda_graph_cache_begin(fixture.cache, &first_key);
    upload_value(2, 9);
    add(2, 0, 1);
    invar_cuda_graph_cache_end(fixture.cache);
    check_block(2, 9);
    assert_counts(0, 0, 0);
    run_two_adds(&first_key, 1, 2);
    assert_counts(1, 1, 2);
}

/* Reallocated scratch has another address, although all arguments are equal. */
static void test_graph_cache__new_scratch_ends_a_graph(void **state)
{
    (void)state;
    sample(8);
    assert_counts(0, 0, 1);
    for (int i = 0; i < 6; i++) {
        if (i == 3)
            sample(LARGE);
        invar_cuda_graph_cache_begin(fixture.cache, &first_key);
        upload_value(0, (float)i);
        add(2, 0, 0);
        sample(8);
        check_block(2, 2 * (float)i);
        invar_cuda_graph_cache_end(fixture.cache);
        assert_counts(i == 1 || i == 4, i % 3 > 0, i == 3 ? 3 : 2);
    }
}

static void test_graph_cache__without_graphs_calls_run_one_by_one(void **state)
{
    (void)state;
    invar_fake_gpu_refuse_graphs();
    for (int i = 0; i < 4; i++) {
        run_two_adds(&first_key, (float)i, 5);
        assert_counts(0, 0, 2);
    }
    assert_int_equal(invar_error_last()->status, INVAR_OK);
}

/* An invalid call fails immediately, and the pass continues. */
static void test_graph_cache__bad_calls_are_refused(void **state)
{
    invar_add_args invalid = {.out = invar_tensor_2d(fixture.blocks[2], INVAR_DTYPE_F32, 1, N)};

    (void)state;
    for (int i = 0; i < 3; i++) {
        invar_cuda_graph_cache_begin(fixture.cache, &first_key);
        upload_value(0, 1);
        upload_value(1, 1);
        add(2, 0, 1);
        assert_fails(invar_op_runner_run(&fixture.runner, INVAR_OP_ADD, &invalid), INVAR_E_INVALID,
                     "add: ");
        invar_cuda_graph_cache_end(fixture.cache);
    }
    run_two_adds(&first_key, 1, 2);
    run_two_adds(&first_key, 1, 2);
    assert_int_equal(invar_fake_gpu_counted().live_graphs, 1);
}

static void test_graph_cache__no_cache_without_graphs(void **state)
{
    const invar_device cpu = {.backend = invar_backend_cpu()};
    invar_cuda_graph_cache *cache = fixture.cache;

    (void)state;
    assert_ok(invar_cuda_graph_cache_new(&cache, &cpu));
    assert_null(cache);
    invar_cuda_graph_cache_free(cache);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_graph_cache__##name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(repeated_calls_are_a_graph),
        TEST(keys_have_graphs_of_their_own),
        TEST(another_call_ends_a_graph),
        TEST(fewer_and_more_calls_end_a_graph),
        TEST(a_download_ends_a_graph),
        TEST(many_downloads_make_many_graphs),
        TEST(what_is_held_back_at_the_end_never_runs),
        TEST(new_scratch_ends_a_graph),
        TEST(without_graphs_calls_run_one_by_one),
        TEST(bad_calls_are_refused),
        TEST(no_cache_without_graphs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
