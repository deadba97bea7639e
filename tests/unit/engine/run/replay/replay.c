/*
 * replay.c - tests of replays and packs of a small run: bit-equal, or the first changed step.
 *
 * Controls are checkpoints with valid hashes in which one weight or moment was changed: the replay
 * must find the first step that differs. The commands are tested by tests/e2e/run/replay.sh.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/replay/replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "engine/run/context/run_context.h"
#include "engine/run/replay/pack.h"
#include "tests/support.h"
#include "tests/unit/engine/config/config_of.h"

static char folder[] = INVAR_TEST_WORK "/replay-XXXXXX";

typedef char path_text[sizeof folder + 64];

static const char *path_below(path_text out, const char *name)
{
    snprintf(out, sizeof(path_text), "%s/%s", folder, name);
    return out;
}

/* ---- a run of four steps, with a checkpoint after the second --------------------------------- */

static const char recipe_text[] = "[model]\n"
                                  "dtype = fp32\n"
                                  "num-layers = 1\n"
                                  "hidden-size = 16\n"
                                  "ffn-hidden-size = 16\n"
                                  "num-attention-heads = 1\n"
                                  "max-position-embeddings = 32\n"
                                  "[ckpt]\n"
                                  "save-interval = 2\n"
                                  "[rollout]\n"
                                  "prompt-data = task:max\n"
                                  "num-rollout = 4\n"
                                  "rollout-batch-size = 2\n"
                                  "n-samples-per-prompt = 2\n"
                                  "rollout-max-response-len = 2\n"
                                  "rm-type = overlap\n"
                                  "[perf]\n"
                                  "threads = 1\n"
                                  "[optimizer]\n"
                                  "lr = 0.01\n"
                                  "[engine]\n"
                                  "numerics = ieee\n";

static void train_run(void)
{
    invar_train_options options = {.recipe_path = "a.ini", .until = -1};
    invar_train_summary summary;
    path_text run, save;
    invar_recipe *recipe;

    assert_ok(invar_recipe_new(&recipe, invar_config_schema()));
    assert_ok(invar_recipe_parse(recipe, "a.ini", recipe_text, sizeof recipe_text - 1));
    assert_ok(invar_recipe_set(recipe, "run", path_below(run, "run"), "--run"));
    assert_ok(invar_recipe_set(recipe, "save", path_below(save, "save"), "--save"));
    assert_ok(invar_config_check(config_of(recipe)));
    assert_ok(invar_train(&summary, config_of(recipe), &options));
    assert_int_equal(summary.last_step, 3);
    invar_recipe_free(recipe);
}

/* ---- replay ---------------------------------------------------------------------------------- */

typedef struct replay_fixture {
    invar_ledger *ledger;
    invar_ledger_summary run;
    invar_recorded_keys keys;
    path_text scratch;
    invar_replay replay;
} replay_fixture;

static void open_fixture(replay_fixture *s, const char *ledger, const invar_recorded_keys *keys,
                         int64_t step)
{
    memset(s, 0, sizeof *s);
    assert_ok(invar_ledger_open(&s->ledger, ledger, &(invar_ledger_options){0}));
    assert_ok(invar_ledger_find(&s->run, s->ledger, NULL));
    if (keys)
        s->keys = *keys; // takes ownership
    else
        assert_ok(invar_recorded_keys_read(&s->keys, s->ledger, ledger, &s->run, step));
    path_below(s->scratch, "scratch");
    assert_ok(invar_held_folder_remove(s->scratch));
    assert_ok(invar_held_folder_make(s->scratch));
    s->replay = (invar_replay){.ledger = s->ledger,
                               .run = &s->run,
                               .keys = &s->keys,
                               .folder = s->scratch,
                               .first_step = step,
                               .step = step};
}

static void close_fixture(replay_fixture *s)
{
    invar_recorded_keys_release(&s->keys);
    invar_ledger_close(s->ledger);
}

static void set_checkpoints(replay_fixture *s, const char *checkpoints)
{
    snprintf(s->keys.checkpoints, sizeof s->keys.checkpoints, "%s", checkpoints);
}

static void test_engine_replay__is_identical(void **state)
{
    invar_replay_result r;
    path_text path;
    replay_fixture s;

    (void)state;
    open_fixture(&s, path_below(path, "run/ledger.db"), NULL, 3);
    assert_ok(invar_replay_run(&r, &s.replay));
    assert_int_equal(r.checkpoint_step, 1);
    assert_int_equal(r.first, 2);
    assert_int_equal(r.last, 3);
    assert_int_equal(r.compared, 2);
    assert_int_equal(r.differs, -1);
    close_fixture(&s);
}

/* ---- checkpoints with valid hashes and one changed weight or moment -------------------------- */

typedef struct tensors {
    invar_checkpoint_tensor items[256];
    int64_t count;
} tensors;

/* Loads a set of tensors with the names and shapes of the recipe's model. */
static void load_set(tensors *t, invar_checkpoint *c, const invar_model *model, const char *set)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        invar_checkpoint_tensor *x = &t->items[t->count++];
        *x = (invar_checkpoint_tensor){set, model->params[i].name, model->params[i].master, NULL};
        x->tensor.data = calloc((size_t)(x->tensor.shape[0] * x->tensor.row_stride), sizeof(float));
        assert_non_null(x->tensor.data);
        assert_ok(invar_checkpoint_load(&x->tensor, c, set, x->name));
    }
}

static void write_changed_checkpoint(const char *to, const char *set, float by)
{
    static const char *const sets[] = {"model", "model.exp_avg", "model.exp_avg_sq"};
    static tensors t;
    invar_checkpoint_content content = {0};
    invar_run_context context;
    invar_checkpoint *c;
    invar_config config;
    path_text path, target;
    replay_fixture s;

    open_fixture(&s, path_below(path, "run/ledger.db"), NULL, 3);
    assert_ok(invar_recorded_keys_to_config(&config, &s.keys));
    assert_ok(invar_run_context_open(&context, &config, INVAR_RUN_CONTEXT_DATA));
    assert_ok(invar_checkpoint_open(&c, path_below(path, "save"),
                                    &(invar_checkpoint_open_options){.step = 1}));
    t.count = 0;
    for (int i = 0; i < 3; i++)
        load_set(&t, c, context.models.actor, sets[i]);
    for (int64_t i = 0; i < t.count; i++)
        if (strcmp(t.items[i].set, set) == 0) {
            ((float *)t.items[i].tensor.data)[3] += by;
            break;
        }
    content.state = invar_checkpoint_state_of(c);
    content.tensors = t.items;
    content.n_tensors = t.count;
    assert_ok(invar_checkpoint_write(NULL, path_below(target, to), &content,
                                     &(invar_checkpoint_options){0}));
    for (int64_t i = 0; i < t.count; i++)
        free(t.items[i].tensor.data);
    invar_checkpoint_close(c);
    invar_run_context_close(&context);
    invar_recipe_free(config.recipe);
    close_fixture(&s);
}

static int64_t first_difference(const char *checkpoints, int64_t step)
{
    invar_replay_result r;
    path_text path, load;
    replay_fixture s;

    open_fixture(&s, path_below(path, "run/ledger.db"), NULL, step);
    set_checkpoints(&s, path_below(load, checkpoints));
    assert_ok(invar_replay_run(&r, &s.replay));
    assert_int_equal(r.checkpoint_step, 1);
    close_fixture(&s);
    return r.differs;
}

static void test_engine_replay__detects_every_changed_tensor(void **state)
{
    (void)state;
    write_changed_checkpoint("same", "model", 0.0f);
    assert_int_equal(first_difference("same", 3), -1);
    write_changed_checkpoint("weight", "model", 1e-6f);
    assert_int_equal(first_difference("weight", 3), 2);
    write_changed_checkpoint("moment", "model.exp_avg",
                             1e-4f); // the gradients of step 2 are equal, its weights are not
    assert_int_equal(first_difference("moment", 2), 2);
    write_changed_checkpoint("square", "model.exp_avg_sq", 1e-4f);
    assert_int_equal(first_difference("square", 2), 2);
}

/* ---- packs ----------------------------------------------------------------------------------- */

static invar_status replay_pack(invar_replay_result *r, const char *path)
{
    path_text unpacked;
    invar_pack pack;
    invar_status status;
    replay_fixture s;

    assert_ok(invar_held_folder_remove(path_below(unpacked, "unpacked")));
    assert_ok(invar_held_folder_make(unpacked));
    assert_ok(invar_pack_read(&pack, path, unpacked));
    open_fixture(&s, pack.ledger, &pack.keys, pack.step);
    status = invar_replay_run(r, &s.replay);
    close_fixture(&s);
    return status;
}

static void pack_from(const char *checkpoints, const char *to, int64_t step)
{
    path_text path, load, out;
    invar_pack_result written;
    replay_fixture s;

    open_fixture(&s, path_below(path, "run/ledger.db"), NULL, step);
    set_checkpoints(&s, path_below(load, checkpoints));
    assert_ok(invar_pack_write(&written, &s.replay, path_below(out, to)));
    assert_int_equal(written.checkpoint_step, step - 1);
    close_fixture(&s);
}

static void test_engine_replay__packs_have_one_step(void **state)
{
    invar_replay_result r;
    path_text path, load;
    invar_pack_result written;
    replay_fixture s;

    (void)state;
    pack_from("save", "good.pack", 2);
    assert_ok(replay_pack(&r, path_below(path, "good.pack")));
    assert_int_equal(r.compared, 1);
    assert_int_equal(r.differs, -1);
    pack_from("save", "made.pack", 3);
    assert_ok(replay_pack(&r, path_below(path, "made.pack")));
    assert_int_equal(r.checkpoint_step, 2);
    assert_int_equal(r.differs, -1);
    write_changed_checkpoint("weight", "model", 1e-6f);
    pack_from("weight", "bad.pack", 2);
    assert_ok(replay_pack(&r, path_below(path, "bad.pack")));
    assert_int_equal(r.compared, 1);
    assert_int_equal(r.differs, 2);
    // a pack needs the state after step 2, which cannot be reproduced from the changed weight
    open_fixture(&s, path_below(path, "run/ledger.db"), NULL, 3);
    set_checkpoints(&s, path_below(load, "weight"));
    assert_fails(invar_pack_write(&written, &s.replay, path_below(path, "none.pack")),
                 INVAR_E_MISMATCH, "step 2, executed again");
    assert_false(invar_path_exists(path));
    close_fixture(&s);
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    train_run();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return invar_held_folder_remove(folder) == INVAR_OK ? 0 : -1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_replay__is_identical),
        cmocka_unit_test(test_engine_replay__detects_every_changed_tensor),
        cmocka_unit_test(test_engine_replay__packs_have_one_step),
    };
    path_text path;

    if (argc ==
        2) { // used by tests/e2e: writes a pack with a step that does not have the recorded bits
        if (set_up(NULL) != 0)
            return 1;
        write_changed_checkpoint("weight", "model", 1e-6f);
        pack_from("weight", "bad.pack", 2);
        return rename(path_below(path, "bad.pack"), argv[1]) != 0 || tear_down(NULL) != 0;
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
