/*
 * lock.c - tests of the lock and the owner of a save folder.
 *
 * One run at a time can write to a save folder, which belongs to that run from then on. A folder
 * that is moved while it is locked is found at its new path and never created again at the old one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/engine/files/checkpoint/fixture.h"

static void test_engine_checkpoint__belongs_to_one_run(void **state)
{
    invar_checkpoint_owner owner = {.uuid = "0123456789abcdef"};
    invar_checkpoint_lock lock, other;

    (void)state;
    memset(&owner.identity, 7, sizeof owner.identity);
    assert_ok(invar_checkpoint_lock_acquire(&lock, save));
    assert_false(lock.owned);
    assert_fails(invar_checkpoint_lock_acquire(&other, save), INVAR_E_BUSY,
                 "writes its checkpoints");
    assert_ok(invar_checkpoint_lock_write_owner(&lock, &owner));
    assert_ok(invar_checkpoint_lock_refresh_path(&lock));
    invar_checkpoint_lock_release(&lock);
    invar_checkpoint_lock_release(&lock);
    assert_ok(invar_checkpoint_lock_acquire(&lock, save));
    assert_true(lock.owned && lock.has_owner_file);
    assert_string_equal(lock.owner.uuid, owner.uuid);
    assert_memory_equal(&lock.owner.identity, &owner.identity, sizeof owner.identity);
    write_in_save("owner", ""); // another process replaced the file
    assert_fails(invar_checkpoint_lock_refresh_path(&lock), INVAR_E_STATE,
                 "was removed or replaced");
    invar_checkpoint_lock_release(&lock);
}

static void test_engine_checkpoint__without_an_owner_belongs_to_its_writer(void **state)
{
    invar_checkpoint_lock lock;

    (void)state;
    write_step(1, 0);
    write_step(2, 0);
    assert_ok(invar_checkpoint_lock_acquire(&lock, save));
    assert_true(lock.owned && !lock.has_owner_file);
    assert_string_equal(lock.owner.uuid, data.content.state->uuid);
    invar_checkpoint_lock_release(&lock);
    write_in_save("iter_0000002/state.json",
                  "{"); // damaged: the checkpoint before it names the run, too
    assert_ok(invar_checkpoint_lock_acquire(&lock, save));
    assert_true(lock.owned);
    assert_string_equal(lock.owner.uuid, data.content.state->uuid);
    invar_checkpoint_lock_release(&lock);
}

static void test_engine_checkpoint__refuses_an_owner_that_is_none(void **state)
{
    static const char *const invalid[] = {
        "rubbish\n", "[owner]\nrun = x\n",
        "[owner]\nrun =\nidentity = 00112233445566778899aabbccddeeff\n",
        "[owner]\nrun = x\nidentity = 0011\n",
        ("[owner]\nrun = 0123456789012345678901234567890123456789012345678901234567890123456789\n"
         "identity = 00112233445566778899aabbccddeeff\n")};
    invar_checkpoint_lock lock;
    char path[600];

    (void)state;
    assert_ok(invar_held_folder_make(save));
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
        write_in_save("owner", invalid[i]);
        assert_true(invar_checkpoint_lock_acquire(&lock, save) != INVAR_OK);
        assert_non_null(strstr(invar_error_last()->message, "owner"));
        invar_error_clear();
    }
    path_in_save(path, "owner");
    assert_int_equal(remove(path), 0);
    assert_ok(invar_held_folder_make(path));
    assert_fails(invar_checkpoint_lock_acquire(&lock, save), INVAR_E_IO, "owner");
}

/* A moved folder is not created again at its old path; after a refresh it is written to. */
static void test_engine_checkpoint__writes_where_its_folder_is(void **state)
{
    invar_checkpoint_lock lock;
    invar_checkpoint_options options = {.save_exists = true};
    char moved[sizeof save];

    (void)state;
    assert_ok(invar_checkpoint_lock_acquire(&lock, save));
    snprintf(moved, sizeof moved, "%s/moved", folder);
    assert_int_equal(rename(save, moved), 0);
    assert_fails(invar_checkpoint_write(NULL, save, ckpt_make(&data, 1, ROWS), &options),
                 INVAR_E_NOTFOUND, "cannot be read");
    assert_false(invar_path_exists(save));
    assert_ok(invar_checkpoint_lock_refresh_path(&lock));
    assert_ok(invar_checkpoint_write(NULL, lock.folder.path, &data.content, &options));
    assert_false(invar_path_exists(save));
    memcpy(save, moved, sizeof save);
    assert_true(exists_in_save("iter_0000001"));
    invar_checkpoint_lock_release(&lock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(belongs_to_one_run),
        TEST(without_an_owner_belongs_to_its_writer),
        TEST(refuses_an_owner_that_is_none),
        TEST(writes_where_its_folder_is),
    };

    return RUN(tests);
}
