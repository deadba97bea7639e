/*
 * admission.c - tests of the admission of runs: each rule rejects once its facts are known.
 *
 * Most cases check the same recipe twice: with fewer facts, which must be admitted, and with the
 * fact that the rule needs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/admission.h"

#include "engine/config/config.h"
#include "engine/run/run_dir/disk.h"
#include "tests/support.h"
#include "tests/unit/engine/config/config_of.h"

typedef struct key_value {
    const char *key, *value;
} key_value;

static const key_value base_keys[] = {{"num-layers", "2"},
                                      {"hidden-size", "32"},
                                      {"ffn-hidden-size", "64"},
                                      {"num-attention-heads", "2"},
                                      {"prompt-data", "task:max"},
                                      {"rollout-batch-size", "4"},
                                      {"n-samples-per-prompt", "2"},
                                      {"rollout-max-response-len", "4"},
                                      {"rm-type", "overlap"},
                                      {"numerics", "ieee"},
                                      {NULL, NULL}};

static const invar_model_spec dense = {.family = INVAR_FAMILY_QWEN3,
                                       .vocab = 64,
                                       .hidden = 32,
                                       .layers = 2,
                                       .attention.heads = 2,
                                       .attention.kv_heads = 2,
                                       .attention.head_dim = 16,
                                       .intermediate = 64,
                                       .max_positions = 64,
                                       .norm_eps = 1e-6f,
                                       .tied = true,
                                       .attention.qk_norm = true,
                                       .rope = {.theta = 1e4},
                                       .logical_tp = 1,
                                       .logical_etp = 1};

/* Returns the base recipe with further keys, which end with a NULL key. */
static invar_recipe *recipe_of(const key_value *pairs)
{
    invar_recipe *recipe = NULL;

    assert_ok(invar_recipe_new(&recipe, invar_config_schema()));
    for (const key_value *p = base_keys; p->key; p++)
        assert_ok(invar_recipe_set(recipe, p->key, p->value, "test"));
    for (; pairs->key; pairs++)
        assert_ok(invar_recipe_set(recipe, pairs->key, pairs->value, "test"));
    return recipe;
}

/* Checks that the recipe is admitted with the facts `before` and rejected with `facts`. */
static void assert_refused_by(const key_value *keys, invar_admission before, invar_admission facts,
                              const char *why)
{
    invar_recipe *recipe = recipe_of(keys);

    before.config = facts.config = config_of(recipe);
    assert_ok(invar_admission_check(&before));
    assert_fails(invar_admission_check(&facts), INVAR_E_INVALID, why);
    invar_recipe_free(recipe);
}

static void test_admission__refuses_recipe_alone(void **state)
{
    const key_value keys[] = {{"num-rollout", "2"}, {"num-epoch", "2"}, {NULL, NULL}};
    invar_recipe *recipe = recipe_of(keys);

    (void)state;
    assert_fails(invar_admission_check(&(invar_admission){.config = config_of(recipe)}),
                 INVAR_E_INVALID, "give one");
    invar_recipe_free(recipe);
}

/* debug-dump: names of no point, also in a list, and layers that the model does not have. */
static void test_admission__refuses_points_of_no_step(void **state)
{
    static const char *const bad[] = {
        "logp",     "train.logpp", "layers.0.q",   "train.logp,weights.x",
        "gradnorm", "x*",          "rollout.logps"};
    static const char *const good[] = {
        "*",        "train.logp", "grad.*,layer.1.q", "l*",       "*.logp",     "rollout.layer.*",
        "critic.*", "embed",      "ref.logp",         "layer.1*", "rollout.t*", "grad_norm"};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const key_value keys[] = {{"num-rollout", "2"}, {"debug-dump", bad[i]}, {NULL, NULL}};
        invar_recipe *recipe = recipe_of(keys);
        assert_fails(invar_admission_check(&(invar_admission){.config = config_of(recipe)}),
                     INVAR_E_INVALID, "debug-dump: no point of the step is called");
        invar_recipe_free(recipe);
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        const key_value keys[] = {{"num-rollout", "2"}, {"debug-dump", good[i]}, {NULL, NULL}};
        invar_recipe *recipe = recipe_of(keys);
        assert_ok(invar_admission_check(
            &(invar_admission){.config = config_of(recipe), .actor = &dense}));
        invar_recipe_free(recipe);
    }
    for (int i = 0; i < 2; i++) {
        const key_value keys[] = {{"num-rollout", "2"},
                                  {"debug-dump", i ? "rollout.layer.2.q" : "layer.12.*"},
                                  {NULL, NULL}};
        assert_refused_by(keys, (invar_admission){.ranks = 1}, (invar_admission){.actor = &dense},
                          "the model has layers 0 to 1");
    }
}

static void test_admission__refuses_by_number_of_ranks(void **state)
{
    const key_value divided[] = {
        {"num-rollout", "2"}, {"pipeline-model-parallel-size", "2"}, {NULL, NULL}};
    const key_value recorded[] = {
        {"num-rollout", "2"}, {"rollout-lag", "1"}, {"rollout-schedule", "recorded"}, {NULL, NULL}};

    (void)state;
    assert_refused_by(divided, (invar_admission){.ranks = 0}, (invar_admission){.ranks = 1},
                      "start with --ranks 2");
    assert_refused_by(divided, (invar_admission){.ranks = 2}, (invar_admission){.ranks = 3},
                      "needs a multiple of 2");
    assert_refused_by(divided, (invar_admission){.ranks = 1, .replay = true},
                      (invar_admission){.ranks = 1}, "start with --ranks 2");
    assert_refused_by(recorded, (invar_admission){.ranks = 1}, (invar_admission){.ranks = 2},
                      "give rollout-record");
}

static void test_admission__refuses_by_model(void **state)
{
    const key_value experts[] = {{"num-rollout", "2"}, {"logical-etp", "2"}, {NULL, NULL}};
    const key_value layers[] = {
        {"num-rollout", "2"}, {"pipeline-model-parallel-size", "4"}, {NULL, NULL}};
    invar_model_spec shallow = dense;
    const key_value stages[] = {
        {"num-rollout", "2"}, {"pipeline-model-parallel-size", "2"}, {NULL, NULL}};
    const key_value moving_reference[] = {
        {"num-rollout", "2"}, {"use-kl-loss", "true"}, {"ref-update-interval", "1"}, {NULL, NULL}};

    (void)state;
    assert_refused_by(experts, (invar_admission){.ranks = 1},
                      (invar_admission){.ranks = 1, .actor = &dense}, "the model has none");
    assert_refused_by(layers, (invar_admission){.ranks = 4},
                      (invar_admission){.ranks = 4, .actor = &dense}, "only 2 layers");
    shallow.layers = 1;
    assert_refused_by(stages, (invar_admission){.ranks = 2, .actor = &dense},
                      (invar_admission){.ranks = 2, .actor = &dense, .critic = &shallow},
                      "only 1 layers; this is the critic (critic-load)");
    assert_refused_by(moving_reference, (invar_admission){.actor = &dense},
                      (invar_admission){.actor = &dense, .reference = &dense},
                      "a reference of another shape");
}

static void test_admission__refuses_by_data(void **state)
{
    const key_value epochs[] = {{"num-epoch", "1"}, {NULL, NULL}};

    (void)state;
    assert_refused_by(epochs, (invar_admission){.data_known = true, .prompts = 4},
                      (invar_admission){.data_known = true, .prompts = 3}, "give num-rollout");
    assert_refused_by(epochs, (invar_admission){.prompts = 3},
                      (invar_admission){.data_known = true, .prompts = 3}, "give num-rollout");
}

/* Only required checkpoints need space, less the allowed error of the estimate. */
static void test_admission__refuses_by_disk(void **state)
{
    const key_value keys[] = {{"num-rollout", "2"}, {NULL, NULL}};
    invar_disk disk = {.save = "/x/checkpoints",
                       .checkpoint = 3 << 20,
                       .max_checkpoints = 6,
                       .by_time = 2,
                       .n_remaining = 4,
                       .n_required = 4,
                       .keep = 3};
    invar_recipe *recipe = recipe_of(keys);
    invar_admission facts = {.config = config_of(recipe), .disk = &disk};

    (void)state;
    assert_int_equal(invar_disk_bytes(&disk, disk.n_remaining), 12 << 20);
    disk.free = -1;
    assert_ok(invar_admission_check(&facts));
    disk.free = (12 << 20) - 4 * INVAR_DISK_SLACK;
    assert_ok(invar_admission_check(&facts));
    disk.free--;
    assert_fails(invar_admission_check(&facts), INVAR_E_IO,
                 "/x/checkpoints: the disk has 12.0 MiB free, and the run will add 4 checkpoints "
                 "of 3.0 MiB at one time: give another folder with save, set a smaller "
                 "keep-checkpoints, or remove there the folders iter_*");
    disk.keep = 1;
    assert_fails(invar_admission_check(&facts), INVAR_E_IO, "with save, or remove there");
    facts.replay = true;
    assert_ok(invar_admission_check(&facts));
    facts.replay = false;
    disk.n_remaining = disk.n_required = 0; // no checkpoint remains to be saved
    disk.free = 0;
    assert_ok(invar_admission_check(&facts));
    disk.n_remaining = INT64_MAX;
    assert_int_equal(invar_disk_bytes(&disk, disk.n_remaining), INT64_MAX);
    invar_recipe_free(recipe);
}

/* Space for the next checkpoint is enough, because the user may move checkpoints away. */
static void test_admission__the_first_checkpoint_is_enough(void **state)
{
    const key_value keys[] = {{"num-rollout", "2"}, {NULL, NULL}};
    invar_disk disk = {.save = "/x/checkpoints",
                       .checkpoint = 3 << 20,
                       .max_checkpoints = 100000000,
                       .n_remaining = 100000000,
                       .n_required = 1,
                       .free = 3 << 20};
    invar_recipe *recipe = recipe_of(keys);
    invar_admission facts = {.config = config_of(recipe), .disk = &disk};

    (void)state;
    assert_ok(invar_admission_check(&facts));
    assert_false(invar_disk_fits(&disk, disk.n_remaining));
    disk.free = 1 << 20;
    assert_fails(invar_admission_check(&facts), INVAR_E_IO,
                 "the run will add 1 checkpoint of 3.0 MiB at one time: give another folder with "
                 "save, or remove there the folders iter_*");
    invar_recipe_free(recipe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_admission__refuses_recipe_alone),
        cmocka_unit_test(test_admission__refuses_points_of_no_step),
        cmocka_unit_test(test_admission__refuses_by_number_of_ranks),
        cmocka_unit_test(test_admission__refuses_by_model),
        cmocka_unit_test(test_admission__refuses_by_data),
        cmocka_unit_test(test_admission__refuses_by_disk),
        cmocka_unit_test(test_admission__the_first_checkpoint_is_enough),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
