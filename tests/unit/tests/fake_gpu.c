/*
 * fake_gpu.c - the far backend of the tests notices what it is there to notice.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/device/fake_gpu.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/model/graph/op_runner.h"
#include "tests/ops.h"

static invar_device dev;

static int setup(void **state)
{
    (void)state;
    invar_far_begin(0);
    dev = (invar_device){.backend = invar_far_backend(), .numerics = INVAR_NUMERICS_IEEE};
    return invar_device_open(&dev) != INVAR_OK;
}

static int teardown(void **state)
{
    (void)state;
    invar_device_close(&dev);
    return invar_far_counted().opens != 0 || invar_far_counted().live != 0;
}

static float *taken(int64_t count, const char *what)
{
    return invar_test_take(&dev, (size_t)count * sizeof(float), what);
}

/* How a process ends that reads the address, or writes to it, and what it says. */
static int end_of(char said[200], float *at, bool writes)
{
    int ends[2], end;
    ssize_t length;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        invar_device_close(&dev);
        signal(SIGSEGV, SIG_DFL); // instead of cmocka's handler
        if (dup2(ends[1], STDERR_FILENO) < 0 || invar_device_open(&dev) != INVAR_OK)
            _exit(2);
        if (writes)
            *(volatile float *)at = 1.0f;
        _exit(*(volatile float *)at == 1.0f ? 0 : 1);
    }
    close(ends[1]);
    length = read(ends[0], said, 199);
    said[length > 0 ? length : 0] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &end, 0), child);
    return end;
}

static void test_far__the_host_cannot_touch_it(void **state)
{
    float *x = taken(4, "what the host must not touch"), near = 1.0f;
    char said[200];
    int end;

    (void)state;
    for (int writes = 0; writes < 2; writes++) {
        end = end_of(said, x, writes);
        assert_true(WIFSIGNALED(end) && WTERMSIG(end) == SIGSEGV);
        assert_non_null(strstr(said, "touched the device's memory: what the host must not touch"));
        end = end_of(said, &near, writes);
        assert_true(WIFEXITED(end) && WEXITSTATUS(end) == 0);
        assert_string_equal(said, "");
    }
    invar_device_free(&dev, x);
}

static void test_far__copies_stay_within_a_block(void **state)
{
    float here[4] = {1.0f, 2.0f, 3.0f, 4.0f}, back[4];
    float *x = taken(64, "one"), *y = taken(64, "two");

    (void)state;
    assert_ok(invar_device_upload(&dev, x + 4, here, sizeof here));
    assert_ok(invar_device_copy(&dev, y + 8, x + 4, sizeof here));
    assert_ok(invar_device_download(&dev, back, y + 8, sizeof here));
    assert_memory_equal(here, back, sizeof here);
    assert_ok(invar_device_zero(&dev, y, sizeof here));
    assert_ok(invar_device_copy_strided(&dev, y + 16, x + 4, sizeof *x, 2 * sizeof *x, 2));
    assert_ok(invar_device_download(&dev, back, y + 16, 3 * sizeof *x));
    assert_true(back[0] == 1.0f && back[1] != back[1] && back[2] == 3.0f); // NaN: never written
    assert_fails(invar_device_copy_strided(&dev, y, x, sizeof *x, 32 * sizeof *x, 3), INVAR_E_STATE,
                 "elsewhere");
    assert_fails(invar_device_upload(&dev, x + 62, here, sizeof here), INVAR_E_STATE, "elsewhere");
    assert_fails(invar_device_upload(&dev, here, back, sizeof here), INVAR_E_STATE, "elsewhere");
    assert_fails(invar_device_download(&dev, y, x, sizeof here), INVAR_E_STATE, "elsewhere");
    assert_fails(invar_device_copy(&dev, back, x, sizeof here), INVAR_E_STATE, "elsewhere");
    assert_fails(invar_device_copy(&dev, x, back, sizeof here), INVAR_E_STATE, "elsewhere");
    assert_fails(invar_device_zero(&dev, back, sizeof here), INVAR_E_STATE, "elsewhere");
    invar_device_free(&dev, x);
    assert_fails(invar_device_zero(&dev, x, sizeof here), INVAR_E_STATE, "elsewhere");
    invar_device_free(&dev, y);
}

static void test_far__ops_take_no_address_of_the_host(void **state)
{
    float here[6] = {0.5f, 1.5f, 2.5f, 3.5f, 4.5f, 5.5f}, back[6];
    float *x = taken(6, "x"), *y = taken(6, "y");
    invar_tensor far_x = invar_tensor_2d(x, INVAR_DTYPE_F32, 2, 3);
    invar_tensor far_y = invar_tensor_2d(y, INVAR_DTYPE_F32, 2, 3);
    invar_tensor near_x = invar_tensor_2d(here, INVAR_DTYPE_F32, 2, 3);
    float norm, clip;
    invar_op_runner caller;

    (void)state;
    invar_op_runner_init(&caller, &dev);
    assert_ok(invar_device_upload(&dev, x, here, sizeof here));
    assert_ok(INVAR_CALL(&caller, ADD, add, .out = far_y, .a = far_x, .b = far_x));
    assert_ok(invar_device_download(&dev, back, y, sizeof back));
    for (int i = 0; i < 6; i++)
        assert_true(back[i] == 2.0f * here[i]);
    assert_fails(INVAR_CALL(&caller, ADD, add, .out = far_y, .a = near_x, .b = far_x),
                 INVAR_E_STATE, "add: byte");
    assert_ok(INVAR_CALL(&caller, GRAD_NORM, grad_norm, .norm = &norm, .clip = &clip,
                         .grads = &far_x, .count = 1));
    assert_true(norm > 8.0f && norm < 9.0f);
    assert_fails(INVAR_CALL(&caller, GRAD_NORM, grad_norm, .norm = &norm, .clip = &clip,
                            .grads = &near_x, .count = 1),
                 INVAR_E_STATE, "grad.norm: byte");
    invar_op_runner_release(&caller);
    invar_device_free(&dev, x);
    invar_device_free(&dev, y);
}

static void test_far__a_graph_runs_what_was_noted(void **state)
{
    const invar_device_graphs *graphs = &dev.backend->graphs;
    float here[3] = {1.0f, 2.0f, 3.0f}, back[3];
    float *x = taken(3, "x"), *y = taken(3, "y");
    invar_tensor of_x = invar_tensor_2d(x, INVAR_DTYPE_F32, 1, 3);
    invar_tensor of_y = invar_tensor_2d(y, INVAR_DTYPE_F32, 1, 3);
    invar_add_args twice = {.out = of_y, .a = of_x, .b = of_x};
    invar_device_graph *graph;

    (void)state;
    assert_ok(invar_device_zero(&dev, y, sizeof here));
    assert_ok(graphs->begin(&dev));
    assert_ok(invar_add(&dev, &twice));
    assert_fails(invar_device_upload(&dev, x, here, sizeof here), INVAR_E_STATE, "only ops");
    assert_ok(graphs->end(&graph, &dev));
    twice.b = of_y; // the graph has its own
    for (int i = 0; i < 3; i++) {
        here[1] += 1.0f;
        assert_ok(invar_device_download(&dev, back, y, sizeof back));
        assert_true(back[1] == (i == 0 ? 0.0f : 2.0f * (here[1] - 1.0f))); // it has not run yet
        assert_ok(invar_device_upload(&dev, x, here, sizeof here));
        assert_ok(graphs->launch(&dev, graph));
    }
    graphs->free(&dev, graph);
    assert_ok(graphs->begin(&dev));
    assert_ok(graphs->end(NULL, &dev));
    assert_int_equal(invar_far_counted().live_graphs, 0);
    invar_device_free(&dev, x);
    invar_device_free(&dev, y);
}

/* Of a device opened again: whatever the first one is doing. */
static void test_far__copies_beside_a_graph(void **state)
{
    const invar_device_graphs *graphs = &dev.backend->graphs;
    invar_device beside = {.backend = dev.backend};
    float here = 1.0f, back = 0.0f;
    float *x = taken(1, "x");

    (void)state;
    assert_ok(invar_device_open(&beside));
    assert_ok(invar_device_upload(&dev, x, &here, sizeof here));
    assert_ok(graphs->begin(&dev));
    assert_ok(invar_device_download(&beside, &back, x, sizeof here));
    assert_true(back == here);
    assert_ok(graphs->end(NULL, &dev));
    invar_device_close(&beside);
    assert_fails(invar_device_download(&beside, &back, x, sizeof here), INVAR_E_STATE,
                 "not opened");
    invar_device_free(&dev, x);
}

static void test_far__a_device_is_opened_first(void **state)
{
    invar_device closed = {.backend = invar_far_backend()};
    void *block;

    (void)state;
    assert_fails(invar_device_alloc(&closed, &block, 8, "x"), INVAR_E_STATE, "not opened");
}

static void test_far__memory_ends_where_it_shall(void **state)
{
    void *one, *two;

    (void)state;
    invar_device_close(&dev);
    invar_far_begin(2);
    assert_ok(invar_device_open(&dev));
    assert_ok(invar_device_alloc(&dev, &one, 8, "one"));
    assert_fails(invar_device_alloc(&dev, &two, 8, "two"), INVAR_E_NOMEM, "two: no memory for");
    assert_ok(invar_device_alloc(&dev, &two, 8, "three"));
    assert_int_equal(invar_far_counted().takes, 3);
    assert_int_equal(invar_far_counted().live, 2);
    invar_device_free(&dev, one);
    invar_device_free(&dev, two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_far__the_host_cannot_touch_it, setup, teardown),
        cmocka_unit_test_setup_teardown(test_far__copies_stay_within_a_block, setup, teardown),
        cmocka_unit_test_setup_teardown(test_far__ops_take_no_address_of_the_host, setup, teardown),
        cmocka_unit_test_setup_teardown(test_far__a_graph_runs_what_was_noted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_far__copies_beside_a_graph, setup, teardown),
        cmocka_unit_test_setup_teardown(test_far__a_device_is_opened_first, setup, teardown),
        cmocka_unit_test_setup_teardown(test_far__memory_ends_where_it_shall, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
