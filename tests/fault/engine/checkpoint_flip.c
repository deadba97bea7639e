/*
 * checkpoint_flip.c - every byte of every file of a checkpoint is changed, cut off or followed by
 * more.
 *
 * Opening the checkpoint must find each change, with a message that names the checkpoint. By
 * default every seventh byte is changed, under full every byte. Control: the restored file opens
 * again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dirent.h>
#include <stdlib.h>

#include "base/file.h"
#include "tests/fault/engine/checkpoint_scenario.h"

enum { ROWS = 2 };

static char folder[] = INVAR_TEST_WORK "/checkpoint_flip-XXXXXX";
static ckpt_data data;

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    ckpt_make(&data, 3, ROWS);
    return invar_checkpoint_write(NULL, folder, &data.content, NULL) == INVAR_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return invar_held_folder_remove(folder) == INVAR_OK ? 0 : -1;
}

static void write_bytes(const char *path, const char *bytes, size_t count)
{
    FILE *stream = fopen(path, "wb");

    assert_non_null(stream);
    assert_int_equal(fwrite(bytes, 1, count, stream), count);
    assert_int_equal(fclose(stream), 0);
}

static void assert_damage_found(const char *path, const char *damage_name, size_t offset)
{
    invar_checkpoint *c;

    if (invar_checkpoint_open(&c, folder, NULL) != INVAR_E_CORRUPT)
        fail_msg("%s: %s at %zu: %s", path, damage_name, offset, invar_error_last()->message);
    assert_non_null(strstr(invar_error_last()->message, "iter_0000003"));
}

static void damage_file(const char *path, size_t stride)
{
    size_t bytes;
    char *good, *bad;

    assert_ok(invar_file_read(&good, &bytes, path, 1 << 20));
    assert_ok(INVAR_ALLOC(bad, bytes + 1, "a copy"));
    memcpy(bad, good, bytes);
    for (size_t offset = 0; offset < bytes; offset += stride) {
        bad[offset] = (char)(good[offset] ^ 1 << offset % 8);
        write_bytes(path, bad, bytes);
        assert_damage_found(path, "a changed bit", offset);
        // Flips the case of letters: hexadecimal digits and JSON keys must match exactly.
        bad[offset] = (char)(good[offset] ^ 0x20);
        write_bytes(path, bad, bytes);
        assert_damage_found(path, "a changed case", offset);
        bad[offset] = good[offset];
    }
    for (size_t offset = 0; offset < bytes; offset += 3 * stride) {
        write_bytes(path, good, offset);
        assert_damage_found(path, "cut", offset);
    }
    bad[bytes] = '\n';
    write_bytes(path, bad, bytes + 1);
    assert_damage_found(path, "a byte more", bytes);
    write_bytes(path, good, bytes);
    // Control: without the change the checkpoint opens.
    assert_int_equal(ckpt_open_and_check(folder, NULL, ROWS), 3);
    invar_free(good);
    invar_free(bad);
}

static void test_checkpoint_flip__every_change_is_found(void **state)
{
    char checkpoint[600], path[1000];
    struct dirent *entry;
    DIR *stream;
    int files = 0;

    (void)state;
    snprintf(checkpoint, sizeof checkpoint, "%s/iter_0000003", folder);
    stream = opendir(checkpoint);
    assert_non_null(stream);
    while ((entry = readdir(stream)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", checkpoint, entry->d_name);
        damage_file(path, (size_t)invar_test_count(7, 1));
        files++;
    }
    closedir(stream);
    assert_int_equal(files, CKPT_SETS + 1 + CKPT_BLOBS + 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_flip__every_change_is_found),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
