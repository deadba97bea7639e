/*
 * files.c - tests of rollout files and packs for other programs: the bytes and the refusals are the
 * engine's, nothing is left behind.
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
static char *text; /* (bytes) what the engine writes for a rollout */
static size_t bytes;

static const char *below(path_text out, const char *name)
{
    assert_ok(invar_path_join(out, INVAR_PATH_SIZE, folder, name));
    return out;
}

/* ---- rollout files --------------------------------------------------------------------------- */

/* The lines before the last one with each `from` replaced, signed anew; invar_free. */
static char *respelt(size_t *bytes_out, const char *from, const char *to)
{
    size_t room = 4 * bytes, used = 0, end = bytes - 1;
    char *out = test_malloc(room), *signed_text;

    while (text[end - 1] != '\n')
        end--;
    for (size_t at = 0; at < end;) {
        bool found = strncmp(text + at, from, strlen(from)) == 0;
        const char *piece = found ? to : text + at;
        size_t length = found ? strlen(to) : 1;
        assert_true(used + length <= room);
        memcpy(out + used, piece, length);
        used += length;
        at += found ? strlen(from) : 1;
    }
    assert_true(used != end || memcmp(out, text, end) != 0); // it was there
    signed_text = rollout_text(bytes_out, (const uint8_t *)out, used);
    test_free(out);
    return signed_text;
}

static void is_canonical(const char *data, uint64_t size)
{
    assert_int_equal(size, bytes);
    assert_memory_equal(data, text, bytes);
}

/* By all three functions. */
static void gives_canonical(const char *lines, size_t count)
{
    path_text path;
    uint64_t size;
    size_t written;
    char *out;

    assert_ok(invar_api_rollout_format(&out, &size, lines, count));
    is_canonical(out, size);
    invar_api_free(out);
    assert_ok(invar_file_write(below(path, "others.jsonl"), lines, count));
    assert_ok(invar_api_rollout_read(&out, &size, path));
    is_canonical(out, size);
    invar_api_free(out);
    assert_ok(invar_api_rollout_write(below(path, "new/own.jsonl"), lines, count));
    assert_ok(invar_file_read(&out, &written, path, 1 << 24));
    is_canonical(out, written);
    invar_free(out);
}

static void test_api_files__gives_the_bytes_of_the_engine(void **state)
{
    static const struct {
        const char *from, *to;
    } spellings[] = {{"\":", "\" : "},
                     {"\"rollout\"", "\"rollou\\u0074\""},
                     {",\"prompt\"", ",\t\"prompt\""},
                     {":0.7,", ":70.0E-2,"},
                     {"\\u0009", "\\t"}};

    (void)state;
    gives_canonical(text, bytes);
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        size_t count;
        char *lines = respelt(&count, spellings[i].from, spellings[i].to);
        gives_canonical(lines, count);
        invar_free(lines);
    }
}

static void test_api_files__refuses_with_line_and_member(void **state)
{
    path_text path;
    size_t other;
    char *lines = respelt(&other, "\"draw\":1,", "\"draw\":true,"), *out;
    uint64_t size;

    (void)state;
    assert_fails(invar_api_rollout_format(&out, &size, lines, other), INVAR_E_CORRUPT,
                 "rollout:3: \"draw\" is not an integer");
    assert_null(out);
    assert_fails(invar_api_rollout_write(below(path, "never.jsonl"), lines, other), INVAR_E_CORRUPT,
                 "rollout:3: \"draw\"");
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
    assert_ok(invar_file_write(below(path, "precious"), "precious", 8));
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

static void test_api_files__unpacks_what_is_verified(void **state)
{
    static const char good[] = "[model]\nname = a\n", bad[] = "[model]\nname = b\n",
                      out_of_it[] = "[model]\nhf-checkpoint = ../x\n";
    path_text pack, to, file;
    size_t size;
    char *recipe;

    (void)state;
    write_pack(below(pack, "pack"), good, good);
    assert_ok(invar_held_folder_make(below(to, "unpacked")));
    assert_ok(invar_api_pack_unpack(pack, to));
    assert_ok(invar_file_read(&recipe, &size, below(file, "unpacked/recipe.ini"), 1 << 20));
    assert_string_equal(recipe, good);
    invar_free(recipe);
    assert_true(invar_path_exists(below(file, "unpacked/manifest.json")));
    write_pack(pack, bad, good);
    assert_ok(invar_held_folder_remove(to));
    assert_ok(invar_held_folder_make(to));
    assert_fails(invar_api_pack_unpack(pack, to), INVAR_E_CORRUPT, "\"recipe.ini\" is damaged");
    write_pack(pack, out_of_it, out_of_it);
    assert_ok(invar_held_folder_remove(to));
    assert_ok(invar_held_folder_make(to));
    assert_fails(invar_api_pack_unpack(pack, to), INVAR_E_CORRUPT, "is a path out of the pack");
}

/* ---- memory ---------------------------------------------------------------------------------- */

static invar_status live_format(void)
{
    uint64_t size;
    char *out;

    INVAR_TRY(invar_api_rollout_format(&out, &size, text, bytes));
    invar_api_free(out);
    return INVAR_OK;
}

static invar_status live_read(void)
{
    path_text path;
    uint64_t size;
    char *out;

    INVAR_TRY(invar_api_rollout_read(&out, &size, below(path, "faulty.jsonl")));
    invar_api_free(out);
    return INVAR_OK;
}

static invar_status live_write(void)
{
    path_text path;

    return invar_api_rollout_write(below(path, "faulty.jsonl"), text, bytes);
}

static invar_status live_unpack(void)
{
    path_text path, to;

    assert_ok(invar_held_folder_remove(below(to, "faulty")));
    assert_ok(invar_held_folder_make(to));
    return invar_api_pack_unpack(below(path, "faulty.pack"), to);
}

static void test_api_files__survives_each_failed_allocation(void **state)
{
    path_text path;

    (void)state;
    write_pack(below(path, "faulty.pack"), "[model]\nname = a\n", "[model]\nname = a\n");
    fail_each_allocation(live_format);
    fail_each_allocation(live_write);
    fail_each_allocation(live_read);
    fail_each_allocation(live_unpack);
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
        cmocka_unit_test(test_api_files__gives_the_bytes_of_the_engine),
        cmocka_unit_test(test_api_files__refuses_with_line_and_member),
        cmocka_unit_test(test_api_files__unpacks_what_is_verified),
        cmocka_unit_test(test_api_files__survives_each_failed_allocation),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
