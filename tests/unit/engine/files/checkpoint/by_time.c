/*
 * by_time.c - tests of checkpoints saved by time, and of the predicted size of a checkpoint.
 *
 * A checkpoint saved by time (save-interval-minutes) has a mark next to its folder. The newest two
 * of them are kept, and neither kind may count or remove the other one. The predicted size must
 * equal the bytes of the written files.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dirent.h>

#include "engine/files/checkpoint/format.h"
#include "tests/unit/engine/files/checkpoint/fixture.h"

static void write_by_time(int64_t step, int64_t keep)
{
    assert_ok(invar_checkpoint_write(NULL, save, ckpt_make(&data, step, ROWS),
                                     &(invar_checkpoint_options){.keep = keep, .by_time = true}));
}

/* Asserts the number of checkpoints saved by time, and of the others. */
static void assert_count(int64_t by_time, int64_t others)
{
    int64_t n_by_time, n_others;

    assert_ok(invar_checkpoint_count(&n_by_time, &n_others, save));
    assert_int_equal(n_by_time, by_time);
    assert_int_equal(n_others, others);
}

/* Neither kind counts or removes checkpoints of the other one. */
static void test_engine_checkpoint__newest_two_by_time_stay(void **state)
{
    (void)state;
    assert_count(0, 0);
    write_step(0, 2);
    for (int64_t step = 1; step < 5; step++) {
        write_by_time(step, 2);
        assert_int_equal(open_latest(), step);
        assert_count(step < 2 ? 1 : 2, 1);
    }
    assert_true(exists_in_save("iter_0000000"));
    assert_false(exists_in_save("iter_0000002"));
    assert_false(exists_in_save("iter_0000002.by-time"));
    assert_true(exists_in_save("iter_0000003.by-time"));
    for (int64_t step = 5; step < 8; step++)
        write_step(step, 2);
    assert_count(2, 2);
    assert_true(exists_in_save("iter_0000003"));
    assert_true(exists_in_save("iter_0000004"));
    assert_true(exists_in_save("iter_0000006"));
    assert_int_equal(open_latest(), 7);
}

/* With keep = 0 all other checkpoints stay, but only two of those saved by time. */
static void test_engine_checkpoint__all_others_stay(void **state)
{
    (void)state;
    for (int64_t step = 0; step < 8; step++)
        if (step % 2)
            write_by_time(step, 0);
        else
            write_step(step, 0);
    assert_count(2, 4);
    assert_false(exists_in_save("iter_0000003"));
}

static void write_last(int64_t step)
{
    assert_ok(invar_checkpoint_write(NULL, save, ckpt_make(&data, step, ROWS),
                                     &(invar_checkpoint_options){.is_last = true}));
}

/* The last checkpoint of a run removes older ones saved by time, and nothing else. */
static void test_engine_checkpoint__the_end_removes_those_by_time(void **state)
{
    (void)state;
    write_step(0, 0);
    for (int64_t step = 1; step < 3; step++)
        write_by_time(step, 0);
    write_by_time(9, 0); // step 9 of the same run, which was rewound since
    write_in_save("iter_0000002.by-time", "");
    assert_count(2, 1);
    write_last(3);
    assert_count(1, 2);
    assert_true(exists_in_save("iter_0000009.by-time"));
    assert_int_equal(open_latest(), 3);
    write_in_save("iter_0000003.by-time", "");
    assert_ok(invar_checkpoint_prune(save, 3, 0, 0));
    assert_int_equal(open_latest(), 3); // the latest checkpoint stays, even if it has a mark
}

/* A checkpoint that is saved in both ways does not count as saved by time. */
static void test_engine_checkpoint__other_than_by_time_wins(void **state)
{
    (void)state;
    write_step(1, 0);
    write_by_time(1, 0);
    assert_count(0, 1);
    write_by_time(2, 0);
    assert_count(1, 1);
    write_step(2, 0);
    assert_count(0, 2);
    assert_false(exists_in_save("iter_0000002.by-time"));
}

/* A killed writer may leave a mark without a checkpoint; only such marks are removed. */
static void test_engine_checkpoint__marks_alone_go(void **state)
{
    (void)state;
    write_by_time(1, 0);
    write_in_save("iter_0000002.by-time", "");
    write_in_save("iter_2.by-time", "a file of somebody else");
    assert_ok(invar_checkpoint_remove_leftovers(save));
    assert_false(exists_in_save("iter_0000002.by-time"));
    assert_true(exists_in_save("iter_0000001.by-time"));
    assert_true(exists_in_save("iter_2.by-time"));
}

/*
 * Surplus checkpoints saved by time, which a killed writer leaves, are removed. Steps after the
 * latest checkpoint stay: the run was rewound, and they belong to its past.
 */
static void test_engine_checkpoint__too_many_by_time_go(void **state)
{
    (void)state;
    for (int64_t step = 1; step < 5; step++)
        write_step(step, 0);
    write_in_save("iter_0000001.by-time", "");
    write_in_save("iter_0000002.by-time", "");
    write_in_save("iter_0000003.by-time", "");
    write_in_save("iter_0000004.by-time", "");
    write_in_save("latest_checkpointed_iteration.txt", "3\n");
    assert_ok(invar_checkpoint_remove_leftovers(save));
    assert_false(exists_in_save("iter_0000001"));
    assert_count(3, 0);
    write_in_save("latest_checkpointed_iteration.txt", "no number");
    assert_ok(invar_checkpoint_remove_leftovers(save));
    assert_count(3, 0);
}

/* Returns the bytes of all regular files in a folder. */
static int64_t folder_bytes(const char *name)
{
    char path[1200];
    DIR *stream;
    struct dirent *entry;
    struct stat info;
    int64_t bytes = 0;

    path_in_save(path, name);
    stream = opendir(path);
    assert_non_null(stream);
    while ((entry = readdir(stream)) != NULL) {
        snprintf(path, sizeof path, "%s/%s/%s", save, name, entry->d_name);
        assert_int_equal(stat(path, &info), 0);
        bytes += S_ISREG(info.st_mode) ? info.st_size : 0;
    }
    closedir(stream);
    return bytes;
}

static void test_engine_checkpoint__measured_to_the_byte(void **state)
{
    static const int64_t rows[] = {1, ROWS, CKPT_ROWS};
    int64_t bytes;
    char name[32];

    (void)state;
    for (int64_t i = 0; i < 3; i++) {
        ckpt_make(&data, 9 + i, rows[i]);
        for (int64_t t = 0; t < CKPT_TENSORS; t++)
            data.tensors[t].tensor.data = NULL;
        data.blobs[1].data = NULL;
        assert_ok(invar_checkpoint_measure(&bytes, &data.content));
        assert_ok(invar_checkpoint_write(NULL, save, ckpt_make(&data, 9 + i, rows[i]), NULL));
        snprintf(name, sizeof name, "iter_%07d", (int)(9 + i));
        assert_int_equal(bytes, folder_bytes(name));
    }
    data.tensors[1].name = data.tensors[0].name; // rejected as invar_checkpoint_write does
    assert_fails(invar_checkpoint_measure(&bytes, &data.content), INVAR_E_INVALID, "twice");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(newest_two_by_time_stay),       TEST(all_others_stay), TEST(other_than_by_time_wins),
        TEST(the_end_removes_those_by_time), TEST(marks_alone_go),  TEST(too_many_by_time_go),
        TEST(measured_to_the_byte),
    };

    return RUN(tests);
}
