/*
 * lock.c - a folder of checkpoints belongs to one run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/engine/files/checkpoint/scene.h"

/* ---- whose they are -------------------------------------------------------------------------- */

static void test_engine_checkpoint__belongs_to_one_run(void **state)
{
    invar_checkpoint_owner owner = {.uuid = "0123456789abcdef"};
    invar_checkpoint_lock claim, other;

    (void)state;
    memset(&owner.identity, 7, sizeof owner.identity);
    assert_ok(invar_checkpoint_lock_acquire(&claim, save));
    assert_false(claim.owned);
    assert_fails(invar_checkpoint_lock_acquire(&other, save), INVAR_E_BUSY,
                 "writes its checkpoints");
    assert_ok(invar_checkpoint_lock_write_owner(&claim, &owner));
    assert_ok(invar_checkpoint_lock_refresh_path(&claim));
    invar_checkpoint_lock_release(&claim);
    invar_checkpoint_lock_release(&claim);
    assert_ok(invar_checkpoint_lock_acquire(&claim, save));
    assert_true(claim.owned && claim.has_owner_file);
    assert_string_equal(claim.owner.uuid, owner.uuid);
    assert_memory_equal(&claim.owner.identity, &owner.identity, sizeof owner.identity);
    put("owner", ""); // removed and made again by somebody else
    assert_fails(invar_checkpoint_lock_refresh_path(&claim), INVAR_E_STATE,
                 "was removed or replaced");
    invar_checkpoint_lock_release(&claim);
}

static void test_engine_checkpoint__without_an_owner_belongs_to_its_writer(void **state)
{
    invar_checkpoint_lock claim;

    (void)state;
    write_step(1, 0);
    write_step(2, 0);
    assert_ok(invar_checkpoint_lock_acquire(&claim, save));
    assert_true(claim.owned && !claim.has_owner_file);
    assert_string_equal(claim.owner.uuid, data.content.state->uuid);
    invar_checkpoint_lock_release(&claim);
    put("iter_0000002/state.json", "{"); // the one before it says so, too
    assert_ok(invar_checkpoint_lock_acquire(&claim, save));
    assert_true(claim.owned);
    assert_string_equal(claim.owner.uuid, data.content.state->uuid);
    invar_checkpoint_lock_release(&claim);
}

static void test_engine_checkpoint__refuses_an_owner_that_is_none(void **state)
{
    static const char *const bad[] = {
        "rubbish\n", "[owner]\nrun = x\n",
        "[owner]\nrun =\nidentity = 00112233445566778899aabbccddeeff\n",
        "[owner]\nrun = x\nidentity = 0011\n",
        ("[owner]\nrun = 0123456789012345678901234567890123456789012345678901234567890123456789\n"
         "identity = 00112233445566778899aabbccddeeff\n")};
    invar_checkpoint_lock claim;
    char path[600];

    (void)state;
    assert_ok(invar_held_folder_make(save));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put("owner", bad[i]);
        assert_true(invar_checkpoint_lock_acquire(&claim, save) != INVAR_OK);
        assert_non_null(strstr(invar_error_last()->message, "owner"));
        invar_error_clear();
    }
    path_in(path, "owner");
    assert_int_equal(remove(path), 0);
    assert_ok(invar_held_folder_make(path));
    assert_fails(invar_checkpoint_lock_acquire(&claim, save), INVAR_E_IO, "owner");
}

/* A folder that was moved is not made again; where it is known it is written to. */
static void test_engine_checkpoint__writes_where_its_folder_is(void **state)
{
    invar_checkpoint_lock claim;
    invar_checkpoint_options options = {.save_exists = true};
    char moved[sizeof save];

    (void)state;
    assert_ok(invar_checkpoint_lock_acquire(&claim, save));
    snprintf(moved, sizeof moved, "%s/moved", folder);
    assert_int_equal(rename(save, moved), 0);
    assert_fails(invar_checkpoint_write(NULL, save, ckpt_make(&data, 1, ROWS), &options),
                 INVAR_E_NOTFOUND, "cannot be read");
    assert_false(invar_path_exists(save));
    assert_ok(invar_checkpoint_lock_refresh_path(&claim));
    assert_ok(invar_checkpoint_write(NULL, claim.folder.path, &data.content, &options));
    assert_false(invar_path_exists(save));
    memcpy(save, moved, sizeof save);
    assert_true(there("iter_0000001"));
    invar_checkpoint_lock_release(&claim);
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
