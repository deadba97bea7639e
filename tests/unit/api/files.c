/*
 * files.c - tests of the C API for rollout files and packs.
 *
 * The expected bytes of a rollout file are those of the engine's writer, also for input with other
 * white space, escapes and number spellings. Invalid files fail with line and member and leave no
 * output, and so does each failed allocation.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "api/invar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "engine/files/tar.h"
#include "tests/fault/faulty.h"
#include "tests/fuzz/engine/rollout_text.h"
#include "tests/rollout_samples.h"

typedef char path_text[INVAR_PATH_SIZE];

static char folder[] = INVAR_TEST_WORK "/api_files-XXXXXX";
static char *text; /* (bytes) a rollout file in the engine's canonical form */
static size_t bytes;

static const char *in_folder(path_text out, const char *name)
{
    assert_ok(invar_path_join(out, INVAR_PATH_SIZE, folder, name));
    return out;
}

/* ---- rollout files --------------------------------------------------------------------------- */

/*
 * Replaces each `from` in all lines but the last and computes the last line, the digest, again. The
 * caller frees the result with invar_free.
 */
static char *respell(size_t *bytes_out, const char *from, const char *to)
{
    size_t capacity = 4 * bytes, used = 0, end = bytes - 1;
    char *out = test_malloc(capacity), *with_digest;

    while (text[end - 1] != '\n')
        end--;
    for (size_t pos = 0; pos < end;) {
        bool found = strncmp(text + pos, from, strlen(from)) == 0;
        const char *chars = found ? to : text + pos;
        size_t length = found ? strlen(to) : 1;
        assert_true(used + length <= capacity);
        memcpy(out + used, chars, length);
        used += length;
        pos += found ? strlen(from) : 1;
    }
    assert_true(used != end || memcmp(out, text, end) != 0); // `from` occurs
    with_digest = rollout_text(bytes_out, (const uint8_t *)out, used);
    test_free(out);
    return with_digest;
}

static void assert_canonical(const char *data, uint64_t size)
{
    assert_int_equal(size, bytes);
    assert_memory_equal(data, text, bytes);
}

/* Formats, reads and writes the lines: each of the three functions gives the canonical text. */
static void assert_becomes_canonical(const char *lines, size_t count)
{
    path_text path;
    uint64_t size;
    size_t written;
    char *out;

    assert_ok(invar_api_rollout_format(&out, &size, lines, count));
    assert_canonical(out, size);
    invar_api_free(out);
    assert_ok(invar_file_write(in_folder(path, "others.jsonl"), lines, count));
    assert_ok(invar_api_rollout_read(&out, &size, path));
    assert_canonical(out, size);
    invar_api_free(out);
    assert_ok(invar_api_rollout_write(in_folder(path, "new/own.jsonl"), lines, count));
    assert_ok(invar_file_read(&out, &written, path, 1 << 24));
    assert_canonical(out, written);
    invar_free(out);
}

static void test_api_files__matches_the_bytes_of_the_engine(void **state)
{
    static const struct {
        const char *from, *to;
    } spellings[] = {{"\":", "\" : "},
                     {"\"rollout\"", "\"rollou\\u0074\""},
                     {",\"prompt\"", ",\t\"prompt\""},
                     {":0.7,", ":70.0E-2,"},
                     {"\\u0009", "\\t"}};

    (void)state;
    assert_becomes_canonical(text, bytes);
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        size_t count;
        char *lines = respell(&count, spellings[i].from, spellings[i].to);
        assert_becomes_canonical(lines, count);
        invar_free(lines);
    }
}

static void test_api_files__rejects_with_line_and_member(void **state)
{
    path_text path;
    size_t other;
    char *lines = respell(&other, "\"draw\":1,", "\"draw\":true,"), *out;
    uint64_t size;

    (void)state;
    assert_fails(invar_api_rollout_format(&out, &size, lines, other), INVAR_E_CORRUPT,
                 "rollout:3: \"draw\" is not an integer");
    assert_null(out);
    assert_fails(invar_api_rollout_write(in_folder(path, "never.jsonl"), lines, other),
                 INVAR_E_CORRUPT, "rollout:3: \"draw\"");
    assert_false(invar_path_exists(path));
    assert_ok(invar_file_write(path, lines, other));
    assert_fails(invar_api_rollout_read(&out, &size, path), INVAR_E_CORRUPT,
                 "never.jsonl:3: \"draw\"");
    assert_null(out);
    invar_free(lines);
    for (size_t cut = 0; cut < bytes; cut += 97)
        assert_fails(invar_api_rollout_format(&out, &size, text, cut), INVAR_E_CORRUPT,
                     "rollout: cut off or changed");
    assert_fails(invar_api_rollout_read(&out, &size, "/no/such/file"), INVAR_E_NOTFOUND,
                 "/no/such");
    assert_ok(invar_file_write(in_folder(path, "precious"), "precious", 8));
    assert_fails(invar_api_rollout_write(path, text, bytes), INVAR_E_INVALID, "is not replaced");
}

/* ---- packs ----------------------------------------------------------------------------------- */

static void write_pack(const char *path, const char *recipe, const char *listed)
{
    char manifest[512];
    invar_digest ledger, keys;
    char hex[2][INVAR_DIGEST_HEX_SIZE];
    invar_tar_writer *tar;
    int length;

    invar_hash_bytes(&ledger, "x", 1);
    invar_hash_bytes(&keys, listed, strlen(listed));
    invar_digest_format(hex[0], &ledger);
    invar_digest_format(hex[1], &keys);
    length = snprintf(manifest, sizeof manifest,
                      "{\"format\":\"invar-pack 1\",\"run\":\"%s\",\"step\":7,\"members\":["
                      "{\"name\":\"ledger.db\",\"bytes\":1,\"xxh128\":\"%s\"},"
                      "{\"name\":\"recipe.ini\",\"bytes\":%zu,\"xxh128\":\"%s\"}]}\n",
                      hex[0], hex[0], strlen(listed), hex[1]);
    (void)remove(path);
    assert_ok(invar_tar_writer_open(&tar, path));
    assert_ok(invar_tar_add(tar, "ledger.db", "x", 1));
    assert_ok(invar_tar_add(tar, "recipe.ini", recipe, strlen(recipe)));
    assert_ok(invar_tar_add(tar, "manifest.json", manifest, (size_t)length));
    assert_ok(invar_tar_commit(tar));
    invar_tar_writer_close(tar);
}

static void test_api_files__verifies_packs_before_unpacking(void **state)
{
    static const char good[] = "[model]\nname = a\n", bad[] = "[model]\nname = b\n",
                      outside_path[] = "[model]\nhf-checkpoint = ../x\n";
    path_text pack, to, file;
    size_t size;
    char *recipe;

    (void)state;
    write_pack(in_folder(pack, "pack"), good, good);
    assert_ok(invar_held_folder_make(in_folder(to, "unpacked")));
    assert_ok(invar_api_pack_unpack(pack, to));
    assert_ok(invar_file_read(&recipe, &size, in_folder(file, "unpacked/recipe.ini"), 1 << 20));
    assert_string_equal(recipe, good);
    invar_free(recipe);
    assert_true(invar_path_exists(in_folder(file, "unpacked/manifest.json")));
    write_pack(pack, bad, good);
    assert_ok(invar_held_folder_remove(to));
    assert_ok(invar_held_folder_make(to));
    assert_fails(invar_api_pack_unpack(pack, to), INVAR_E_CORRUPT, "\"recipe.ini\" is damaged");
    write_pack(pack, outside_path, outside_path);
    assert_ok(invar_held_folder_remove(to));
    assert_ok(invar_held_folder_make(to));
    assert_fails(invar_api_pack_unpack(pack, to), INVAR_E_CORRUPT, "is a path out of the pack");
}

/* ---- memory ---------------------------------------------------------------------------------- */

static invar_status format_rollout(void)
{
    uint64_t size;
    char *out;

    INVAR_TRY(invar_api_rollout_format(&out, &size, text, bytes));
    invar_api_free(out);
    return INVAR_OK;
}

static invar_status read_rollout(void)
{
    path_text path;
    uint64_t size;
    char *out;

    INVAR_TRY(invar_api_rollout_read(&out, &size, in_folder(path, "faulty.jsonl")));
    invar_api_free(out);
    return INVAR_OK;
}

static invar_status write_rollout(void)
{
    path_text path;

    return invar_api_rollout_write(in_folder(path, "faulty.jsonl"), text, bytes);
}

static invar_status unpack_pack(void)
{
    path_text path, to;

    assert_ok(invar_held_folder_remove(in_folder(to, "faulty")));
    assert_ok(invar_held_folder_make(to));
    return invar_api_pack_unpack(in_folder(path, "faulty.pack"), to);
}

static void test_api_files__survives_each_failed_allocation(void **state)
{
    path_text path;

    (void)state;
    write_pack(in_folder(path, "faulty.pack"), "[model]\nname = a\n", "[model]\nname = a\n");
    fail_each_allocation(format_rollout);
    fail_each_allocation(write_rollout);
    fail_each_allocation(read_rollout);
    fail_each_allocation(unpack_pack);
}

static int set_up(void **state)
{
    invar_rollout_header header = rollout_header();
    invar_rl_samples samples;
    invar_status status;

    (void)state;
    if (!mkdtemp(folder))
        return -1;
    make_rollout(&samples, 4, 9);
    status = invar_rollout_file_format(&text, &bytes, &header, samples.items, samples.count);
    invar_rl_samples_reset(&samples);
    return status == INVAR_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    invar_free(text);
    return invar_held_folder_remove(folder) == INVAR_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_api_files__matches_the_bytes_of_the_engine),
        cmocka_unit_test(test_api_files__rejects_with_line_and_member),
        cmocka_unit_test(test_api_files__verifies_packs_before_unpacking),
        cmocka_unit_test(test_api_files__survives_each_failed_allocation),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
