/*
 * dump.c - tests of dumped tensors: rows, types, patterns of names, names that cannot be files.
 *
 * The files are read by an independent reader of NumPy's format, which is written from the
 * description of the format.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/dump.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/ops.h"

static char folder[] = INVAR_TEST_WORK "/dump-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    char command[sizeof folder + 16];

    (void)state;
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command) == 0 ? 0 : -1;
}

/* ---- the reader ------------------------------------------------------------------------------ */

/* Contents of an .npy file. */
typedef struct npy_array {
    char type[8];
    int rank;
    long long shape[4];
    uint8_t data[65536];
    size_t bytes;
} npy_array;

static void read_array(npy_array *out, const char *name)
{
    char path[sizeof folder + 64], header[256] = "", *rest_of_header;
    uint8_t head[10];
    size_t length;
    FILE *stream;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    stream = fopen(path, "rb");
    assert_non_null(stream);
    assert_int_equal(fread(head, 1, 10, stream), 10);
    assert_memory_equal(head, "\x93NUMPY\x01\x00", 8);
    length = (size_t)head[8] | (size_t)head[9] << 8;
    assert_int_equal((10 + length) % 64, 0);
    assert_true(length < sizeof header);
    assert_int_equal(fread(header, 1, length, stream), length);
    assert_int_equal(header[length - 1], '\n');
    assert_int_equal(strlen(header), length);
    assert_int_equal(
        sscanf(header, "{'descr': '%7[^']', 'fortran_order': False, 'shape': (", out->type), 1);
    rest_of_header = strchr(header, '(') + 1;
    for (out->rank = 0; *rest_of_header != ')'; out->rank++) {
        out->shape[out->rank] = strtoll(rest_of_header, &rest_of_header, 10);
        rest_of_header += strspn(rest_of_header, ", ");
    }
    assert_memory_equal(rest_of_header, "), }", 4);
    assert_int_equal(strspn(rest_of_header + 4, " "), strlen(rest_of_header + 4) - 1);
    out->bytes = fread(out->data, 1, sizeof out->data, stream);
    fclose(stream);
}

static void assert_shape(const npy_array *a, const char *type, int rank, long long n0, long long n1)
{
    assert_string_equal(a->type, type);
    assert_int_equal(a->rank, rank);
    assert_int_equal(a->shape[0], n0);
    if (rank > 1)
        assert_int_equal(a->shape[1], n1);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_engine_dump__rows_of_samples_are_one_array(void **state)
{
    float data[6][8], *got;
    invar_tensor x = invar_tensor_2d(data, INVAR_DTYPE_F32, 6, 8), left, first, rest;
    static npy_array file;
    invar_dump *dump;
    int64_t count, starts[4];

    (void)state;
    for (int i = 0; i < 48; i++)
        (&data[0][0])[i] = (float)i;
    left = invar_tensor_columns(&x, 0, 5); // rows with a gap between them
    first = invar_tensor_rows(&left, 0, 3);
    rest = invar_tensor_rows(&left, 3, 3);
    assert_ok(invar_dump_new(&dump, folder, "a,b.*.c"));
    assert_ok(
        invar_dump_rows(dump, "a", &first, &(invar_row_offsets){(const int64_t[]){0, 1, 3}, 2}));
    // the last row is padding: it belongs to no sample
    assert_ok(invar_dump_rows(dump, "a", &rest, &(invar_row_offsets){(const int64_t[]){0, 2}, 1}));
    assert_ok(invar_dump_finish(&count, dump));
    assert_int_equal(count, 1);
    read_array(&file, "a.npy");
    assert_shape(&file, "<f4", 2, 5, 5);
    assert_int_equal(file.bytes, 5 * 5 * sizeof(float));
    got = (float *)(void *)file.data;
    for (int i = 0; i < 5; i++)
        invar_assert_bits_f32(got + i * 5, data[i], 5, "row");
    read_array(&file, "a.starts.npy");
    assert_shape(&file, "<i8", 1, 4, 0);
    memcpy(starts, file.data, sizeof starts);
    assert_int_equal(starts[0], 0);
    assert_int_equal(starts[1], 1);
    assert_int_equal(starts[2], 3);
    assert_int_equal(starts[3], 5);
    invar_dump_free(dump);
}

static void test_engine_dump__types(void **state)
{
    uint16_t halves[4] = {0x3F80, 0xBF80, 0x7FC1, 0x8000}; // 1, -1, a NaN with a payload, -0
    uint32_t wide[4] = {0x3F800000, 0xBF800000, 0x7FC10000, 0x80000000};
    int32_t ints[3] = {1, -2, 3};
    int64_t longs[2] = {INT64_MIN, 7};
    invar_tensor a = invar_tensor_2d(halves, INVAR_DTYPE_BF16, 2, 2);
    invar_tensor b = invar_tensor_1d(ints, INVAR_DTYPE_I32, 3);
    invar_tensor c = invar_tensor_4d(longs, INVAR_DTYPE_I64, 1, 2, 1, 1);
    static npy_array file;
    invar_dump *dump;
    int64_t count;

    (void)state;
    assert_ok(invar_dump_new(&dump, folder, "*"));
    assert_ok(invar_dump_rows(dump, "bf16", &a, NULL));
    assert_ok(invar_dump_rows(dump, "i32", &b, NULL));
    assert_ok(invar_dump_rows(dump, "i64", &c, NULL));
    assert_ok(invar_dump_finish(&count, dump));
    assert_int_equal(count, 3);
    read_array(&file, "bf16.npy");
    assert_shape(&file, "<f4", 2, 2, 2);
    assert_memory_equal(file.data, wide, sizeof wide);
    read_array(&file, "i32.npy");
    assert_shape(&file, "<i4", 1, 3, 0);
    assert_memory_equal(file.data, ints, sizeof ints);
    read_array(&file, "i64.npy");
    assert_shape(&file, "<i8", 4, 1, 2);
    assert_memory_equal(file.data, longs, sizeof longs);
    invar_dump_free(dump);
}

static void test_engine_dump__patterns(void **state)
{
    static const struct {
        const char *points, *name;
        bool wanted;
    } cases[] = {
        {"", "a", false},          {"a", "a", true},
        {"a", "ab", false},        {"ab", "a", false},
        {"x,a,y", "a", true},      {"x,,y", "", false},
        {"*", "anything", true},   {"layer.*.out", "layer.1.mlp.out", true},
        {"*.out", "outer", false}, {"a*b*c", "aXbXbXc", true},
        {"a*b*c", "aXbX", false},  {"a*", "a", true},
        {"*a", "ba", true},        {"**", "x", true},
        {"a*,b", "b", true},       {"a.b", "aXb", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        invar_dump *dump;
        assert_ok(invar_dump_new(&dump, folder, cases[i].points));
        if (invar_dump_wants(dump, cases[i].name) != cases[i].wanted)
            fail_msg("\"%s\" and \"%s\"", cases[i].points, cases[i].name);
        invar_dump_free(dump);
    }
}

static void test_engine_dump__refuses_what_cannot_be_a_file(void **state)
{
    static const char *const names[] = {"", "../a", "a/b", ".hidden", "a\n", "\xC3\xA4"};
    float data[4] = {0};
    invar_tensor x = invar_tensor_2d(data, INVAR_DTYPE_F32, 2, 2);
    invar_tensor wider = invar_tensor_2d(data, INVAR_DTYPE_F32, 1, 4);
    invar_tensor fp8 = invar_tensor_quantized(data, data, INVAR_DTYPE_FP8, 1, 1, 8);
    const invar_row_offsets one = {(const int64_t[]){0, 1}, 1};
    char path[sizeof folder + 64];
    invar_dump *dump;
    int64_t count;

    (void)state;
    assert_ok(invar_dump_new(&dump, folder, "*"));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_fails(invar_dump_rows(dump, names[i], &x, NULL), INVAR_E_INVALID, "file's name");
    assert_fails(invar_dump_rows(dump, "fp8", &fp8, NULL), INVAR_E_UNSUPPORTED, "of type fp8");
    assert_ok(invar_dump_rows(dump, "w", &x, NULL));
    assert_fails(invar_dump_rows(dump, "w", &x, NULL), INVAR_E_STATE, "comes again");
    assert_ok(invar_dump_rows(dump, "r", &x, &one));
    assert_fails(invar_dump_rows(dump, "r", &wider, &one), INVAR_E_STATE, "another shape");
    snprintf(path, sizeof path, "%s/r.npy.tmp", folder);
    assert_int_equal(unlink(path), 0);
    assert_fails(invar_dump_rows(dump, "r", &x, &one), INVAR_E_IO, "r.npy.tmp");
    assert_fails(invar_dump_finish(&count, dump), INVAR_E_IO, "r.npy.tmp");
    invar_dump_free(dump);
    assert_fails(invar_dump_new(&dump, "/dev/null/x", "*"), INVAR_E_IO, "/dev/null");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_dump__rows_of_samples_are_one_array),
        cmocka_unit_test(test_engine_dump__types),
        cmocka_unit_test(test_engine_dump__patterns),
        cmocka_unit_test(test_engine_dump__refuses_what_cannot_be_a_file),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
