/*
 * sha256.c - tests of SHA-256 against the published vectors and the program sha256sum.
 *
 * Random data split into random updates must give the sum of a single update. Control: another
 * message gives another sum.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/sha256.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support.h"

#define HEX_SIZE (2 * INVAR_SHA256_BYTES + 1)

static void finish_hex(char out[HEX_SIZE], invar_sha256 *sha)
{
    uint8_t sum[INVAR_SHA256_BYTES];

    invar_sha256_final(sum, sha);
    for (int i = 0; i < INVAR_SHA256_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", sum[i]);
}

static void sha256_hex(char out[HEX_SIZE], const void *data, size_t bytes)
{
    invar_sha256 sha;

    invar_sha256_init(&sha);
    invar_sha256_update(&sha, data, bytes);
    finish_hex(out, &sha);
}

/* The examples of FIPS 180-4, as NIST publishes them. */
static void test_ledger_sha256__published_vectors(void **state)
{
    static const struct {
        const char *text, *sum;
    } vectors[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqr"
         "lmnopqrsmnopqrstnopqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    char hex[HEX_SIZE];

    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        sha256_hex(hex, vectors[i].text, strlen(vectors[i].text));
        assert_string_equal(hex, vectors[i].sum);
    }
    sha256_hex(hex, NULL, 0);
    assert_string_equal(hex, vectors[0].sum);
    sha256_hex(hex, "abd", 3);
    assert_string_not_equal(hex, vectors[1].sum);
}

static void test_ledger_sha256__million_letters(void **state)
{
    char chunk[1000], hex[HEX_SIZE];
    invar_sha256 sha;

    (void)state;
    memset(chunk, 'a', sizeof chunk);
    invar_sha256_init(&sha);
    for (int i = 0; i < 1000; i++)
        invar_sha256_update(&sha, chunk, sizeof chunk);
    finish_hex(hex, &sha);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void test_ledger_sha256__pieces_give_the_whole(void **state)
{
    uint8_t data[300];
    char whole[HEX_SIZE], chunked[HEX_SIZE];
    uint64_t word = 0;

    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)invar_test_random(1, i);
    for (size_t length = 0; length <= sizeof data; length++) {
        sha256_hex(whole, data, length);
        for (int64_t round = invar_test_count(4, 100); round > 0; round--) {
            invar_sha256 sha;
            size_t offset = 0;

            invar_sha256_init(&sha);
            while (offset < length) {
                size_t chunk = invar_test_random(2, word++) % (length - offset + 1);
                invar_sha256_update(&sha, data + offset, chunk);
                offset += chunk;
            }
            finish_hex(chunked, &sha);
            assert_string_equal(chunked, whole);
        }
    }
}

/*
 * Compares 64 random lengths with coreutils' sha256sum; the shell lists the files in their order.
 */
static void test_ledger_sha256__equals_sha256sum(void **state)
{
    enum { FILES = 64, MAX_BYTES = 70000 };
    static uint8_t data[MAX_BYTES];
    static char expected[FILES][HEX_SIZE];
    char folder[] = INVAR_TEST_WORK "/sha256-XXXXXX", text[sizeof folder + 128], hex[HEX_SIZE];
    FILE *stream;

    (void)state;
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < MAX_BYTES; i++)
        data[i] = (uint8_t)(invar_test_random(3, i / 4) >> i % 4 * 8);
    for (size_t i = 0; i < FILES; i++) {
        size_t bytes = invar_test_random(4, i) % (i % 2 ? MAX_BYTES : 300);

        sha256_hex(expected[i], data, bytes);
        snprintf(text, sizeof text, "%s/%02zu", folder, i);
        stream = fopen(text, "wb");
        assert_non_null(stream);
        assert_int_equal(fwrite(data, 1, bytes, stream), bytes);
        assert_int_equal(fclose(stream), 0);
    }
    snprintf(text, sizeof text, "cd '%s' && sha256sum -- * && rm -- * && rmdir '%s'", folder,
             folder);
    stream = popen(text, "r");
    assert_non_null(stream);
    for (size_t i = 0; i < FILES; i++) {
        assert_non_null(fgets(text, sizeof text, stream));
        memcpy(hex, text, HEX_SIZE - 1);
        hex[HEX_SIZE - 1] = '\0';
        assert_string_equal(hex, expected[i]);
    }
    assert_int_equal(pclose(stream), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_sha256__published_vectors),
        cmocka_unit_test(test_ledger_sha256__million_letters),
        cmocka_unit_test(test_ledger_sha256__pieces_give_the_whole),
        cmocka_unit_test(test_ledger_sha256__equals_sha256sum),
    };

    return cmocka_run_group_tests_name("ledger.sha256", tests, NULL, NULL);
}
