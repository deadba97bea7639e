/*
 * tar.c - tests of tar archives: packing, unpacking, invalid names and limits, flipped bits.
 *
 * Unpacked files must equal the packed ones. An archive with a flipped bit must be rejected, or its
 * member hashes must differ. Hostile archives are tested by tests/fuzz/engine/tar.c and its corpus,
 * and by tests/e2e/run/replay.sh.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/tar.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "tests/support.h"

static char folder[] = INVAR_TEST_WORK "/tar-XXXXXX";

typedef char path_text[sizeof folder + 64];

static const char *in_folder(path_text out, const char *name)
{
    snprintf(out, sizeof(path_text), "%s/%s", folder, name);
    return out;
}

static void fill_random(uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)invar_test_random(11, i);
}

/* Writes an archive of three members; "in/a/folder.bin" holds `data`. */
static void make_archive(const char *name, const uint8_t *data, size_t bytes)
{
    invar_tar_writer *tar;
    path_text path, source;

    assert_ok(invar_file_write(in_folder(source, "source"), data, bytes));
    assert_ok(invar_tar_writer_open(&tar, in_folder(path, name)));
    assert_ok(invar_tar_add(tar, "small.txt", "hi", 2));
    assert_ok(invar_tar_add_file(tar, "in/a/folder.bin", source));
    assert_ok(invar_tar_add(tar, "empty", NULL, 0));
    assert_int_equal(invar_tar_members(tar)->count, 3);
    assert_ok(invar_tar_commit(tar));
    invar_tar_writer_close(tar);
}

/* File sizes around multiples of the 512-byte block and of the 1 MiB copy buffer. */
static void test_engine_tar__comes_back(void **state)
{
    static const size_t sizes[] = {0, 1, 511, 512, 513, 1024, (1 << 20) - 1, 1 << 20, 3000000};
    uint8_t *data = malloc(3000000);

    (void)state;
    assert_non_null(data);
    fill_random(data, 3000000);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        path_text path, out, file;
        const invar_tar_member *member;
        invar_tar_list list;
        invar_digest hash;
        size_t bytes;
        char *text;

        make_archive("a.tar", data, sizes[i]);
        assert_true(invar_tar_is_archive(in_folder(path, "a.tar")));
        assert_ok(invar_held_folder_remove(in_folder(out, "out")));
        assert_ok(invar_held_folder_make(out));
        assert_ok(invar_tar_unpack(&list, path, out));
        assert_int_equal(list.count, 3);
        member = invar_tar_find(&list, "in/a/folder.bin");
        assert_non_null(member);
        assert_null(invar_tar_find(&list, "in"));
        invar_hash_bytes(&hash, data, sizes[i]);
        assert_true(invar_digest_equal(&hash, &member->hash));
        assert_int_equal(member->bytes, sizes[i]);
        assert_ok(invar_file_read(&text, &bytes, in_folder(file, "out/in/a/folder.bin"), 1 << 22));
        assert_int_equal(bytes, sizes[i]);
        assert_memory_equal(text, data, bytes);
        invar_free(text);
        invar_tar_list_release(&list);
        // existing files are not overwritten
        assert_fails(invar_tar_unpack(&list, path, out), INVAR_E_IO, "cannot be made");
    }
    free(data);
}

static void test_engine_tar__equal_files_give_equal_archives(void **state)
{
    path_text a, b;
    char *first, *second;
    size_t bytes, other;

    (void)state;
    make_archive("a.tar", (const uint8_t *)"abc", 3);
    make_archive("b.tar", (const uint8_t *)"abc", 3);
    assert_ok(invar_file_read(&first, &bytes, in_folder(a, "a.tar"), 1 << 20));
    assert_ok(invar_file_read(&second, &other, in_folder(b, "b.tar"), 1 << 20));
    assert_int_equal(bytes, other);
    assert_memory_equal(first, second, bytes);
    invar_free(first);
    invar_free(second);
}

static void test_engine_tar__refuses_members(void **state)
{
    static const char *const names[] = {"",     "/a", "a/",   "a//b", ".",    "..",  "a/..",
                                        "../a", ".a", "a/.b", "a b",  "a\nb", "a\\b"};
    char long_name[INVAR_TAR_NAME_BYTES + 2];
    invar_tar_writer *tar;
    path_text path, big;

    (void)state;
    assert_ok(invar_tar_writer_open(&tar, in_folder(path, "refused.tar")));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_fails(invar_tar_add(tar, names[i], "x", 1), INVAR_E_INVALID, "name");
    memset(long_name, 'a', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    assert_fails(invar_tar_add(tar, long_name, "x", 1), INVAR_E_INVALID, "name");
    assert_ok(invar_tar_add(tar, long_name + 1, "x", 1));
    assert_fails(invar_tar_add(tar, long_name + 1, "x", 1), INVAR_E_INVALID, "twice");
    assert_fails(invar_tar_add_file(tar, "a", in_folder(big, "missing")), INVAR_E_NOTFOUND,
                 "missing");
    assert_fails(invar_tar_add_file(tar, "a", folder), INVAR_E_INVALID, "no regular file");
    assert_ok(invar_file_write(in_folder(big, "big"), "", 0));
    assert_int_equal(truncate(big, INT64_C(1) << 33), 0);
    assert_fails(invar_tar_add_file(tar, "a", big), INVAR_E_INVALID, "8 GiB");
    unlink(big);
    invar_tar_writer_close(tar); // not committed
    assert_false(invar_path_exists(path));
}

static void test_engine_tar__refuses_too_many(void **state)
{
    invar_tar_writer *tar;
    path_text path;
    char name[32];

    (void)state;
    assert_ok(invar_tar_writer_open(&tar, in_folder(path, "many.tar")));
    for (int i = 0; i < INVAR_TAR_MAX_MEMBERS; i++) {
        snprintf(name, sizeof name, "f%d", i);
        assert_ok(invar_tar_add(tar, name, NULL, 0));
    }
    assert_fails(invar_tar_add(tar, "more", NULL, 0), INVAR_E_INVALID, "one too many");
    invar_tar_writer_close(tar);
}

/* Writes a file without fsync; invar_file_write would be too slow for thousands of calls. */
static void overwrite(const char *path, const void *data, size_t bytes)
{
    FILE *stream = fopen(path, "wb");

    assert_non_null(stream);
    assert_int_equal(fwrite(data, 1, bytes, stream), bytes);
    assert_int_equal(fclose(stream), 0);
}

/* Returns the step to the next byte to flip; the reduced sweep skips most of a block's middle. */
static size_t stride(size_t i)
{
    return i % 512 < 16 || i % 512 > 504 ? 1 : (size_t)invar_test_count(7, 1);
}

/*
 * Flips one bit in every byte of a small archive. Only the five bytes of the members' contents can
 * change without an error, and the hash of the member differs then.
 */
static void test_engine_tar__every_byte_counts(void **state)
{
    path_text path, out;
    invar_tar_list original, list;
    char *text;
    size_t bytes, n_content_bytes = 0;

    (void)state;
    make_archive("flip.tar", (const uint8_t *)"abc", 3);
    assert_ok(invar_held_folder_make(in_folder(out, "flip")));
    assert_ok(invar_tar_unpack(&original, in_folder(path, "flip.tar"), out));
    assert_ok(invar_file_read(&text, &bytes, path, 1 << 20));
    for (size_t i = 0; i < bytes; i += stride(i)) {
        invar_status status;
        bool same = true;
        text[i] ^= 1;
        overwrite(path, text, bytes);
        text[i] ^= 1;
        assert_ok(invar_held_folder_remove(out));
        assert_ok(invar_held_folder_make(out));
        status = invar_tar_unpack(&list, path, out);
        if (status == INVAR_OK) {
            for (int64_t m = 0; m < original.count; m++)
                same = same && invar_digest_equal(&original.items[m].hash, &list.items[m].hash);
            assert_false(same);
            n_content_bytes++;
        } else {
            assert_int_equal(status, INVAR_E_CORRUPT);
        }
        invar_tar_list_release(&list);
    }
    assert_int_equal(n_content_bytes, 2 + 3);
    invar_tar_list_release(&original);
    invar_free(text);
}

static void test_engine_tar__knows_an_archive(void **state)
{
    path_text path;

    (void)state;
    assert_false(invar_tar_is_archive(in_folder(path, "missing")));
    assert_false(invar_tar_is_archive(folder));
    assert_ok(invar_file_write(in_folder(path, "text"), "some text", 9));
    assert_false(invar_tar_is_archive(path));
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return invar_held_folder_remove(folder) == INVAR_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_tar__comes_back),
        cmocka_unit_test(test_engine_tar__equal_files_give_equal_archives),
        cmocka_unit_test(test_engine_tar__refuses_members),
        cmocka_unit_test(test_engine_tar__refuses_too_many),
        cmocka_unit_test(test_engine_tar__every_byte_counts),
        cmocka_unit_test(test_engine_tar__knows_an_archive),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
