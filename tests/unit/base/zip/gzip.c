/*
 * gzip.c - tests of gzip data: made; expanded whole, in several members, damaged, too large.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/zip/gzip.h"

#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "base/alloc.h"
#include "tests/support.h"

#define MOST ((size_t)1 << 24)

/* gzip data of `text`, after the `used` bytes that `out` has; the new number of bytes. */
static size_t pack(char *out, size_t used, size_t room, const char *text, size_t bytes)
{
    z_stream z = {0};

    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (z_const Bytef *)text;
    z.avail_in = (unsigned)bytes;
    z.next_out = (Bytef *)out + used;
    z.avail_out = (unsigned)(room - used);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    assert_int_equal(deflateEnd(&z), Z_OK);
    return room - z.avail_out;
}

static void refuses(const char *data, size_t bytes, size_t most, const char *message)
{
    size_t expanded;
    char *text;

    assert_fails(invar_gzip_expand(&text, &expanded, "d.gz", data, bytes, most), INVAR_E_INVALID,
                 message);
    assert_null(text);
}

static void test_base_gzip__expands_every_member(void **state)
{
    const size_t sizes[] = {0, 1, 65535, 65536, 65537, 3000000}, room = MOST;
    char *data = malloc(room), *given = malloc(2 * sizes[5]), *text;
    size_t bytes, used, packed;

    (void)state;
    assert_true(data && given);
    for (size_t i = 0; i < 2 * sizes[5]; i++)
        given[i] = (char)invar_test_random(5, i / 3);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        packed = pack(data, 0, room, given, sizes[i]);
        assert_true(invar_gzip_is(data, packed));
        assert_ok(invar_gzip_expand(&text, &bytes, "d.gz", data, packed, sizes[i]));
        assert_int_equal(bytes, sizes[i]);
        assert_memory_equal(text, given, bytes);
        assert_int_equal(text[bytes], 0);
        invar_free(text);

        used = pack(data, packed, room, given + sizes[i], sizes[i]);
        assert_ok(invar_gzip_expand(&text, &bytes, "d.gz", data, used, MOST));
        assert_int_equal(bytes, 2 * sizes[i]);
        assert_memory_equal(text, given, bytes);
        invar_free(text);
        if (sizes[i] > 0)
            refuses(data, used, 2 * sizes[i] - 1, "d.gz: it expands to more than the ");
    }
    free(data);
    free(given);
}

/* As gzip itself does; one zero beside other bytes is damage. */
static void test_base_gzip__zeros_may_follow(void **state)
{
    char data[1024] = {0}, *text;
    size_t packed = pack(data, 0, sizeof data, "a\n", 2), bytes;

    (void)state;
    packed = pack(data, packed, sizeof data, "b\n", 2);
    for (size_t zeros = 0; packed + zeros < sizeof data; zeros += 1 + zeros) {
        assert_ok(invar_gzip_expand(&text, &bytes, "d.gz", data, packed + zeros, MOST));
        assert_int_equal(bytes, 4);
        assert_string_equal(text, "a\nb\n");
        invar_free(text);
    }
    data[packed + 500] = 1;
    refuses(data, packed + 501, MOST, "incorrect header check");
}

static void test_base_gzip__refuses_damage(void **state)
{
    static const char given[] = "{\"input\": \"3,7=\", \"label\": \"7777777777777777777\"}\n";
    char data[256], bad[256], *text;
    size_t packed = pack(data, 0, sizeof data, given, sizeof given - 1), bytes;
    int harmless = 0;

    (void)state;
    for (size_t i = 1; i < packed; i++)
        refuses(data, i, MOST, "d.gz: the gzip data is damaged: it ends too early");
    for (size_t i = 0; i < packed * 8; i++) {
        memcpy(bad, data, packed);
        bad[i / 8] = (char)(bad[i / 8] ^ 1 << i % 8);
        if (invar_gzip_expand(&text, &bytes, "d.gz", bad, packed, MOST) == INVAR_OK) {
            harmless++; // the time, a hint, the system, a flag; bits that fill the last byte up
            assert_int_equal(bytes, sizeof given - 1);
            assert_memory_equal(text, given, bytes);
            invar_free(text);
        }
    }
    assert_in_range(harmless, 1, 60);
    memcpy(data + packed, "more", 4);
    refuses(data, packed + 4, MOST, "incorrect header check");
    memcpy(data + packed + 4, data, packed);
    memset(data + packed, 0, 4);
    refuses(data, 2 * packed + 4, MOST, "incorrect header check");
    refuses("", 0, MOST, "it ends too early");
    assert_false(invar_gzip_is("\x1f", 1));
    assert_false(invar_gzip_is("{\"", 2));
    assert_ok(invar_gzip_expand(&text, &bytes, "d.gz", data, packed, MOST));
    invar_free(text);
}

/* What is made here expands to the same, is smaller where it can be, and zlib reads it. */
static void test_base_gzip__packs(void **state)
{
    const size_t sizes[] = {0, 1, 2, 1000, 65536, 3000000};
    char *given = malloc(sizes[5]), *again = malloc(sizes[5]), *data, *text;

    (void)state;
    assert_true(given && again);
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
            z.next_out = (Bytef *)again;
            z.avail_out = (unsigned)sizes[5];
            assert_int_equal(inflateInit2(&z, 15 + 16), Z_OK);
            assert_int_equal(inflate(&z, Z_FINISH), Z_STREAM_END);
            assert_int_equal(z.total_out, sizes[i]);
            assert_memory_equal(again, given, sizes[i]);
            assert_int_equal(inflateEnd(&z), Z_OK);
            assert_int_equal(data[4] | data[5] | data[6] | data[7], 0); // no time
            invar_free(data);
        }
    assert_fails(invar_gzip_pack(&data, &(size_t){0}, given, ((size_t)1 << 30) + 1),
                 INVAR_E_INVALID, "too many for gzip");
    free(given);
    free(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_gzip__expands_every_member),
        cmocka_unit_test(test_base_gzip__packs),
        cmocka_unit_test(test_base_gzip__zeros_may_follow),
        cmocka_unit_test(test_base_gzip__refuses_damage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
