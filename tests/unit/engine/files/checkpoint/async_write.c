/*
 * async_write.c - tests of writing checkpoints by a thread.
 *
 * The files must be equal, byte by byte, to those of a synchronous write of the same contents, even
 * if the tensors change after they were copied. A checkpoint appears, for readers and in the
 * ledger, only when it is finished.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <sched.h>

#include "tests/unit/engine/files/checkpoint/fixture.h"

static void assert_same_file(const char *a, const char *b)
{
    char path[2][600], *text[2];
    size_t bytes[2];

    for (int i = 0; i < 2; i++) {
        path_in_save(path[i], i ? b : a);
        assert_ok(invar_file_read(&text[i], &bytes[i], path[i], 1 << 24));
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(text[0], text[1], bytes[0]);
    invar_free(text[0]);
    invar_free(text[1]);
}

/* The tensors are overwritten once they are copied; every checkpoint is larger than the last. */
static void test_engine_checkpoint__a_thread_writes_the_same_bytes(void **state)
{
    static const char *const files[] = {"hashes.xxh",
                                        "state.json",
                                        "model.safetensors",
                                        "model.exp_avg.safetensors",
                                        "model.exp_avg_sq.safetensors",
                                        "extra.safetensors",
                                        "config.json",
                                        "buffer.bin"};
    invar_checkpoint_writer *writer;
    invar_digest synchronous, by_thread;
    char saves[2][600], name[2][100];

    (void)state;
    path_in_save(saves[0], "once");
    path_in_save(saves[1], "behind");
    assert_ok(invar_held_folder_make(save));
    assert_ok(invar_checkpoint_writer_new(&writer, NULL));
    for (int rows = ROWS; rows <= 4 * ROWS; rows += ROWS) {
        assert_ok(
            invar_checkpoint_write(&synchronous, saves[0], ckpt_make(&data, rows, rows), NULL));
        assert_ok(invar_checkpoint_writer_begin(writer, saves[1], &data.content, NULL));
        invar_checkpoint_writer_await_copy(writer);
        assert_false(invar_checkpoint_writer_copying(writer));
        memset(&data, 0x5A, offsetof(ckpt_data, tensors));
        assert_ok(invar_checkpoint_writer_finish(&by_thread, writer));
        assert_memory_equal(&synchronous, &by_thread, sizeof synchronous);
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            for (int j = 0; j < 2; j++)
                snprintf(name[j], sizeof name[j], "%s/iter_%07d/%s", j ? "behind" : "once", rows,
                         files[i]);
            assert_same_file(name[0], name[1]);
        }
    }
    invar_checkpoint_writer_free(writer);
}

/* A checkpoint that is not finished does not exist, neither for readers nor in the ledger. */
static void test_engine_checkpoint__a_thread_makes_none_before_the_second_call(void **state)
{
    invar_ledger *ledger = make_ledger("behind", 3);
    const invar_checkpoint_options options = {.ledger = ledger, .keep = 1};
    invar_checkpoint_writer *writer;

    (void)state;
    assert_ok(invar_checkpoint_writer_new(&writer, NULL));
    assert_ok(invar_checkpoint_writer_finish(NULL, writer)); // nothing was begun
    invar_checkpoint_writer_await_copy(writer);
    assert_false(invar_checkpoint_writer_copying(writer));
    assert_false(invar_checkpoint_writer_ready(writer));
    assert_ok(invar_checkpoint_write(NULL, save, ckpt_make(&data, 0, ROWS), &options));
    assert_ok(invar_checkpoint_writer_begin(writer, save, ckpt_make(&data, 1, ROWS), &options));
    while (!invar_checkpoint_writer_ready(writer))
        sched_yield();
    assert_true(exists_in_save("iter_0000001.tmp/hashes.xxh"));
    assert_false(exists_in_save("iter_0000001"));
    assert_int_equal(open_latest(), 0);
    assert_int_equal(count_query_rows(ledger, "restore-points"), 1);
    assert_int_equal(count_query_rows(ledger, "checkpoint-pending"), 0);
    assert_fails(invar_checkpoint_writer_begin(writer, save, ckpt_make(&data, 2, ROWS), &options),
                 INVAR_E_STATE, "the one before has not been finished");
    assert_ok(invar_checkpoint_writer_finish(NULL, writer));
    assert_false(invar_checkpoint_writer_ready(writer));
    assert_int_equal(open_latest(), 1);
    assert_false(exists_in_save("iter_0000000")); // keep = 1
    assert_int_equal(count_query_rows(ledger, "restore-points"), 2);
    // a checkpoint that is never finished leaves nothing
    assert_ok(invar_checkpoint_writer_begin(writer, save, ckpt_make(&data, 2, ROWS), &options));
    invar_checkpoint_writer_free(writer);
    assert_false(exists_in_save("iter_0000002.tmp"));
    assert_int_equal(open_latest(), 1);
    assert_int_equal(count_query_rows(ledger, "checkpoint-pending"), 0);
    invar_ledger_close(ledger);
}

/* Invalid contents and steps without a ledger row are rejected; the writer stays usable. */
static void test_engine_checkpoint__a_thread_refuses_the_same(void **state)
{
    invar_ledger *ledger = make_ledger("refuses", 3);
    const invar_checkpoint_options options = {.ledger = ledger};
    invar_checkpoint_writer *writer;

    (void)state;
    assert_ok(invar_checkpoint_writer_new(&writer, NULL));
    ckpt_make(&data, 1, ROWS);
    data.tensors[0].name = "";
    assert_fails(invar_checkpoint_writer_begin(writer, save, &data.content, &options),
                 INVAR_E_INVALID, "name");
    assert_ok(invar_checkpoint_writer_begin(writer, save, ckpt_make(&data, 3, ROWS), &options));
    assert_fails(invar_checkpoint_writer_finish(NULL, writer), INVAR_E_INVALID,
                 "the last step is 2");
    assert_false(exists_in_save("iter_0000003.tmp"));
    assert_ok(invar_checkpoint_writer_begin(writer, save, ckpt_make(&data, 2, ROWS), &options));
    assert_ok(invar_checkpoint_writer_finish(NULL, writer));
    assert_int_equal(open_latest(), 2);
    invar_checkpoint_writer_free(writer);
    invar_checkpoint_writer_free(NULL);
    invar_ledger_close(ledger);
}

/* The writer copies the path that it is given, and reports where the checkpoint was written. */
static void test_engine_checkpoint__a_thread_has_a_path_of_its_own(void **state)
{
    invar_checkpoint_options options = {.save_exists = true};
    invar_checkpoint_writer *writer;
    char moved[sizeof save], given_path[sizeof save];

    (void)state;
    snprintf(moved, sizeof moved, "%s/moved.behind", folder);
    memcpy(given_path, save, sizeof given_path);
    assert_ok(invar_held_folder_make(save));
    assert_ok(invar_checkpoint_writer_new(&writer, NULL));
    assert_string_equal(invar_checkpoint_writer_save(writer), "");
    assert_ok(
        invar_checkpoint_writer_begin(writer, given_path, ckpt_make(&data, 1, ROWS), &options));
    memcpy(given_path, moved, sizeof given_path);
    while (!invar_checkpoint_writer_ready(writer))
        sched_yield();
    assert_string_equal(invar_checkpoint_writer_save(writer), save);
    assert_true(exists_in_save("iter_0000001.tmp/hashes.xxh"));
    assert_int_equal(rename(save, moved), 0);
    assert_ok(
        invar_checkpoint_writer_finish(NULL, writer)); // the folder was moved before this call
    assert_string_equal(invar_checkpoint_writer_save(writer), moved);
    // the folder was moved before the files were written
    memcpy(given_path, save, sizeof given_path);
    assert_ok(
        invar_checkpoint_writer_begin(writer, given_path, ckpt_make(&data, 2, ROWS), &options));
    memcpy(given_path, moved, sizeof given_path);
    assert_fails(invar_checkpoint_writer_finish(NULL, writer), INVAR_E_NOTFOUND, "cannot be read");
    assert_string_equal(invar_checkpoint_writer_save(writer), save);
    assert_false(invar_path_exists(save));
    memcpy(save, moved, sizeof save);
    assert_int_equal(open_latest(), 1);
    invar_checkpoint_writer_free(writer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_thread_writes_the_same_bytes),
        TEST(a_thread_makes_none_before_the_second_call),
        TEST(a_thread_refuses_the_same),
        TEST(a_thread_has_a_path_of_its_own),
    };

    return RUN(tests);
}
