/*
 * checkpoint.c - tests of checkpoints: contents, selection, damage, invalid contents, the ledger.
 *
 * Every bit that is written must be read back, and the hash of a checkpoint must be the one that
 * the program xxhsum computes from its files. Files with a flipped bit and missing files must be
 * rejected by name. Control: undamaged checkpoints of the same steps are opened.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dirent.h>
#include <math.h>

#include "tests/unit/engine/files/checkpoint/fixture.h"

/* Flips the lowest bit of the byte at offset `from` of a file, counted from its end if negative. */
static void flip_bit(const char *name, long from)
{
    char path[600];
    FILE *stream;
    int byte;

    path_in_save(path, name);
    stream = fopen(path, "r+b");
    assert_non_null(stream);
    assert_int_equal(fseek(stream, from, from < 0 ? SEEK_END : SEEK_SET), 0);
    byte = fgetc(stream);
    assert_int_equal(fseek(stream, from, from < 0 ? SEEK_END : SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ 1, stream), byte ^ 1);
    assert_int_equal(fclose(stream), 0);
}

static void assert_open_fails(invar_status code, const char *text)
{
    invar_checkpoint *c;

    assert_fails(invar_checkpoint_open(&c, save, NULL), code, text);
    assert_null(c);
}

/* ---- contents -------------------------------------------------------------------------------- */

static void test_engine_checkpoint__keeps_every_bit(void **state)
{
    invar_digest written, read;
    invar_checkpoint *c;
    size_t bytes;
    char *text;

    (void)state;
    assert_ok(invar_checkpoint_write(&written, save, ckpt_make(&data, 5, ROWS), NULL));
    assert_true(exists_in_save("iter_0000005/model.safetensors"));
    assert_true(exists_in_save("iter_0000005/config.json"));
    assert_false(exists_in_save("iter_0000005.tmp"));
    assert_ok(invar_checkpoint_open(&c, save, NULL));
    ckpt_check(c, 5, ROWS);
    invar_checkpoint_hash(&read, c);
    assert_memory_equal(&read, &written, sizeof read);
    assert_true(invar_checkpoint_has_set(c, "model.exp_avg"));
    assert_false(invar_checkpoint_has_set(c, "critic"));
    for (int i = 0; i < CKPT_SETS; i++)
        assert_ok(invar_checkpoint_check_all_loaded(c, ckpt_sets[i]));
    assert_fails(invar_checkpoint_read_blob(&text, &bytes, c, "other.bin"), INVAR_E_NOTFOUND,
                 "no other.bin");
    invar_checkpoint_close(c);
}

/* The program xxhsum computes the same hashes. Control: it finds a flipped bit. */
static void test_engine_checkpoint__xxhsum_agrees(void **state)
{
    char command[1024], hex[INVAR_DIGEST_HEX_SIZE], line[256];
    invar_digest hash;
    FILE *output;

    (void)state;
    assert_ok(invar_checkpoint_write(&hash, save, ckpt_make(&data, 0, ROWS), NULL));
    snprintf(command, sizeof command,
             "cd '%s/iter_0000000' && xxhsum -c hashes.xxh >/dev/null 2>&1", save);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof command, "cd '%s/iter_0000000' && xxhsum -H2 hashes.xxh", save);
    output = popen(command, "r");
    assert_non_null(output);
    assert_non_null(fgets(line, sizeof line, output));
    assert_int_equal(pclose(output), 0);
    invar_digest_format(hex, &hash);
    assert_memory_equal(line, hex, 32);
    flip_bit("iter_0000000/config.json", 0);
    snprintf(command, sizeof command,
             "cd '%s/iter_0000000' && xxhsum -c hashes.xxh >/dev/null 2>&1", save);
    assert_int_not_equal(system(command), 0);
}

static void test_engine_checkpoint__equal_contents_give_equal_hashes(void **state)
{
    invar_digest a, b, other;

    (void)state;
    assert_ok(invar_checkpoint_write(&a, save, ckpt_make(&data, 3, ROWS), NULL));
    assert_ok(invar_checkpoint_write(&b, save, ckpt_make(&data, 3, ROWS), NULL)); // replaces it
    assert_memory_equal(&a, &b, sizeof a);
    assert_false(exists_in_save("iter_0000003.old"));
    ckpt_make(&data, 3, ROWS);
    data.head[0][1][8] = 1; // padding between two rows, which is not saved
    assert_ok(invar_checkpoint_write(&other, save, &data.content, NULL));
    assert_memory_equal(&a, &other, sizeof a);
    data.head[0][1][6] = data.head[0][1][6] == 1 ? 2 : 1;
    assert_ok(invar_checkpoint_write(&other, save, &data.content, NULL));
    assert_memory_not_equal(&a, &other, sizeof a);
    ckpt_make(&data, 3, ROWS);
    data.state.critic.beta2_power = 0; // it was -0
    assert_ok(invar_checkpoint_write(&other, save, &data.content, NULL));
    assert_memory_not_equal(&a, &other, sizeof a);
}

/* Writes a checkpoint with adapters that no recipe allows, and asserts that opening it fails. */
static void assert_adapters_refused(const invar_checkpoint_content *content, int64_t rank,
                                    float alpha, const char *text)
{
    invar_checkpoint *c;

    data.state.adapters.rank = rank;
    data.state.adapters.alpha = alpha;
    assert_ok(invar_checkpoint_write(NULL, save, content, NULL));
    assert_fails(invar_checkpoint_open(&c, save, NULL), INVAR_E_CORRUPT, text);
}

static void test_engine_checkpoint__without_optimizer_and_empty(void **state)
{
    invar_checkpoint_content content = {.state = &data.state};
    invar_checkpoint *c;

    (void)state;
    ckpt_make(&data, 1, ROWS);
    data.state.adapters = (invar_checkpoint_adapters){
        .rank = 4, .alpha = 0.1f, .targets = "q_proj,v_proj", .base = data.state.chain};
    assert_ok(invar_checkpoint_write(NULL, save, &content, NULL));
    assert_ok(invar_checkpoint_open(&c, save, NULL));
    assert_memory_equal(invar_checkpoint_state_of(c), &data.state, sizeof data.state);
    assert_false(invar_checkpoint_has_set(c, "model"));
    invar_checkpoint_close(c);
    data.state.adapters.rslora = true;
    assert_ok(invar_checkpoint_write(NULL, save, &content, NULL));
    assert_ok(invar_checkpoint_open(&c, save, NULL));
    assert_true(invar_checkpoint_state_of(c)->adapters.rslora);
    invar_checkpoint_close(c);
    assert_adapters_refused(&content, 4097, 0.1f, "rank");
    assert_adapters_refused(&content, 4, 0.0f, "alpha");
    assert_adapters_refused(&content, 4, HUGE_VALF, "alpha");
    data.state.adapters.rank = 0;
    content.tensors = data.tensors;
    content.n_tensors = CKPT_PARAMS; // only the first set
    assert_ok(invar_checkpoint_write(NULL, save, &content, NULL));
    assert_ok(invar_checkpoint_open(&c, save, NULL));
    assert_true(invar_checkpoint_has_set(c, "model"));
    assert_false(invar_checkpoint_has_set(c, "model.exp_avg"));
    invar_checkpoint_close(c);
}

/* ---- selection ------------------------------------------------------------------------------- */

static void test_engine_checkpoint__the_latest_or_the_asked_one(void **state)
{
    int64_t *steps, count, step;
    invar_checkpoint *c;

    (void)state;
    write_step(2, 0);
    write_step(12345678, 0); // more digits than seven
    write_step(7, 0);
    assert_int_equal(open_latest(), 7); // the last written, not the largest
    assert_ok(invar_checkpoint_latest(&step, save));
    assert_int_equal(step, 7);
    assert_ok(invar_checkpoint_list(&steps, &count, save));
    assert_int_equal(count, 3);
    assert_int_equal(steps[0], 2);
    assert_int_equal(steps[1], 7);
    assert_int_equal(steps[2], 12345678);
    invar_free(steps);
    assert_int_equal(
        ckpt_open_and_check(save, &(invar_checkpoint_open_options){.step = 12345678}, ROWS),
        12345678);
    assert_fails(invar_checkpoint_open(&c, save, &(invar_checkpoint_open_options){.step = 3}),
                 INVAR_E_NOTFOUND, "iter_0000003");
}

static void test_engine_checkpoint__no_checkpoint_is_not_found(void **state)
{
    int64_t step, *steps, count;

    (void)state;
    assert_open_fails(INVAR_E_NOTFOUND, "latest_checkpointed_iteration.txt");
    assert_fails(invar_checkpoint_latest(&step, save), INVAR_E_NOTFOUND, "latest");
    assert_fails(invar_checkpoint_list(&steps, &count, save), INVAR_E_NOTFOUND, save + 20);
    assert_int_equal(mkdir(save, 0777), 0);
    assert_open_fails(INVAR_E_NOTFOUND, "latest_checkpointed_iteration.txt");
    assert_ok(invar_checkpoint_list(&steps, &count, save));
    assert_int_equal(count, 0);
    invar_free(steps);
}

static void test_engine_checkpoint__keeps_as_many_as_asked(void **state)
{
    (void)state;
    write_step(9, 0); // newer than the steps below, whose writes must not remove it
    for (int64_t step = 0; step < 5; step++)
        write_step(step, 2);
    assert_false(exists_in_save("iter_0000000"));
    assert_false(exists_in_save("iter_0000002"));
    assert_true(exists_in_save("iter_0000003"));
    assert_true(exists_in_save("iter_0000004"));
    assert_true(exists_in_save("iter_0000009"));
    write_step(3, 1);
    assert_true(exists_in_save("iter_0000003"));
    assert_true(exists_in_save("iter_0000004"));
    write_step(5, 1);
    assert_false(exists_in_save("iter_0000003"));
    assert_false(exists_in_save("iter_0000004"));
    assert_int_equal(open_latest(), 5);
}

static void test_engine_checkpoint__leftovers_go_with_the_next_write(void **state)
{
    char from[600], to[600];

    (void)state;
    write_step(1, 0);
    write_step(2, 0);
    // a writer was killed between the two renames of a replacement: the old checkpoint counts
    path_in_save(from, "iter_0000002");
    path_in_save(to, "iter_0000002.old");
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(open_latest(), 2);
    path_in_save(to, "iter_0000003.tmp");
    assert_int_equal(mkdir(to, 0777), 0);
    write_in_save("iter_0000003.tmp/state.json", "half");
    write_in_save("iter_3.tmp", "a file of somebody else");
    write_step(4, 0);
    assert_true(exists_in_save("iter_0000002"));
    assert_false(exists_in_save("iter_0000002.old"));
    assert_false(exists_in_save("iter_0000003.tmp"));
    assert_true(exists_in_save("iter_3.tmp"));
    assert_int_equal(ckpt_open_and_check(save, &(invar_checkpoint_open_options){.step = 2}, ROWS),
                     2);
    // a writer was killed after both renames: the new checkpoint counts
    path_in_save(to, "iter_0000004.old");
    assert_int_equal(mkdir(to, 0777), 0);
    assert_int_equal(open_latest(), 4);
    write_step(5, 0);
    assert_false(exists_in_save("iter_0000004.old"));
}

/* ---- damage ---------------------------------------------------------------------------------- */

static void test_engine_checkpoint__damage_is_named(void **state)
{
    static const struct {
        const char *file;
        long file_offset;
        const char *text;
    } cases[] = {
        {"model.safetensors", -1, "tensor \"lm_head.weight\" is damaged"},
        {"model.exp_avg.safetensors", -4 * 28 - 1, "tensor \"model.norm.weight\" is damaged"},
        {"model.safetensors", 0, "model.safetensors"},
        {"model.safetensors", 78, "model.safetensors"}, // the dtype F32 in the header
        {"state.json", 40, "state.json is damaged"},
        {"buffer.bin", 3, "buffer.bin is damaged"},
        {"hashes.xxh", 0, "is damaged"},
        {"hashes.xxh", 34, "is not"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[100];
        write_step(3, 0);
        snprintf(name, sizeof name, "iter_0000003/%s", cases[i].file);
        flip_bit(name, cases[i].file_offset);
        assert_open_fails(INVAR_E_CORRUPT, cases[i].text);
        assert_open_fails(INVAR_E_CORRUPT, "iter_0000003");
    }
}

static void test_engine_checkpoint__missing_and_foreign_files_are_named(void **state)
{
    static const char *const files[] = {"hashes.xxh", "state.json", "model.safetensors",
                                        "buffer.bin"};
    char path[600], other[600], name[100];

    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        write_step(3, 0);
        snprintf(name, sizeof name, "iter_0000003/%s", files[i]);
        path_in_save(path, name);
        assert_int_equal(unlink(path), 0);
        snprintf(name, sizeof name, "%s is missing", files[i]);
        assert_open_fails(INVAR_E_CORRUPT, name);
        assert_int_equal(mkdir(path, 0777), 0); // a folder in place of the file
        assert_open_fails(INVAR_E_CORRUPT, files[i]);
        if (i > 1) // files that are only hashed when a checkpoint is opened
            assert_open_fails(INVAR_E_CORRUPT, "is no regular file");
    }
    write_step(3, 0);
    write_in_save("iter_0000003/README", "mine"); // not listed in hashes.xxh, so ignored
    assert_int_equal(open_latest(), 3);
    path_in_save(path, "iter_0000003");
    assert_ok(invar_held_folder_remove(path));
    assert_open_fails(INVAR_E_CORRUPT, "iter_0000003: there is no such checkpoint");
    write_step(3, 0);
    path_in_save(other, "iter_0000004");
    assert_int_equal(rename(path, other), 0);
    write_in_save("latest_checkpointed_iteration.txt", "4\n");
    assert_open_fails(INVAR_E_CORRUPT, "holds step 3");
}

static void test_engine_checkpoint__latest_is_read_strictly(void **state)
{
    static const char *const invalid[] = {"",   "\n", "release", "-1", "3x", "99999999999999999999",
                                          "3 4"};
    static const char *const valid[] = {"3", "3\n", "3\r\n", "0003"};

    (void)state;
    write_step(3, 0);
    for (size_t i = 0; i < sizeof invalid / sizeof invalid[0]; i++) {
        write_in_save("latest_checkpointed_iteration.txt", invalid[i]);
        assert_open_fails(INVAR_E_CORRUPT, "latest_checkpointed_iteration.txt");
    }
    for (size_t i = 0; i < sizeof valid / sizeof valid[0]; i++) {
        write_in_save("latest_checkpointed_iteration.txt", valid[i]);
        assert_int_equal(open_latest(), 3);
    }
}

/* Calls of the callback `skipped`. */
typedef struct skip_log {
    int count;
    int64_t steps[8];
    char reason[INVAR_ERROR_MESSAGE_SIZE]; /* message about the last skipped checkpoint */
} skip_log;

static void record_skipped(void *payload, int64_t step, const char *reason)
{
    skip_log *skips = payload;

    skips->steps[skips->count++] = step;
    snprintf(skips->reason, sizeof skips->reason, "%s", reason);
}

static void test_engine_checkpoint__damaged_ones_are_stepped_over_when_asked(void **state)
{
    skip_log skips = {0};
    invar_checkpoint_open_options selection = {.step = INVAR_CHECKPOINT_LATEST,
                                               .skip_damaged = true,
                                               .skipped = record_skipped,
                                               .payload = &skips,
                                               .settings = INVAR_CHECKPOINT_CKPT_STEP |
                                                           INVAR_CHECKPOINT_SKIP_DAMAGED};
    invar_checkpoint *c;
    char path[600];

    (void)state;
    for (int64_t step = 1; step <= 4; step++)
        write_step(step, 0);
    assert_int_equal(ckpt_open_and_check(save, &selection, ROWS), 4);
    assert_int_equal(skips.count, 0);
    flip_bit("iter_0000004/buffer.bin", 0);
    path_in_save(path, "iter_0000003/model.safetensors");
    assert_int_equal(unlink(path), 0);
    assert_open_fails(INVAR_E_CORRUPT, "iter_0000004: buffer.bin is damaged");
    assert_int_equal(ckpt_open_and_check(save, &selection, ROWS), 2);
    assert_int_equal(skips.count, 2);
    assert_int_equal(skips.steps[0], 4);
    assert_int_equal(skips.steps[1], 3);
    assert_non_null(strstr(skips.reason, "model.safetensors is missing"));
    skips.count = 0;
    write_in_save("latest_checkpointed_iteration.txt", "?");
    assert_int_equal(ckpt_open_and_check(save, &selection, ROWS), 2);
    assert_int_equal(skips.count, 3);
    assert_int_equal(skips.steps[0], INVAR_CHECKPOINT_LATEST);
    // no checkpoint is undamaged: the first error is reported
    flip_bit("iter_0000001/state.json", 5);
    flip_bit("iter_0000002/state.json", 5);
    selection.step = 4;
    selection.skipped = NULL;
    assert_fails(invar_checkpoint_open(&c, save, &selection), INVAR_E_CORRUPT, "iter_0000004");
    assert_fails(invar_checkpoint_open(&c, save, &selection), INVAR_E_CORRUPT,
                 "another; no older one is whole");
}

static void test_engine_checkpoint__messages_say_what_can_be_chosen(void **state)
{
    invar_checkpoint_open_options selection = {.step = 2, .settings = INVAR_CHECKPOINT_CKPT_STEP};
    invar_checkpoint *c;

    (void)state;
    write_step(3, 0);
    assert_fails(invar_checkpoint_open(&c, save, &selection), INVAR_E_NOTFOUND,
                 "iter_0000002: there is no such checkpoint; choose another with ckpt-step: 3");
    assert_null(strstr(invar_error_last()->message, "skip-damaged"));
    flip_bit("iter_0000003/buffer.bin", 0);
    selection = (invar_checkpoint_open_options){.step = INVAR_CHECKPOINT_LATEST, .settings = ~0U};
    assert_fails(invar_checkpoint_open(&c, save, &selection), INVAR_E_CORRUPT,
                 "another; there is no other one");
    for (int64_t step = 4; step <= 14; step++)
        write_step(step, 0);
    flip_bit("iter_0000014/buffer.bin", 0);
    assert_fails(invar_checkpoint_open(&c, save, &selection), INVAR_E_CORRUPT,
                 "ckpt-step: ..., 6, 7, 8, 9, 10, 11, 12, 13; or set skip-damaged");
    selection.step = 1;
    assert_fails(invar_checkpoint_open(&c, save, &selection), INVAR_E_NOTFOUND, "12, 13, 14");
    assert_null(strstr(invar_error_last()->message, "skip-damaged")); // no step is older
}

static void test_engine_checkpoint__a_folder_by_its_own_name_is_verified(void **state)
{
    char path[600], other[600];
    invar_checkpoint *c;

    (void)state;
    write_step(3, 0);
    path_in_save(path, "iter_0000003");
    path_in_save(other, "best");
    assert_false(invar_checkpoint_is_folder(save));
    assert_true(invar_checkpoint_is_folder(path));
    assert_int_equal(rename(path, other), 0); // the folder of a copy may have any name
    assert_ok(invar_checkpoint_open_folder(&c, other));
    assert_int_equal(invar_checkpoint_state_of(c)->step, 3);
    assert_string_equal(invar_checkpoint_path(c), other);
    invar_checkpoint_close(c);
    flip_bit("best/model.safetensors", -1);
    assert_fails(invar_checkpoint_open_folder(&c, other), INVAR_E_CORRUPT,
                 "best: model.safetensors: tensor \"lm_head.weight\" is damaged");
    assert_null(c);
}

/* ---- callers --------------------------------------------------------------------------------- */

static void test_engine_checkpoint__missing_and_extra_tensors_are_named(void **state)
{
    float memory[64];
    invar_tensor norm = invar_tensor_1d(memory, INVAR_DTYPE_F32, 6);
    invar_tensor longer = invar_tensor_1d(memory, INVAR_DTYPE_F32, 7);
    invar_tensor ints = invar_tensor_1d(memory, INVAR_DTYPE_I32, 6);
    invar_tensor matrix = invar_tensor_2d(memory, INVAR_DTYPE_F32, 6, 1);
    invar_tensor fp8 = invar_tensor_quantized(memory, memory, INVAR_DTYPE_FP8, 1, 6, 1);
    invar_checkpoint *c;

    (void)state;
    write_step(0, 0);
    assert_ok(invar_checkpoint_open(&c, save, NULL));
    assert_ok(invar_checkpoint_load(&norm, c, "model", "model.norm.weight"));
    assert_fails(invar_checkpoint_load(&longer, c, "model", "model.norm.weight"), INVAR_E_STATE,
                 "\"model.norm.weight\" has another type or shape");
    assert_fails(invar_checkpoint_load(&ints, c, "model", "model.norm.weight"), INVAR_E_STATE,
                 "another type");
    assert_fails(invar_checkpoint_load(&matrix, c, "model", "model.norm.weight"), INVAR_E_STATE,
                 "another type");
    assert_fails(invar_checkpoint_load(&fp8, c, "model", "model.norm.weight"), INVAR_E_UNSUPPORTED,
                 "fp8");
    assert_fails(invar_checkpoint_load(&norm, c, "model", "none"), INVAR_E_NOTFOUND,
                 "no tensor \"none\"");
    assert_fails(invar_checkpoint_load(&norm, c, "critic", "none"), INVAR_E_NOTFOUND, "critic");
    assert_fails(invar_checkpoint_check_all_loaded(c, "model"), INVAR_E_STATE,
                 "no tensor \"model.embed_tokens.weight\"");
    // a set that the checkpoint does not have leaves nothing over
    assert_ok(invar_checkpoint_check_all_loaded(c, "critic"));
    invar_checkpoint_close(c);
}

static void test_engine_checkpoint__a_file_that_changes_after_opening_is_noticed(void **state)
{
    float memory[64];
    invar_tensor norm = invar_tensor_1d(memory, INVAR_DTYPE_F32, 6);
    invar_checkpoint *c;
    size_t bytes;
    char *text;

    (void)state;
    write_step(0, 0);
    assert_ok(invar_checkpoint_open(&c, save, NULL));
    flip_bit("iter_0000000/model.safetensors", -4 * 28 - 1);
    flip_bit("iter_0000000/buffer.bin", 0);
    assert_fails(invar_checkpoint_load(&norm, c, "model", "model.norm.weight"), INVAR_E_CORRUPT,
                 "\"model.norm.weight\" is damaged");
    assert_fails(invar_checkpoint_read_blob(&text, &bytes, c, "buffer.bin"), INVAR_E_CORRUPT,
                 "buffer.bin is damaged");
    assert_null(text);
    invar_checkpoint_close(c);
}

/* Asserts that `data` is rejected and that nothing was written; then makes it valid again. */
static void assert_write_fails(invar_status code, const char *text)
{
    assert_fails(invar_checkpoint_write(NULL, save, &data.content, NULL), code, text);
    assert_int_equal(open_latest(), 1);
    assert_false(exists_in_save("iter_0000002"));
    assert_false(exists_in_save("iter_0000002.tmp"));
    ckpt_make(&data, 2, ROWS);
}

static void test_engine_checkpoint__refuses_impossible_contents(void **state)
{
    static const char *const names[] = {"a/b/c", "../b", "a/..", "a/", "/b", "a//b", "a/b c", ""};

    (void)state;
    write_step(1, 0);
    ckpt_make(&data, 2, ROWS);
    data.state.step = -1;
    assert_write_fails(INVAR_E_INVALID, "\"step\" is negative");
    data.tensors[1].name = ckpt_params[0];
    assert_write_fails(INVAR_E_INVALID, "comes twice");
    data.tensors[1].set = "other";
    assert_write_fails(INVAR_E_INVALID, "does not stand together");
    data.tensors[0].set = "../model";
    assert_write_fails(INVAR_E_INVALID, "the set");
    data.tensors[0].name = "a\nb";
    assert_write_fails(INVAR_E_INVALID, "the tensor's name");
    data.tensors[0].tensor.dtype = INVAR_DTYPE_FP8;
    assert_write_fails(INVAR_E_UNSUPPORTED, "fp8");
    data.blobs[0].name = "buffer.bin";
    assert_write_fails(INVAR_E_INVALID, "the name buffer.bin");
    data.blobs[0].name = "model.safetensors";
    assert_write_fails(INVAR_E_INVALID, "the name model.safetensors");
    data.blobs[0].name = "state.json";
    assert_write_fails(INVAR_E_INVALID, "the name state.json");
    data.blobs[0].name = "hashes.xxh";
    assert_write_fails(INVAR_E_INVALID, "hashes.xxh");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        data.blobs[0].name = names[i];
        assert_write_fails(INVAR_E_INVALID, "the blob");
    }
    data.content.n_blobs = 65;
    assert_write_fails(INVAR_E_INVALID, "65 blobs");
    data.state.n_cursors = 17;
    assert_write_fails(INVAR_E_INVALID, "17 cursors");
    data.state.cursors[0].position.offset = -1;
    assert_write_fails(INVAR_E_INVALID, "\"train\" is impossible");
    memcpy(data.state.uuid, "xyz", 4);
    assert_write_fails(INVAR_E_INVALID, "uuid");
    assert_ok(invar_checkpoint_write(NULL, save, &data.content, NULL));
    assert_int_equal(open_latest(), 2);
}

/* ---- the ledger ------------------------------------------------------------------------------ */

static void test_engine_checkpoint__the_ledger_knows_it(void **state)
{
    invar_ledger *ledger = make_ledger("knows", 3);
    const invar_checkpoint_options options = {.ledger = ledger};

    (void)state;
    assert_ok(invar_checkpoint_write(NULL, save, ckpt_make(&data, 1, ROWS), &options));
    assert_ok(invar_checkpoint_write(NULL, save, ckpt_make(&data, 2, ROWS), &options));
    assert_int_equal(count_query_rows(ledger, "restore-points"), 2);
    assert_int_equal(count_query_rows(ledger, "checkpoint-pending"), 0);
    assert_int_equal(count_query_rows(ledger, "checkpoint-verify"), 0);
    // a step that the ledger does not have, or has with another chain: nothing is written
    ckpt_make(&data, 3, ROWS);
    assert_fails(invar_checkpoint_write(NULL, save, &data.content, &options), INVAR_E_INVALID,
                 "the last step is 2");
    data.state.step = 2;
    assert_fails(invar_checkpoint_write(NULL, save, &data.content, &options), INVAR_E_MISMATCH,
                 "another state");
    assert_false(exists_in_save("iter_0000003"));
    assert_false(exists_in_save("iter_0000002.tmp"));
    assert_int_equal(open_latest(), 2);
    invar_ledger_close(ledger);
}

static void test_engine_checkpoint__a_resume_completes_what_was_announced(void **state)
{
    invar_ledger *ledger = make_ledger("settles", 3);
    invar_ledger_checkpoint intent = {.step = 2, .path = "elsewhere/iter_0000002"};
    invar_checkpoint *c;
    char path[600];

    (void)state;
    // a writer was killed after the rename: the intent and the folder exist
    assert_ok(invar_checkpoint_write(&intent.hash, save, ckpt_make(&data, 2, ROWS), NULL));
    intent.chain = scenario_chain(2);
    assert_ok(invar_ledger_checkpoint_intent(ledger, &intent));
    intent.hash.bytes[0] ^= 1; // the intent of a checkpoint whose folder was never written
    intent.path = "lost/iter_0000002";
    assert_ok(invar_ledger_checkpoint_intent(ledger, &intent));
    invar_ledger_close(ledger);
    assert_ok(invar_checkpoint_open(&c, save, NULL));
    snprintf(path, sizeof path, "%s/settles.db", folder);
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.write = true}));
    assert_ok(scenario_resume(ledger, 2));
    assert_int_equal(count_query_rows(ledger, "checkpoint-pending"), 2);
    assert_int_equal(count_query_rows(ledger, "restore-points"), 0);
    assert_ok(invar_checkpoint_finish_pending(c, ledger));
    assert_int_equal(count_query_rows(ledger, "checkpoint-pending"), 1);
    assert_int_equal(count_query_rows(ledger, "restore-points"), 1);
    assert_ok(invar_checkpoint_finish_pending(c, ledger)); // nothing is pending
    assert_int_equal(count_query_rows(ledger, "checkpoint-pending"), 1);
    invar_checkpoint_close(c);
    // control: a checkpoint of a run that this ledger does not have
    ckpt_make(&data, 2, ROWS);
    memset(data.state.uuid, '7', 32);
    assert_ok(invar_checkpoint_write(NULL, save, &data.content, NULL));
    assert_ok(invar_checkpoint_open(&c, save, NULL));
    assert_ok(invar_checkpoint_finish_pending(c, ledger));
    assert_int_equal(count_query_rows(ledger, "restore-points"), 1);
    invar_checkpoint_close(c);
    invar_ledger_close(ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(keeps_every_bit),
        TEST(xxhsum_agrees),
        TEST(equal_contents_give_equal_hashes),
        TEST(without_optimizer_and_empty),
        TEST(the_latest_or_the_asked_one),
        TEST(no_checkpoint_is_not_found),
        TEST(keeps_as_many_as_asked),
        TEST(leftovers_go_with_the_next_write),
        TEST(damage_is_named),
        TEST(missing_and_foreign_files_are_named),
        TEST(latest_is_read_strictly),
        TEST(damaged_ones_are_stepped_over_when_asked),
        TEST(messages_say_what_can_be_chosen),
        TEST(a_folder_by_its_own_name_is_verified),
        TEST(missing_and_extra_tensors_are_named),
        TEST(a_file_that_changes_after_opening_is_noticed),
        TEST(refuses_impossible_contents),
        TEST(the_ledger_knows_it),
        TEST(a_resume_completes_what_was_announced),
    };

    return RUN(tests);
}
