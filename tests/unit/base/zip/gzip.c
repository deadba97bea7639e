/*
 * gzip.c - tests of compressing and expanding gzip data.
 *
 * zlib, called directly, makes the input of the expander and reads the output of the packer.
 * Controls: every truncation is an error, and every single bit flip either is one or hits a byte of
 * the header that does not matter.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/zip/gzip.h"

#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "base/alloc.h"
#include "tests/support.h"

#define MAX_BYTES ((size_t)1 << 24)

/* Appends `text` as a gzip member at `used` bytes of `out`. Returns the new number of bytes. */
static size_t append_member(char *out, size_t used, size_t capacity, const char *text, size_t bytes)
{
    z_stream z = {0};

    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (z_const Bytef *)text;
    z.avail_in = (unsigned)bytes;
    z.next_out = (Bytef *)out + used;
    z.avail_out = (unsigned)(capacity - used);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    assert_int_equal(deflateEnd(&z), Z_OK);
    return capacity - z.avail_out;
}

static void assert_rejected(const char *data, size_t bytes, size_t max_bytes, const char *message)
{
    size_t expanded;
    char *text;

    assert_fails(invar_gzip_expand(&text, &expanded, "d.gz", data, bytes, max_bytes),
                 INVAR_E_INVALID, message);
    assert_null(text);
}

static void test_base_gzip__expands_every_member(void **state)
{
    const size_t sizes[] = {0, 1, 65535, 65536, 65537, 3000000}, capacity = MAX_BYTES;
    char *data = malloc(capacity), *given = malloc(2 * sizes[5]), *text;
    size_t bytes, used, packed;

    (void)state;
    assert_true(data && given);
    for (size_t i = 0; i < 2 * sizes[5]; i++)
        given[i] = (char)invar_test_random(5, i / 3);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        packed = append_member(data, 0, capacity, given, sizes[i]);
        assert_true(invar_gzip_is(data, packed));
        assert_ok(invar_gzip_expand(&text, &bytes, "d.gz", data, packed, sizes[i]));
        assert_int_equal(bytes, sizes[i]);
        assert_memory_equal(text, given, bytes);
        assert_int_equal(text[bytes], 0);
        invar_free(text);

        used = append_member(data, packed, capacity, given + sizes[i], sizes[i]);
        assert_ok(invar_gzip_expand(&text, &bytes, "d.gz", data, used, MAX_BYTES));
        assert_int_equal(bytes, 2 * sizes[i]);
        assert_memory_equal(text, given, bytes);
        invar_free(text);
        if (sizes[i] > 0)
            assert_rejected(data, used, 2 * sizes[i] - 1, "d.gz: it expands to more than the ");
    }
    free(data);
    free(given);
}

/* Zero padding may follow the last member, as in gzip. Padding with other bytes is an error. */
static void test_base_gzip__accepts_zero_padding(void **state)
{
    char data[1024] = {0}, *text;
    size_t packed = append_member(data, 0, sizeof data, "a\n", 2), bytes;

    (void)state;
    packed = append_member(data, packed, sizeof data, "b\n", 2);
    for (size_t zeros = 0; packed + zeros < sizeof data; zeros += 1 + zeros) {
        assert_ok(invar_gzip_expand(&text, &bytes, "d.gz", data, packed + zeros, MAX_BYTES));
        assert_int_equal(bytes, 4);
        assert_string_equal(text, "a\nb\n");
        invar_free(text);
    }
    data[packed + 500] = 1;
    assert_rejected(data, packed + 501, MAX_BYTES, "incorrect header check");
}

static void test_base_gzip__rejects_damage(void **state)
{
    static const char given[] = "{\"input\": \"3,7=\", \"label\": \"7777777777777777777\"}\n";
    char data[256], bad[256], *text;
    size_t packed = append_member(data, 0, sizeof data, given, sizeof given - 1), bytes;
    int harmless = 0;

    (void)state;
    for (size_t i = 1; i < packed; i++)
        assert_rejected(data, i, MAX_BYTES, "d.gz: the gzip data is damaged: it ends too early");
    for (size_t i = 0; i < packed * 8; i++) {
        memcpy(bad, data, packed);
        bad[i / 8] = (char)(bad[i / 8] ^ 1 << i % 8);
        if (invar_gzip_expand(&text, &bytes, "d.gz", bad, packed, MAX_BYTES) == INVAR_OK) {
            harmless++; // a bit of the header's time, hints or system, or padding of the last byte
            assert_int_equal(bytes, sizeof given - 1);
            assert_memory_equal(text, given, bytes);
            invar_free(text);
        }
    }
    assert_in_range(harmless, 1, 60);
    memcpy(data + packed, "more", 4);
    assert_rejected(data, packed + 4, MAX_BYTES, "incorrect header check");
    memcpy(data + packed + 4, data, packed);
    memset(data + packed, 0, 4);
    assert_rejected(data, 2 * packed + 4, MAX_BYTES, "incorrect header check");
    assert_rejected("", 0, MAX_BYTES, "it ends too early");
    assert_false(invar_gzip_is("\x1f", 1));
    assert_false(invar_gzip_is("{\"", 2));
    assert_ok(invar_gzip_expand(&text, &bytes, "d.gz", data, packed, MAX_BYTES));
    invar_free(text);
}

/* Compressible (kind 0) and random data: both expand to the input, also with zlib. */
static void test_base_gzip__pack_round_trips(void **state)
{
    const size_t sizes[] = {0, 1, 2, 1000, 65536, 3000000};
    char *given = malloc(sizes[5]), *inflated = malloc(sizes[5]), *data, *text;

    (void)state;
    assert_true(given && inflated);
    for (int kind = 0; kind < 2; kind++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            size_t packed, bytes;
            z_stream z = {0};

            for (size_t k = 0; k < sizes[i]; k++)
                given[k] = (char)(kind ? invar_test_random(7, k) : k / 100 % 7);
            assert_ok(invar_gzip_pack(&data, &packed, given, sizes[i]));
            assert_true(kind || sizes[i] < 1000 || packed < sizes[i] / 10);
            assert_ok(invar_gzip_expand(&text, &bytes, "d.gz", data, packed, sizes[i]));
            assert_int_equal(bytes, sizes[i]);
            assert_memory_equal(text, given, bytes);
            invar_free(text);
            z.next_in = (z_const Bytef *)data;
            z.avail_in = (unsigned)packed;
            z.next_out = (Bytef *)inflated;
            z.avail_out = (unsigned)sizes[5];
            assert_int_equal(inflateInit2(&z, 15 + 16), Z_OK);
            assert_int_equal(inflate(&z, Z_FINISH), Z_STREAM_END);
            assert_int_equal(z.total_out, sizes[i]);
            assert_memory_equal(inflated, given, sizes[i]);
            assert_int_equal(inflateEnd(&z), Z_OK);
            assert_int_equal(data[4] | data[5] | data[6] | data[7], 0); // no time stamp
            invar_free(data);
        }
    assert_fails(invar_gzip_pack(&data, &(size_t){0}, given, ((size_t)1 << 30) + 1),
                 INVAR_E_INVALID, "too many for gzip");
    free(given);
    free(inflated);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_gzip__expands_every_member),
        cmocka_unit_test(test_base_gzip__pack_round_trips),
        cmocka_unit_test(test_base_gzip__accepts_zero_padding),
        cmocka_unit_test(test_base_gzip__rejects_damage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
