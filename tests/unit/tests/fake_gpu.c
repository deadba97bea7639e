/*
 * fake_gpu.c - tests of the fake GPU: each misuse that it must detect, next to the permitted call.
 *
 * Access by the host is a segmentation fault that names the block, copies across blocks and host
 * addresses in ops are errors, graphs run what was captured, and allocations fail on request.
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
    invar_fake_gpu_begin(0);
    dev = (invar_device){.backend = invar_fake_gpu_backend(), .numerics = INVAR_NUMERICS_IEEE};
    return invar_device_open(&dev) != INVAR_OK;
}

static int teardown(void **state)
{
    (void)state;
    invar_device_close(&dev);
    return invar_fake_gpu_counted().opens != 0 || invar_fake_gpu_counted().live != 0;
}

static float *alloc_floats(int64_t count, const char *what)
{
    return invar_test_device_alloc(&dev, (size_t)count * sizeof(float), what);
}

/* Reads or writes `address` in a child process. Returns its wait status; its stderr in `output`. */
static int run_access(char output[200], float *address, bool writes)
{
    int pipe_ends[2], wait_status;
    ssize_t length;
    pid_t child;

    assert_int_equal(pipe(pipe_ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        invar_device_close(&dev);
        signal(SIGSEGV, SIG_DFL); // instead of cmocka's handler
        if (dup2(pipe_ends[1], STDERR_FILENO) < 0 || invar_device_open(&dev) != INVAR_OK)
            _exit(2);
        if (writes)
            *(volatile float *)address = 1.0f;
        _exit(*(volatile float *)address == 1.0f ? 0 : 1);
    }
    close(pipe_ends[1]);
    length = read(pipe_ends[0], output, 199);
    output[length > 0 ? length : 0] = '\0';
    close(pipe_ends[0]);
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    return wait_status;
}

static void test_fake_gpu__host_access_faults(void **state)
{
    float *block = alloc_floats(4, "what the host must not touch"), host_value = 1.0f;
    char output[200];
    int wait_status;

    (void)state;
    for (int writes = 0; writes < 2; writes++) {
        wait_status = run_access(output, block, writes);
        assert_true(WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGSEGV);
        assert_non_null(
            strstr(output, "touched the device's memory: what the host must not touch"));
        wait_status = run_access(output, &host_value, writes);
        assert_true(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0);
        assert_string_equal(output, "");
    }
    invar_device_free(&dev, block);
}

static void test_fake_gpu__copies_stay_within_a_block(void **state)
{
    float host_data[4] = {1.0f, 2.0f, 3.0f, 4.0f}, read_back[4];
    float *x = alloc_floats(64, "one"), *y = alloc_floats(64, "two");

    (void)state;
    assert_ok(invar_device_upload(&dev, x + 4, host_data, sizeof host_data));
    assert_ok(invar_device_copy(&dev, y + 8, x + 4, sizeof host_data));
    assert_ok(invar_device_download(&dev, read_back, y + 8, sizeof host_data));
    assert_memory_equal(host_data, read_back, sizeof host_data);
    assert_ok(invar_device_zero(&dev, y, sizeof host_data));
    assert_ok(invar_device_copy_strided(&dev, y + 16, x + 4, sizeof *x, 2 * sizeof *x, 2));
    assert_ok(invar_device_download(&dev, read_back, y + 16, 3 * sizeof *x));
    assert_true(read_back[0] == 1.0f && read_back[1] != read_back[1] &&
                read_back[2] == 3.0f); // NaN: never written
    assert_fails(invar_device_copy_strided(&dev, y, x, sizeof *x, 32 * sizeof *x, 3), INVAR_E_STATE,
                 "elsewhere");
    assert_fails(invar_device_upload(&dev, x + 62, host_data, sizeof host_data), INVAR_E_STATE,
                 "elsewhere");
    assert_fails(invar_device_upload(&dev, host_data, read_back, sizeof host_data), INVAR_E_STATE,
                 "elsewhere");
    assert_fails(invar_device_download(&dev, y, x, sizeof host_data), INVAR_E_STATE, "elsewhere");
    assert_fails(invar_device_copy(&dev, read_back, x, sizeof host_data), INVAR_E_STATE,
                 "elsewhere");
    assert_fails(invar_device_copy(&dev, x, read_back, sizeof host_data), INVAR_E_STATE,
                 "elsewhere");
    assert_fails(invar_device_zero(&dev, read_back, sizeof host_data), INVAR_E_STATE, "elsewhere");
    invar_device_free(&dev, x);
    assert_fails(invar_device_zero(&dev, x, sizeof host_data), INVAR_E_STATE, "elsewhere");
    invar_device_free(&dev, y);
}

static void test_fake_gpu__ops_reject_host_addresses(void **state)
{
    float host_data[6] = {0.5f, 1.5f, 2.5f, 3.5f, 4.5f, 5.5f}, read_back[6];
    float *x = alloc_floats(6, "x"), *y = alloc_floats(6, "y");
    invar_tensor device_x = invar_tensor_2d(x, INVAR_DTYPE_F32, 2, 3);
    invar_tensor device_y = invar_tensor_2d(y, INVAR_DTYPE_F32, 2, 3);
    invar_tensor host_x = invar_tensor_2d(host_data, INVAR_DTYPE_F32, 2, 3);
    float norm, clip;
    invar_op_runner caller;

    (void)state;
    invar_op_runner_init(&caller, &dev);
    assert_ok(invar_device_upload(&dev, x, host_data, sizeof host_data));
    assert_ok(INVAR_CALL(&caller, ADD, add, .out = device_y, .a = device_x, .b = device_x));
    assert_ok(invar_device_download(&dev, read_back, y, sizeof read_back));
    for (int i = 0; i < 6; i++)
        assert_true(read_back[i] == 2.0f * host_data[i]);
    if (INVAR_FAKE_GPU_REJECTS_HOST_ADDRESSES)
        assert_fails(INVAR_CALL(&caller, ADD, add, .out = device_y, .a = host_x, .b = device_x),
                     INVAR_E_STATE, "add: byte");
    assert_ok(INVAR_CALL(&caller, GRAD_NORM, grad_norm, .norm = &norm, .clip = &clip,
                         .grads = &device_x, .count = 1));
    assert_true(norm > 8.0f && norm < 9.0f);
    if (INVAR_FAKE_GPU_REJECTS_HOST_ADDRESSES)
        assert_fails(INVAR_CALL(&caller, GRAD_NORM, grad_norm, .norm = &norm, .clip = &clip,
                                .grads = &host_x, .count = 1),
                     INVAR_E_STATE, "grad.norm: byte");
    invar_op_runner_release(&caller);
    invar_device_free(&dev, x);
    invar_device_free(&dev, y);
}

static void test_fake_gpu__graph_runs_captured_ops(void **state)
{
    const invar_device_graphs *graphs = &dev.backend->graphs;
    float host_data[3] = {1.0f, 2.0f, 3.0f}, read_back[3];
    float *x = alloc_floats(3, "x"), *y = alloc_floats(3, "y");
    invar_tensor x_tensor = invar_tensor_2d(x, INVAR_DTYPE_F32, 1, 3);
    invar_tensor y_tensor = invar_tensor_2d(y, INVAR_DTYPE_F32, 1, 3);
    invar_add_args add_args = {.out = y_tensor, .a = x_tensor, .b = x_tensor};
    invar_device_graph *graph;

    (void)state;
    assert_ok(invar_device_zero(&dev, y, sizeof host_data));
    assert_ok(graphs->begin(&dev));
    assert_ok(invar_add(&dev, &add_args));
    assert_fails(invar_device_upload(&dev, x, host_data, sizeof host_data), INVAR_E_STATE,
                 "only ops");
    assert_ok(graphs->end(&graph, &dev));
    add_args.b = y_tensor; // the graph has captured a copy of the arguments
    for (int i = 0; i < 3; i++) {
        host_data[1] += 1.0f;
        assert_ok(invar_device_download(&dev, read_back, y, sizeof read_back));
        assert_true(read_back[1] == (i == 0 ? 0.0f : 2.0f * (host_data[1] - 1.0f))); // not run yet
        assert_ok(invar_device_upload(&dev, x, host_data, sizeof host_data));
        assert_ok(graphs->launch(&dev, graph));
    }
    graphs->free(&dev, graph);
    assert_ok(graphs->begin(&dev));
    assert_ok(graphs->end(NULL, &dev));
    assert_int_equal(invar_fake_gpu_counted().live_graphs, 0);
    invar_device_free(&dev, x);
    invar_device_free(&dev, y);
}

/* A second opened device can copy while the first one captures a graph, until it is closed. */
static void test_fake_gpu__copies_during_a_capture(void **state)
{
    const invar_device_graphs *graphs = &dev.backend->graphs;
    invar_device second = {.backend = dev.backend};
    float host_data = 1.0f, read_back = 0.0f;
    float *x = alloc_floats(1, "x");

    (void)state;
    assert_ok(invar_device_open(&second));
    assert_ok(invar_device_upload(&dev, x, &host_data, sizeof host_data));
    assert_ok(graphs->begin(&dev));
    assert_ok(invar_device_download(&second, &read_back, x, sizeof host_data));
    assert_true(read_back == host_data);
    assert_ok(graphs->end(NULL, &dev));
    invar_device_close(&second);
    assert_fails(invar_device_download(&second, &read_back, x, sizeof host_data), INVAR_E_STATE,
                 "not opened");
    invar_device_free(&dev, x);
}

static void test_fake_gpu__rejects_closed_device(void **state)
{
    invar_device closed = {.backend = invar_fake_gpu_backend()};
    void *block;

    (void)state;
    assert_fails(invar_device_alloc(&closed, &block, 8, "x"), INVAR_E_STATE, "not opened");
}

static void test_fake_gpu__nth_allocation_fails(void **state)
{
    void *one, *two;

    (void)state;
    invar_device_close(&dev);
    invar_fake_gpu_begin(2);
    assert_ok(invar_device_open(&dev));
    assert_ok(invar_device_alloc(&dev, &one, 8, "one"));
    assert_fails(invar_device_alloc(&dev, &two, 8, "two"), INVAR_E_NOMEM, "two: no memory for");
    assert_ok(invar_device_alloc(&dev, &two, 8, "three"));
    assert_int_equal(invar_fake_gpu_counted().takes, 3);
    assert_int_equal(invar_fake_gpu_counted().live, 2);
    invar_device_free(&dev, one);
    invar_device_free(&dev, two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fake_gpu__host_access_faults, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fake_gpu__copies_stay_within_a_block, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fake_gpu__ops_reject_host_addresses, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fake_gpu__graph_runs_captured_ops, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fake_gpu__copies_during_a_capture, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fake_gpu__rejects_closed_device, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fake_gpu__nth_allocation_fails, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
