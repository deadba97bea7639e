/*
 * safetensors.c - tests of reading and writing safetensors files.
 *
 * Fixtures that the safetensors library of Python wrote (hf/data/generate.py) are read, and are
 * written again byte by byte. Headers with one fault each must be rejected with its message.
 * Control: similar headers without the fault are accepted.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "tests/support.h"

static char work[512];
static char scratch[600];

static int make_work(void **state)
{
    (void)state;
    snprintf(work, sizeof work, "%s/safetensors-XXXXXX", INVAR_TEST_WORK);
    if (!mkdtemp(work))
        return -1;
    snprintf(scratch, sizeof scratch, "%s/t.safetensors", work);
    return 0;
}

static int remove_work(void **state)
{
    (void)state;
    return invar_held_folder_remove(work) == INVAR_OK ? 0 : -1;
}

/* Writes a file: `length` as little-endian uint64, `header`, then `data` zero bytes. */
static void write_raw(uint64_t length, const char *header, size_t data)
{
    size_t bytes = strlen(header);
    char *text = calloc(1, 8 + bytes + data);

    assert_non_null(text);
    for (int i = 0; i < 8; i++)
        text[i] = (char)(length >> 8 * i & 255);
    memcpy(text + 8, header, bytes);
    assert_ok(invar_file_write(scratch, text, 8 + bytes + data));
    free(text);
}

static void write_header(const char *header, size_t data)
{
    write_raw(strlen(header), header, data);
}

static void assert_rejected(const char *header, size_t data, invar_status status,
                            const char *message)
{
    invar_safetensors *file;

    write_header(header, data);
    assert_fails(invar_safetensors_open(&file, scratch), status, message);
    assert_null(file);
    assert_non_null(strstr(invar_error_last()->message, "t.safetensors"));
}

static void fixture_path(char out[1024], const char *name)
{
    snprintf(out, 1024, "%s/unit/engine/files/hf/data/%s", INVAR_TEST_DATA, name);
}

/* ---- files of the Python library ------------------------------------------------------------- */

static void test_engine_safetensors__reads_what_the_library_writes(void **state)
{
    static const int64_t i64[] = {1, -2, INT64_C(1) << 40};
    static const uint32_t f32[] = {0x3F800000, 0x40000000, 0x40400000, 0x7F800000, 0x80000000, 1};
    static const uint32_t bf16[] = {0x3F800000, 0x40490000, 0x80010000};
    static const float f16[] = {1.0f, 65504.0f, 0x1p-24f, -0.0f};
    int64_t integers[3];
    char path[1024];
    uint8_t bytes[3];
    float reals[6];
    invar_safetensors *file;
    const invar_safetensor *t;

    (void)state;
    fixture_path(path, "mixed.safetensors");
    assert_ok(invar_safetensors_open(&file, path));
    assert_int_equal(invar_safetensors_count(file), 10);
    assert_string_equal(invar_safetensors_at(file, 0)->name, "i64");
    assert_string_equal(invar_safetensors_at(file, 9)->name, "u8");
    assert_null(invar_safetensors_find(file, "x"));
    assert_null(invar_safetensors_find(file, "__metadata__"));
    assert_non_null(invar_safetensors_find(file, "name \"\xC3\xA4\""));

    t = invar_safetensors_find(file, "i64");
    assert_ok(invar_safetensors_read(integers, file, t, 0, 3));
    assert_memory_equal(integers, i64, sizeof i64);
    assert_ok(invar_safetensors_expect(file, t, INVAR_SAFETENSORS_I64, 1, (int64_t[]){3}));
    assert_fails(invar_safetensors_expect(file, t, INVAR_SAFETENSORS_F32, 1, (int64_t[]){3}),
                 INVAR_E_CORRUPT, "tensor 'i64' is I64 (3), expected F32 (3)");
    assert_fails(invar_safetensors_expect(file, t, INVAR_SAFETENSORS_I64, 2, (int64_t[]){3, 4}),
                 INVAR_E_CORRUPT, "tensor 'i64' is I64 (3), expected I64 (3, 4)");
    assert_fails(invar_safetensors_read_f32(reals, file, t, 0, 3), INVAR_E_UNSUPPORTED,
                 "tensor 'i64' is I64; weights are");
    t = invar_safetensors_find(file, "scalar");
    assert_int_equal(t->rank, 0);
    assert_int_equal(t->elements, 1);
    t = invar_safetensors_find(file, "empty");
    assert_int_equal(t->elements, 0);
    assert_ok(invar_safetensors_read_f32(reals, file, t, 0, 0));
    t = invar_safetensors_find(file, "a.f32");
    assert_ok(invar_safetensors_read_f32(reals, file, t, 0, 6));
    assert_memory_equal(reals, f32, sizeof f32);
    assert_ok(invar_safetensors_read_f32(reals, file, t, 1, 2));
    assert_memory_equal(reals, f32 + 1, 8);
    t = invar_safetensors_find(file, "b.bf16");
    assert_ok(invar_safetensors_read_f32(reals, file, t, 0, 3));
    assert_memory_equal(reals, bf16, sizeof bf16);
    t = invar_safetensors_find(file, "f16");
    assert_ok(invar_safetensors_read_f32(reals, file, t, 0, 4));
    assert_memory_equal(reals, f16, sizeof f16);
    t = invar_safetensors_find(file, "u8");
    assert_ok(invar_safetensors_read(bytes, file, t, 0, 3));
    assert_memory_equal(bytes, "\x09\x08\x07", 3);
    invar_safetensors_close(file);
    invar_safetensors_close(NULL);
}

/* Reads all tensors of a file and writes them to another one in the same order. */
static void copy_file(const char *from, const char *to)
{
    static const invar_safetensors_pair metadata = {"format", "pt"};
    invar_safetensors_writer *writer;
    invar_safetensor list[64];
    invar_safetensors *file;
    char data[8192];
    int64_t count;

    assert_ok(invar_safetensors_open(&file, from));
    count = invar_safetensors_count(file);
    assert_true(count <= 64);
    for (int64_t i = 0; i < count; i++)
        list[i] = *invar_safetensors_at(file, i);
    assert_ok(invar_safetensors_create(&writer, to, list, count, &metadata, 1));
    for (int64_t i = 0; i < count; i++) {
        assert_true((size_t)list[i].elements * invar_safetensors_type_bytes(list[i].type) <=
                    sizeof data);
        assert_ok(invar_safetensors_read(data, file, &list[i], 0, list[i].elements));
        assert_ok(invar_safetensors_write(writer, data, list[i].elements));
    }
    assert_ok(invar_safetensors_commit(writer));
    invar_safetensors_writer_close(writer);
    invar_safetensors_close(file);
}

static void test_engine_safetensors__writes_the_bytes_that_the_library_writes(void **state)
{
    static const char *const names[] = {"mixed.safetensors", "llama/model.safetensors",
                                        "qwen2/model.safetensors", "qwen3/model.safetensors",
                                        "critic/model.safetensors"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[1024], *a, *b;
        size_t a_bytes, b_bytes;

        fixture_path(path, names[i]);
        copy_file(path, scratch);
        assert_ok(invar_file_read(&a, &a_bytes, path, 1 << 20));
        assert_ok(invar_file_read(&b, &b_bytes, scratch, 1 << 20));
        assert_int_equal(a_bytes, b_bytes);
        assert_memory_equal(a, b, a_bytes);
        invar_free(a);
        invar_free(b);
    }
}

/* ---- hostile files --------------------------------------------------------------------------- */

/* Beginning of a header with a tensor "a" of 8 bytes; a second tensor; a header with one tensor. */
#define A "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
#define B(first, last)                                                                             \
    ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" first "," last "]}}"
#define ONE(dtype, shape, offsets)                                                                 \
    "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void test_engine_safetensors__refuses_bad_headers(void **state)
{
    static const struct {
        const char *header;
        size_t data;
        const char *message;
    } cases[] = {
        {"", 0, "the header does not begin with {"},
        {" {}", 0, "the header does not begin with {"},
        {"[]", 0, "the header does not begin with {"},
        {"{", 0, "column 1 is not JSON"},
        {"{}x", 0, "is not JSON"},
        {"{\"\xFF\":1}", 0, "is not JSON"},
        {"{}", 1, "1 bytes after the last tensor"},
        {A ",\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", 16,
         "duplicate object key"},
        {A "}", 7, "the file is incomplete: by its header it has "},
        {A "}", 9, "1 bytes after the last tensor"},
        {A B("8", "16"), 15, "the file is incomplete: by its header it has "},
        {A B("4", "12"), 12, "tensor 'b': the data overlap those of another tensor"},
        {A B("0", "8"), 8, "the data overlap those of another tensor"},
        {A B("12", "20"), 20, "tensor 'b': there is a hole before the data"},
        {A B("-8", "0"), 8, "tensor 'b': the data end before they begin"},
        {A B("16", "8"), 16, "tensor 'b': the data end before they begin"},
        {A B("8", "9223372036854775808"), 16, "\"data_offsets\" are not two integers"},
        {A B("8", "9223372036854775807"), 16, "tensor 'b': 9223372036854775799 bytes of data"},
        {A B("8.0", "16"), 16, "\"data_offsets\" are not two integers"},
        {ONE("\"F32\"", "[2]", "[0]"), 8, "\"data_offsets\" are not two integers"},
        {ONE("\"F32\"", "[2]", "[0,8,8]"), 8, "\"data_offsets\" are not two integers"},
        {ONE("\"F32\"", "[2]", "{}"), 8, "\"data_offsets\" are not two integers"},
        {ONE("\"F32\"", "[3]", "[0,8]"), 8, "tensor 'a': 8 bytes of data, dtype and shape need 12"},
        {ONE("\"F32\"", "[]", "[0,8]"), 8, "8 bytes of data, dtype and shape need 4"},
        {ONE("\"F32\"", "[0]", "[0,8]"), 8, "8 bytes of data, dtype and shape need 0"},
        {ONE("\"F32\"", "[-2]", "[0,8]"), 8, "not a natural number"},
        {ONE("\"F32\"", "[2.0]", "[0,8]"), 8, "not a natural number"},
        {ONE("\"F32\"", "[true]", "[0,8]"), 8, "not a natural number"},
        {ONE("\"F32\"", "2", "[0,8]"), 8, "no list \"shape\""},
        {ONE("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0, "too many elements"},
        {ONE("\"F64\"", "[2305843009213693952]", "[0,0]"), 0, "too many elements"},
        {ONE("\"U8\"", "[9223372036854775807,3,6148914691236517205]", "[0,1]"), 1, "too many"},
        {ONE("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8, "more than 8 extents"},
        {ONE("4", "[2]", "[0,8]"), 8, "no string \"dtype\""},
        {"{\"a\":1}", 0, "tensor 'a': not described by"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "tensor 'a': not described by"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8,
         "tensor 'a': not described by"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"offsets\":[0,8]}}", 8, "\"data_offsets\""},
        {"{\"__metadata__\":[]}", 0, "tensor '__metadata__': not an object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "tensor '__metadata__': not only strings"},
        {"{\"a\\n\\u001b[2J\":1}", 0, "tensor 'a??[2J'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_rejected(cases[i].header, cases[i].data, INVAR_E_CORRUPT, cases[i].message);
    assert_rejected(ONE("\"F4\"", "[2]", "[0,1]"), 1, INVAR_E_UNSUPPORTED,
                    "tensor 'a': unknown dtype 'F4'");
}

/* Control: headers like the rejected ones, but without the fault, are accepted. */
static void test_engine_safetensors__accepts_similar_valid_headers(void **state)
{
    static const struct {
        const char *header;
        size_t data;
    } cases[] = {
        {"{}", 0},
        {"{}       ", 0},
        {A "}", 8},
        {A B("8", "16"), 16},
        {"{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         16},
        {ONE("\"F32\"", "[]", "[0,4]"), 4},
        {ONE("\"F32\"", "[0,9223372036854775807,9223372036854775807]", "[0,0]"), 0},
        {ONE("\"F32\"", "[1,1,1,1,1,1,1,2]", "[0,8]"), 8},
        {"{\"__metadata__\":{\"a\":\"1\"}}", 0},
    };
    invar_safetensors *file;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_header(cases[i].header, cases[i].data);
        assert_ok(invar_safetensors_open(&file, scratch));
        invar_safetensors_close(file);
    }
}

static void test_engine_safetensors__refuses_lengths_beyond_the_file(void **state)
{
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\n"
                                  "oid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n";
    invar_safetensors *file;

    (void)state;
    write_raw(3, "{}", 0);
    assert_fails(invar_safetensors_open(&file, scratch), INVAR_E_CORRUPT,
                 "the file is incomplete: its header alone ends at byte 11, and there are 10");
    write_raw(UINT64_MAX, "{}", 0);
    assert_fails(invar_safetensors_open(&file, scratch), INVAR_E_CORRUPT, "18446744073709551615");
    write_raw(UINT64_C(1) << 63, "{}", 0);
    assert_fails(invar_safetensors_open(&file, scratch), INVAR_E_CORRUPT, "the header claims");
    assert_ok(invar_file_write(scratch, "1234567", 7));
    assert_fails(invar_safetensors_open(&file, scratch), INVAR_E_CORRUPT, "7 bytes are too few");
    assert_ok(invar_file_write(scratch, pointer, sizeof pointer - 1));
    assert_fails(invar_safetensors_open(&file, scratch), INVAR_E_UNSUPPORTED,
                 "pointer of git-lfs in the place of the file: run 'git lfs pull' in its folder");
    assert_fails(invar_safetensors_open(&file, work), INVAR_E_INVALID, "not a regular file");
    remove(scratch);
    assert_fails(invar_safetensors_open(&file, scratch), INVAR_E_NOTFOUND, "cannot be opened");
    // a header above the limit of the format, in a sparse file that is long enough for it
    write_raw(100000001, "{", 0);
    assert_int_equal(truncate(scratch, 200000000), 0);
    assert_fails(invar_safetensors_open(&file, scratch), INVAR_E_CORRUPT, "the limit is 100000000");
}

/* A header of 16 MiB whose parsed JSON tree would be about a hundred times larger. */
static void test_engine_safetensors__refuses_an_allocation_bomb(void **state)
{
    enum { BYTES = 16 << 20 };
    char *header = malloc(BYTES + 1);
    invar_safetensors *file;

    (void)state;
    assert_non_null(header);
    for (size_t i = 0; i < BYTES; i += 2)
        memcpy(header + i, "{,", 2);
    header[BYTES] = '\0';
    write_header(header, 0);
    assert_fails(invar_safetensors_open(&file, scratch), INVAR_E_CORRUPT,
                 "more than 4194304 values");
    free(header);
}

static void test_engine_safetensors__a_file_that_shrinks_is_an_error(void **state)
{
    invar_safetensors *file;
    float values[2];

    (void)state;
    write_header(A "}", 8);
    assert_ok(invar_safetensors_open(&file, scratch));
    assert_int_equal(truncate(scratch, 60), 0);
    assert_fails(invar_safetensors_read_f32(values, file, invar_safetensors_at(file, 0), 0, 2),
                 INVAR_E_IO, "became shorter");
    invar_safetensors_close(file);
}

/* ---- conversions ----------------------------------------------------------------------------- */

/* All 65536 half-precision values are compared with the definition of the format in double. */
static void test_engine_safetensors__reads_every_f16(void **state)
{
    static const invar_safetensor list = {"a", INVAR_SAFETENSORS_F16, 1, {65536}, 0, 0};
    static uint16_t halves[65536];
    static float got[65536];
    invar_safetensors_writer *writer;
    invar_safetensors *file;

    (void)state;
    for (int i = 0; i < 65536; i++)
        halves[i] = (uint16_t)i;
    assert_ok(invar_safetensors_create(&writer, scratch, &list, 1, NULL, 0));
    assert_ok(invar_safetensors_write(writer, halves, 65536));
    assert_ok(invar_safetensors_commit(writer));
    invar_safetensors_writer_close(writer);
    assert_ok(invar_safetensors_open(&file, scratch));
    assert_ok(invar_safetensors_read_f32(got, file, invar_safetensors_at(file, 0), 0, 65536));
    for (int i = 0; i < 65536; i++) {
        double sign = i & 0x8000 ? -1 : 1, fraction = i & 1023;
        int exponent = i >> 10 & 31;
        double value = exponent ? (1024 + fraction) / 1024 : fraction / 1024;

        for (int e = exponent ? exponent : 1; e < 15; e++)
            value /= 2;
        for (int e = exponent; e > 15; e--)
            value *= 2;
        if (exponent < 31) {
            assert_true((double)got[i] == sign * value);
            assert_int_equal(got[i] < 0 || (got[i] == 0 && 1 / got[i] < 0), sign < 0);
        } else {
            uint32_t bits;
            memcpy(&bits, &got[i], sizeof bits);
            assert_int_equal(bits, (uint32_t)(i & 0x8000) << 16 | 0x7F800000u |
                                       (uint32_t)(i & 1023) << 13);
        }
    }
    invar_safetensors_close(file);
}

static void test_engine_safetensors__rounds_f32_to_bf16(void **state)
{
    enum { N = 10000 };
    static const invar_safetensor list[] = {{"a", INVAR_SAFETENSORS_F32, 1, {N}, 0, 0},
                                            {"b", INVAR_SAFETENSORS_BF16, 2, {2, N / 2}, 0, 0}};
    static float values[N], got[N];
    invar_safetensors_writer *writer;
    invar_safetensors *file;

    (void)state;
    for (int i = 0; i < N; i++)
        values[i] = invar_test_normal(5, (uint64_t)i, 3);
    assert_ok(invar_safetensors_create(&writer, scratch, list, 2, NULL, 0));
    assert_ok(invar_safetensors_write_f32(writer, values, N));
    assert_ok(invar_safetensors_write_f32(writer, values, 1));
    assert_ok(invar_safetensors_write_f32(writer, values + 1, N - 1));
    assert_ok(invar_safetensors_commit(writer));
    invar_safetensors_writer_close(writer);
    assert_ok(invar_safetensors_open(&file, scratch));
    assert_ok(invar_safetensors_read_f32(got, file, invar_safetensors_find(file, "a"), 0, N));
    invar_assert_bits_f32(got, values, N, "f32");
    assert_ok(invar_safetensors_read_f32(got, file, invar_safetensors_find(file, "b"), 0, N));
    for (int i = 0; i < N; i++) { // one of the two adjacent bf16 values, and the nearer one
        uint32_t below, above;
        float low, high;

        memcpy(&below, &values[i], sizeof below);
        below &= 0xFFFF0000u;
        above = below + 0x10000u;
        memcpy(&low, &below, sizeof low);
        memcpy(&high, &above, sizeof high);
        assert_true(got[i] == low || got[i] == high);
        assert_true(fabs((double)got[i] - (double)values[i]) <=
                    fabs((double)high - (double)low) / 2);
    }
    invar_safetensors_close(file);
}

/* ---- the writer ------------------------------------------------------------------------------ */

static void test_engine_safetensors__writer_refuses(void **state)
{
    static const invar_safetensor twice[] = {{"a", INVAR_SAFETENSORS_F32, 1, {1}, 0, 0},
                                             {"a", INVAR_SAFETENSORS_F32, 1, {1}, 0, 0}};
    static const invar_safetensor narrow_first[] = {{"a", INVAR_SAFETENSORS_U8, 1, {1}, 0, 0},
                                                    {"b", INVAR_SAFETENSORS_F32, 1, {1}, 0, 0}};
    static const invar_safetensor metadata = {"__metadata__", INVAR_SAFETENSORS_F32, 0, {0}, 0, 0};
    static const invar_safetensor broken = {"\xFF", INVAR_SAFETENSORS_F32, 0, {0}, 0, 0};
    static const invar_safetensors_pair broken_pair = {"a", "\xC0"};
    invar_safetensors_writer *writer;

    (void)state;
    remove(scratch);
    assert_fails(invar_safetensors_create(&writer, scratch, twice, 2, NULL, 0), INVAR_E_INVALID,
                 "tensor 'a': the name is taken");
    assert_fails(invar_safetensors_create(&writer, scratch, narrow_first, 2, NULL, 0),
                 INVAR_E_INVALID, "tensor 'b': not aligned");
    assert_fails(invar_safetensors_create(&writer, scratch, &metadata, 1, NULL, 0), INVAR_E_INVALID,
                 "the name is taken");
    assert_fails(invar_safetensors_create(&writer, scratch, &broken, 1, NULL, 0), INVAR_E_INVALID,
                 "tensor '?': the name is not UTF-8");
    assert_fails(invar_safetensors_create(&writer, scratch, twice, 1, &broken_pair, 1),
                 INVAR_E_INVALID, "a text is not UTF-8");
    assert_null(writer);
    assert_false(invar_path_exists(scratch));
}

static void test_engine_safetensors__writer_wants_all_data_and_no_more(void **state)
{
    static const invar_safetensor list[] = {{"empty", INVAR_SAFETENSORS_F32, 1, {0}, 0, 0},
                                            {"a", INVAR_SAFETENSORS_F32, 2, {2, 2}, 0, 0},
                                            {"none", INVAR_SAFETENSORS_F32, 2, {3, 0}, 0, 0},
                                            {"b", INVAR_SAFETENSORS_I32, 1, {1}, 0, 0},
                                            {"last", INVAR_SAFETENSORS_U8, 1, {0}, 0, 0}};
    static const float values[5];
    invar_safetensors_writer *writer;
    invar_safetensors *file;
    char partial[700];

    (void)state;
    remove(scratch);
    snprintf(partial, sizeof partial, "%s.invar-tmp", scratch);
    assert_ok(invar_safetensors_create(&writer, scratch, list, 5, NULL, 0));
    assert_ok(invar_safetensors_write(writer, values, 3));
    assert_fails(invar_safetensors_write(writer, values, 2), INVAR_E_INVALID,
                 "tensor 'a': more data than elements");
    assert_fails(invar_safetensors_commit(writer), INVAR_E_INVALID,
                 "tensor 'a': its data are missing");
    assert_ok(invar_safetensors_write(writer, values, 1));
    assert_fails(invar_safetensors_write_f32(writer, values, 1), INVAR_E_INVALID,
                 "tensor 'b': f32 goes into");
    assert_ok(invar_safetensors_write(writer, values, 0));
    assert_true(invar_path_exists(partial));
    invar_safetensors_writer_close(writer);
    invar_safetensors_writer_close(NULL);
    assert_false(invar_path_exists(partial));
    assert_false(invar_path_exists(scratch));

    assert_ok(invar_safetensors_create(&writer, scratch, list, 5, NULL, 0));
    assert_ok(invar_safetensors_write(writer, values, 4));
    assert_ok(invar_safetensors_write(writer, values, 1));
    assert_fails(invar_safetensors_write(writer, values, 1), INVAR_E_INVALID,
                 "after the last tensor");
    assert_false(invar_path_exists(scratch));
    assert_ok(invar_safetensors_commit(writer));
    invar_safetensors_writer_close(writer);
    assert_ok(invar_safetensors_open(&file, scratch));
    assert_int_equal(invar_safetensors_count(file), 5);
    invar_safetensors_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_safetensors__reads_what_the_library_writes),
        cmocka_unit_test(test_engine_safetensors__writes_the_bytes_that_the_library_writes),
        cmocka_unit_test(test_engine_safetensors__refuses_bad_headers),
        cmocka_unit_test(test_engine_safetensors__accepts_similar_valid_headers),
        cmocka_unit_test(test_engine_safetensors__refuses_lengths_beyond_the_file),
        cmocka_unit_test(test_engine_safetensors__refuses_an_allocation_bomb),
        cmocka_unit_test(test_engine_safetensors__a_file_that_shrinks_is_an_error),
        cmocka_unit_test(test_engine_safetensors__reads_every_f16),
        cmocka_unit_test(test_engine_safetensors__rounds_f32_to_bf16),
        cmocka_unit_test(test_engine_safetensors__writer_refuses),
        cmocka_unit_test(test_engine_safetensors__writer_wants_all_data_and_no_more),
    };

    return cmocka_run_group_tests(tests, make_work, remove_work);
}
