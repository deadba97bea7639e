/*
 * checkpoint_flip.c - every byte of every file of a checkpoint is changed, cut or added to.
 *
 * Each change must be found when the checkpoint is opened, with a message that names it.
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

static void put(const char *path, const char *bytes, size_t count)
{
    FILE *stream = fopen(path, "wb");

    assert_non_null(stream);
    assert_int_equal(fwrite(bytes, 1, count, stream), count);
    assert_int_equal(fclose(stream), 0);
}

static void assert_found(const char *path, const char *how, size_t at)
{
    invar_checkpoint *c;

    if (invar_checkpoint_open(&c, folder, NULL) != INVAR_E_CORRUPT)
        fail_msg("%s: %s at %zu: %s", path, how, at, invar_error_last()->message);
    assert_non_null(strstr(invar_error_last()->message, "iter_0000003"));
}

static void damage(const char *path, size_t stride)
{
    size_t bytes;
    char *good, *bad;

    assert_ok(invar_file_read(&good, &bytes, path, 1 << 20));
    assert_ok(invar_alloc((void **)&bad, bytes + 1, 1, "a copy"));
    memcpy(bad, good, bytes);
    for (size_t at = 0; at < bytes; at += stride) {
        bad[at] = (char)(good[at] ^ 1 << at % 8);
        put(path, bad, bytes);
        assert_found(path, "a changed bit", at);
        bad[at] = (char)(good[at] ^ 0x20); // a letter of the other case
        put(path, bad, bytes);
        assert_found(path, "a changed case", at);
        bad[at] = good[at];
    }
    for (size_t at = 0; at < bytes; at += 3 * stride) {
        put(path, good, at);
        assert_found(path, "cut", at);
    }
    bad[bytes] = '\n';
    put(path, bad, bytes + 1);
    assert_found(path, "a byte more", bytes);
    put(path, good, bytes);
    assert_int_equal(ckpt_open_and_check(folder, NULL, ROWS), 3); // it was the change
    invar_free(good);
    invar_free(bad);
}

static void test_checkpoint_flip__every_change_is_found(void **state)
{
    char inside[600], path[1000];
    struct dirent *entry;
    DIR *stream;
    int files = 0;

    (void)state;
    snprintf(inside, sizeof inside, "%s/iter_0000003", folder);
    stream = opendir(inside);
    assert_non_null(stream);
    while ((entry = readdir(stream)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", inside, entry->d_name);
        damage(path, (size_t)invar_test_count(7, 1));
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
