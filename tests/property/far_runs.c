/*
 * far_runs.c - whole runs on a device whose memory the host cannot touch have the CPU's bits.
 *
 * The far backend (tests/far.h) stands in for CUDA: the recipes say device = cuda. Every access of
 * the engine to the device's memory that is no op and no copy ends the program.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/model/model.h"
#include "tests/far.h"
#include "tests/run.h"

const invar_backend *invar_backend_cuda(void)
{
    return invar_far_backend();
}

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/far_runs");
}

/* Extents that every format can have. */
static const run_pair wide[] = {{"hidden-size", "128"},     {"num-attention-heads", "2"},
                                {"num-query-groups", "2"},  {"kv-channels", "64"},
                                {"ffn-hidden-size", "128"}, {NULL, NULL}};

static const run_pair grpo[] = {{"use-kl-loss", "true"},
                                {"kl-loss-coef", "0.1"},
                                {"entropy-coef", "0.01"},
                                {"ref-update-interval", "1"},
                                {"eval-interval", "2"},
                                {"eval-prompt-data", "m task:max"},
                                {"num-steps-per-rollout", "2"},
                                {"log-probs-chunk-size", "3"},
                                {"rollout-stop", "[\"zzz\"]"},
                                {"debug-determinism", "point"},
                                {NULL, NULL}};

static const run_pair experts[] = {{"model-type", "qwen3_moe"},
                                   {"num-layers", "2"},
                                   {"num-experts", "3"},
                                   {"moe-router-topk", "2"},
                                   {"moe-ffn-hidden-size", "128"},
                                   {"use-rollout-routing-replay", "true"},
                                   {"untie-embeddings-and-output-weights", "true"},
                                   {NULL, NULL}};

static const run_pair ppo[] = {{"advantage-estimator", "ppo"},
                               {"recompute-granularity", "full"},
                               {"micro-batch-size", "2"},
                               {"debug-determinism", "full"},
                               {NULL, NULL}};

enum { LISTS = 4 };

/* The run `name` on a device, with the pairs of all lists, later ones over earlier ones. */
static invar_status train(const char *name, const char *device, const char *dtype,
                          const run_pair *const lists[LISTS])
{
    run_pair all[64] = {{"device", device}, {"dtype", dtype}, {"threads", "1"}};
    invar_recipe *recipe;
    invar_status status;
    int count = 3;

    for (int i = 0; i < LISTS; i++)
        for (const run_pair *p = lists[i]; p && p->key; p++)
            if (!run_has(i + 1 < LISTS ? lists[i + 1] : NULL, p->key))
                all[count++] = *p;
    all[count] = (run_pair){NULL, NULL};
    recipe = run_recipe(run_below(name), all, NULL);
    invar_far_begin(0);
    status = run_train(recipe);
    assert_int_equal(invar_far_counted().live, 0); // all was given back
    assert_int_equal(invar_far_counted().opens, 0);
    assert_true((invar_far_counted().ops > 0) == (strcmp(device, "cuda") == 0));
    invar_recipe_free(recipe);
    return status;
}

static run_memory trained(const char *name, const char *device, const char *dtype,
                          const run_pair *const lists[LISTS])
{
    if (train(name, device, dtype, lists) != INVAR_OK)
        fail_msg("%s: %s", name, invar_error_last()->message);
    return run_memory_of(name);
}

/* ---- chains ---------------------------------------------------------------------------------- */

static void check_chain(const char *name, const char *dtype, const run_pair *a, const run_pair *b)
{
    const run_pair *const lists[LISTS] = {wide, a, b, NULL};
    char far_name[80];
    run_memory cpu, far;

    (void)snprintf(far_name, sizeof far_name, "%s.%s.far", name, dtype);
    far = trained(far_name, "cuda", dtype, lists);
    (void)snprintf(far_name, sizeof far_name, "%s.%s.cpu", name, dtype);
    cpu = trained(far_name, "cpu", dtype, lists);
    assert_true(cpu.last >= 1);
    assert_true(invar_digest_equal(&cpu.identity, &far.identity)); // where it runs is free
    if (!run_same(&cpu, &far))
        fail_msg("%s in %s: other bits where memory is far", name, dtype);
}

static void test_far_runs__dense_has_the_chain_of_the_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_FORMAT_COUNT; i++)
        check_chain("grpo", invar_format_name((invar_format)i), grpo, NULL);
}

static void test_far_runs__experts_have_the_chain_of_the_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_FORMAT_COUNT; i++)
        check_chain("experts", invar_format_name((invar_format)i), experts, i % 2 ? ppo : grpo);
}

static void test_far_runs__a_critic_has_the_chain_of_the_cpu(void **state)
{
    (void)state;
    check_chain("ppo", "fp32", ppo, NULL);
    check_chain("ppo", "bf16", ppo, NULL);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void assert_same_file(const char *a, const char *b)
{
    char *text[2];
    size_t bytes[2];

    assert_ok(invar_file_read(&text[0], &bytes[0], a, 1 << 24));
    assert_ok(invar_file_read(&text[1], &bytes[1], b, 1 << 24));
    assert_true(bytes[0] == bytes[1] && bytes[0] > 0);
    assert_memory_equal(text[0], text[1], bytes[0]);
    invar_free(text[0]);
    invar_free(text[1]);
}

static void test_far_runs__dumps_what_the_cpu_dumps(void **state)
{
    static const char *const points[] = {
        "layer.1.expert.x",    "layer.0.route",           "layer.0.q", "head.dlogp", "train.logp",
        "grad.lm_head.weight", "weight.model.norm.weight"};
    const run_pair dump[] = {{"debug-dump", "*"}, {NULL, NULL}};
    const run_pair *const lists[LISTS] = {wide, experts, dump, NULL};

    (void)state;
    (void)trained("dump.cpu", "cpu", "bf16", lists);
    (void)trained("dump.far", "cuda", "bf16", lists);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        char a[100], b[100];

        (void)snprintf(a, sizeof a, "dump.cpu/dump/step_1/%s.npy", points[i]);
        (void)snprintf(b, sizeof b, "dump.far/dump/step_1/%s.npy", points[i]);
        assert_same_file(run_below(a), run_below(b));
    }
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* A run that goes from device to device has the chain of one that stays. */
static void test_far_runs__goes_on_on_another_device(void **state)
{
    static const char *const devices[] = {"cuda", "cpu", "cuda"};
    const run_pair places[] = {{"save", run_below("moving.ckpt")},
                               {"load", run_below("moving.ckpt")},
                               {"save-interval", "1"},
                               {"num-rollout", "3"},
                               {"save-hf", run_below("moving.hf/{rollout_id}")},
                               {NULL, NULL}};
    const run_pair stays[] = {{"num-rollout", "3"}, {NULL, NULL}};
    const run_pair *const one[LISTS] = {wide, experts, ppo, stays};
    run_memory whole = trained("staying", "cpu", "bf16", one), moved;

    (void)state;
    for (int i = 0; i < 3; i++) {
        run_pair part[8];
        const run_pair *const lists[LISTS] = {wide, experts, ppo, part};

        memcpy(part, places, sizeof places);
        part[5] = (run_pair){"debug-exit-after-rollout", "1"};
        part[6] = (run_pair){NULL, NULL};
        moved = trained("moving", devices[i], "bf16", lists);
        assert_int_equal(moved.last, i);
    }
    assert_true(run_same(&whole, &moved));
    assert_true(invar_path_exists(run_below("moving.hf/2/model.safetensors")));
}

/* A checkpoint is written while the run goes on, and has the bytes of one that it waited for. */
static void test_far_runs__a_checkpoint_behind_the_run_is_the_same(void **state)
{
    static const char *const files[] = {"model.safetensors", "model.exp_avg.safetensors",
                                        "critic.exp_avg_sq.safetensors", "config.json"};
    static const char *const ways[] = {"cpu", "behind", "waits", "offloaded"};
    run_memory memory[4];

    (void)state;
    for (int i = 0; i < 4; i++) {
        run_pair places[] = {{"save", NULL},
                             {"save-interval", "1"},
                             {"async-save", i == 2 ? "false" : "true"},
                             {"optimizer-cpu-offload", i == 3 ? "true" : "false"},
                             {"num-rollout", "3"},
                             {NULL, NULL}};
        const run_pair *const lists[LISTS] = {wide, experts, ppo, places};
        char save[32], run[32];

        (void)snprintf(save, sizeof save, "save.%s", ways[i]);
        (void)snprintf(run, sizeof run, "run.%s", ways[i]);
        places[0].value = run_below(save);
        memory[i] = trained(run, i > 0 ? "cuda" : "cpu", "bf16", lists);
    }
    for (int i = 1; i < 4; i++) {
        assert_true(run_same(&memory[0], &memory[i]));
        for (int step = 0; step < 3; step++)
            for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
                char a[100], b[100];

                (void)snprintf(a, sizeof a, "save.cpu/iter_%07d/%s", step, files[f]);
                (void)snprintf(b, sizeof b, "save.%s/iter_%07d/%s", ways[i], step, files[f]);
                assert_same_file(run_below(a), run_below(b));
            }
    }
}

/* Moments in the host's memory: where they are is free, and may change from life to life. */
static void test_far_runs__offloaded_moments_change_nothing(void **state)
{
    static const char *const offload[] = {"true", "false", "true"};
    const run_pair stays[] = {{"num-rollout", "3"}, {NULL, NULL}};
    const run_pair *const one[LISTS] = {wide, experts, ppo, stays};
    const run_pair away[] = {{"num-rollout", "3"}, {"optimizer-cpu-offload", "true"}, {NULL, NULL}};
    const run_pair *const other[LISTS] = {wide, experts, ppo, away};
    run_memory whole = trained("resident", "cuda", "mxfp8", one), moved;

    (void)state;
    moved = trained("offloaded", "cuda", "mxfp8", other);
    assert_true(run_same(&whole, &moved));
    for (int i = 0; i < 3; i++) {
        const run_pair part[] = {{"save", run_below("offload.ckpt")},
                                 {"load", run_below("offload.ckpt")},
                                 {"save-interval", "1"},
                                 {"num-rollout", "3"},
                                 {"debug-exit-after-rollout", "1"},
                                 {"optimizer-cpu-offload", offload[i]},
                                 {NULL, NULL}};
        const run_pair *const lists[LISTS] = {wide, experts, ppo, part};

        moved = trained("changing", "cuda", "mxfp8", lists);
        assert_int_equal(moved.last, i);
    }
    assert_true(run_same(&whole, &moved));
}

/* In the middle of the run something is in the way of its first checkpoint. */
static void block_save(void *payload, const invar_train_progress *progress)
{
    char path[500];

    (void)snprintf(path, sizeof path, "%s/iter_0000000.tmp", *(const char **)payload);
    if (progress->measured && progress->step == 1)
        assert_ok(invar_file_write(path, "", 0));
}

static void test_far_runs__a_checkpoint_behind_the_run_fails_like_any(void **state)
{
    static const char *const ways[] = {"false", "true"};
    invar_error errors[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *save = run_below("blocked.ckpt");
        const run_pair own[] = {{"device", "cuda"},      {"save", save},
                                {"load", save},          {"save-interval", "1"},
                                {"num-rollout", "3"},    {"num-steps-per-rollout", "1"},
                                {"async-save", ways[i]}, {NULL, NULL}};
        invar_recipe *recipe = run_recipe(run_below("blocked"), own, NULL);
        invar_train_options options = {.until = -1, .progress = block_save, .payload = &save};
        invar_train_summary summary;
        invar_status status;
        run_memory memory;

        invar_far_begin(0);
        status = invar_train(&summary, recipe, &options);
        assert_int_equal(status, INVAR_E_INVALID);
        invar_error_take(&errors[i]);
        assert_int_equal(invar_far_counted().live, 0);
        assert_true(run_remember(&memory, run_below("blocked"))); // a ledger that verifies
        // the reason is gone: it begins again, since there was no checkpoint, and ends
        assert_ok(invar_folder_remove(save));
        assert_ok(run_train(recipe));
        assert_true(run_remember(&memory, run_below("blocked")));
        assert_int_equal(memory.last, 2);
        invar_recipe_free(recipe);
        assert_ok(invar_folder_remove(save));
        assert_ok(invar_folder_remove(run_below("blocked")));
    }
    assert_string_equal(errors[0].message, errors[1].message);
    assert_int_equal(errors[0].status, errors[1].status);
    assert_int_equal(errors[0].native, errors[1].native);
}

/* Weights of another run's checkpoint and of a Hugging Face folder. */
static void test_far_runs__starts_from_weights(void **state)
{
    const run_pair save[] = {{"save", run_below("teacher.ckpt")},
                             {"save-hf", run_below("teacher.hf/{rollout_id}")},
                             {NULL, NULL}};
    const run_pair *const first[LISTS] = {wide, experts, save, NULL};
    const run_pair from[2][2] = {{{"ref-load", run_below("teacher.ckpt")}, {NULL, NULL}},
                                 {{"ref-load", run_below("teacher.hf/1")}, {NULL, NULL}}};

    (void)state;
    (void)trained("teacher", "cuda", "fp32", first);
    for (int i = 0; i < 2; i++) {
        const run_pair *const lists[LISTS] = {wide, experts, from[i], NULL};
        char name[2][32];
        run_memory cpu, far;

        (void)snprintf(name[0], sizeof name[0], "from.%d.cpu", i);
        (void)snprintf(name[1], sizeof name[1], "from.%d.far", i);
        cpu = trained(name[0], "cpu", "mxfp8", lists);
        far = trained(name[1], "cuda", "mxfp8", lists);
        assert_true(run_same(&cpu, &far));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_far_runs__dense_has_the_chain_of_the_cpu),
        cmocka_unit_test(test_far_runs__experts_have_the_chain_of_the_cpu),
        cmocka_unit_test(test_far_runs__a_critic_has_the_chain_of_the_cpu),
        cmocka_unit_test(test_far_runs__dumps_what_the_cpu_dumps),
        cmocka_unit_test(test_far_runs__goes_on_on_another_device),
        cmocka_unit_test(test_far_runs__a_checkpoint_behind_the_run_is_the_same),
        cmocka_unit_test(test_far_runs__offloaded_moments_change_nothing),
        cmocka_unit_test(test_far_runs__a_checkpoint_behind_the_run_fails_like_any),
        cmocka_unit_test(test_far_runs__starts_from_weights),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
