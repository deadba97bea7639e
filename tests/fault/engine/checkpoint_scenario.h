/*
 * checkpoint_scenario.h - small checkpoints whose every bit is a function of their step.
 *
 * A test writes one with ckpt_write, and ckpt_check compares what it reads with the values that the
 * step defines.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_FAULT_ENGINE_CHECKPOINT_SCENARIO_H
#define INVAR_TESTS_FAULT_ENGINE_CHECKPOINT_SCENARIO_H

#include "base/alloc.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "tests/fault/ledger/ledger_scenario.h"

enum {
    CKPT_ROWS = 4096, /* rows of the first parameter, at most */
    CKPT_COLUMNS = 5, /* columns of the first parameter */
    CKPT_SETS = 3,    /* the model and its two AdamW moments */
    CKPT_PARAMS = 3,  /* a matrix, a vector, a matrix with gaps between its rows */
    CKPT_TENSORS = CKPT_SETS * CKPT_PARAMS + 2,
    CKPT_BLOBS = 2
};

static const char *const ckpt_sets[CKPT_SETS] = {"model", "model.exp_avg", "model.exp_avg_sq"};
static const char *const ckpt_params[CKPT_PARAMS] = {"model.embed_tokens.weight",
                                                     "model.norm.weight", "lm_head.weight"};

/* One checkpoint with the memory of its tensors. `embed`, `norm` and `head` are the parameters. */
typedef struct ckpt_data {
    float embed[CKPT_SETS][CKPT_ROWS * CKPT_COLUMNS];
    float norm[CKPT_SETS][6];
    float head[CKPT_SETS][4][9]; /* 7 of the 9 columns are the tensor */
    int64_t longs[3];
    uint16_t halves[5];
    char text[64];
    invar_checkpoint_state state;
    invar_checkpoint_tensor tensors[CKPT_TENSORS];
    invar_checkpoint_blob blobs[CKPT_BLOBS];
    invar_checkpoint_content content;
} ckpt_data;

static inline float ckpt_value(int64_t step, int64_t set, int64_t i)
{
    uint32_t bits = invar_test_random((uint64_t)step * 8 + (uint64_t)set, (uint64_t)i);
    float value;

    // Random bits include NaNs and subnormals: a checkpoint must keep all bits.
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Makes the tensors over the memory of *d. `rows` sets the size of the checkpoint. */
static inline void ckpt_describe(ckpt_data *d, int64_t rows)
{
    int64_t n = 0;

    for (int64_t s = 0; s < CKPT_SETS; s++) {
        invar_tensor head = invar_tensor_2d(d->head[s], INVAR_DTYPE_F32, 4, 9);
        const invar_tensor params[CKPT_PARAMS] = {
            invar_tensor_2d(d->embed[s], INVAR_DTYPE_F32, rows, CKPT_COLUMNS),
            invar_tensor_1d(d->norm[s], INVAR_DTYPE_F32, 6), invar_tensor_columns(&head, 0, 7)};
        for (int64_t p = 0; p < CKPT_PARAMS; p++)
            d->tensors[n++] =
                (invar_checkpoint_tensor){ckpt_sets[s], ckpt_params[p], params[p], NULL};
    }
    d->tensors[n++] = (invar_checkpoint_tensor){
        "extra", "longs", invar_tensor_1d(d->longs, INVAR_DTYPE_I64, 3), NULL};
    d->tensors[n++] = (invar_checkpoint_tensor){
        "extra", "halves", invar_tensor_1d(d->halves, INVAR_DTYPE_BF16, 5), NULL};
}

static inline void ckpt_fill(ckpt_data *d, int64_t step, int64_t rows)
{
    for (int64_t s = 0; s < CKPT_SETS; s++) {
        for (int64_t i = 0; i < rows * CKPT_COLUMNS; i++)
            d->embed[s][i] = ckpt_value(step, s, i);
        for (int64_t i = 0; i < 6; i++)
            d->norm[s][i] = ckpt_value(step, s, 100000 + i);
        for (int64_t i = 0; i < 28; i++)
            d->head[s][i / 7][i % 7] = ckpt_value(step, s, 200000 + i);
    }
    for (int64_t i = 0; i < 3; i++)
        d->longs[i] = step * 1000003 - i;
    for (int64_t i = 0; i < 5; i++)
        d->halves[i] = (uint16_t)(step * 7 + i);
    (void)snprintf(d->text, sizeof d->text, "what was left over after step %d", (int)step);
    memset(&d->state, 0, sizeof d->state);
    d->state.step = step;
    d->state.rollout = step + 1;
    d->state.weights = step + 1;
    d->state.samples = 8 * (step + 1);
    d->state.groups = 2 * (step + 1);
    d->state.chain = scenario_chain(step);
    d->state.identity = scenario_digest(0, 77);
    memcpy(d->state.name, "scenario", 9);
    memcpy(d->state.format, "bf16", 5);
    memcpy(d->state.numerics, "ieee", 5);
    d->state.actor = (invar_checkpoint_optimizer){step + 1, 0.9f, 0.999f};
    d->state.critic = (invar_checkpoint_optimizer){0, 1, -0.0f};
    memcpy(d->state.cursors[0].name, "train", 6);
    d->state.cursors[0].position = (invar_data_cursor){step / 3, step % 3};
    d->state.n_cursors = 1;
}

/* Fills *d with the checkpoint of a step. The result points into *d and needs no release. */
static inline const invar_checkpoint_content *ckpt_make(ckpt_data *d, int64_t step, int64_t rows)
{
    memset(d, 0, sizeof *d);
    ckpt_describe(d, rows);
    ckpt_fill(d, step, rows);
    d->blobs[0] = (invar_checkpoint_blob){"config.json", "{}\n", 3};
    d->blobs[1] = (invar_checkpoint_blob){"buffer.bin", d->text, sizeof d->text};
    d->content = (invar_checkpoint_content){.state = &d->state,
                                            .tensors = d->tensors,
                                            .n_tensors = CKPT_TENSORS,
                                            .blobs = d->blobs,
                                            .n_blobs = CKPT_BLOBS};
    return &d->content;
}

/*
 * Writes the checkpoint in one call or with a writer thread. The thread's data is overwritten
 * between the copy and the finish, so a writer that reads it too late writes wrong bits.
 */
static inline invar_status ckpt_write(invar_digest *hash_out, const char *save, ckpt_data *d,
                                      const invar_checkpoint_options *options, bool in_thread)
{
    invar_checkpoint_writer *writer;
    invar_status status;

    if (!in_thread)
        return invar_checkpoint_write(hash_out, save, &d->content, options);
    INVAR_TRY(invar_checkpoint_writer_new(&writer, NULL));
    status = invar_checkpoint_writer_begin(writer, save, &d->content, options);
    invar_checkpoint_writer_await_copy(writer);
    memset(d, 0x5A, offsetof(ckpt_data, text));
    if (status == INVAR_OK)
        status = invar_checkpoint_writer_finish(hash_out, writer);
    invar_checkpoint_writer_free(writer);
    return status;
}

/* Loads the complete checkpoint and checks that all bits are those of `step`. */
static inline void ckpt_check(invar_checkpoint *c, int64_t step, int64_t rows)
{
    static ckpt_data expected, loaded;
    size_t bytes;
    char *text;

    ckpt_make(&expected, step, rows);
    memset(&loaded, 0, sizeof loaded);
    ckpt_describe(&loaded, rows);
    for (int64_t i = 0; i < CKPT_TENSORS; i++)
        assert_ok(invar_checkpoint_load(&loaded.tensors[i].tensor, c, loaded.tensors[i].set,
                                        loaded.tensors[i].name));
    assert_memory_equal(loaded.embed, expected.embed, sizeof loaded.embed);
    assert_memory_equal(loaded.norm, expected.norm, sizeof loaded.norm);
    // The gaps between the rows of `head` must be unchanged as well.
    assert_memory_equal(loaded.head, expected.head, sizeof loaded.head);
    assert_memory_equal(loaded.longs, expected.longs, sizeof loaded.longs);
    assert_memory_equal(loaded.halves, expected.halves, sizeof loaded.halves);
    assert_memory_equal(invar_checkpoint_state_of(c), &expected.state, sizeof expected.state);
    assert_ok(invar_checkpoint_read_blob(&text, &bytes, c, "buffer.bin"));
    assert_int_equal(bytes, sizeof expected.text);
    assert_memory_equal(text, expected.text, bytes);
    invar_free(text);
}

/*
 * Opens the checkpoint of `choice` (NULL for the latest), checks all of it, and returns its step.
 */
static inline int64_t ckpt_open_and_check(const char *save,
                                          const invar_checkpoint_open_options *choice, int64_t rows)
{
    invar_checkpoint *c;
    int64_t step;

    assert_ok(invar_checkpoint_open(&c, save, choice));
    step = invar_checkpoint_state_of(c)->step;
    ckpt_check(c, step, rows);
    invar_checkpoint_close(c);
    return step;
}

#endif
