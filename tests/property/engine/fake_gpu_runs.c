/*
 * fake_gpu_runs.c - whole runs on a device whose memory the host cannot touch have the CPU's bits.
 *
 * The far backend (tests/device/fake_gpu.h) stands in for CUDA: the recipes say device = cuda.
 * Every access of the engine to the device's memory that is no op and no copy ends the program.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "engine/model/model.h"
#include "tests/device/fake_gpu.h"
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

static const run_pair ppo[] = {{"advantage-estimator", "ppo"}, {"recompute-granularity", "full"},
                               {"micro-batch-size", "2"},      {"rollout-max-response-len", "6"},
                               {"log-probs-chunk-size", "3"},  {"debug-determinism", "full"},
                               {"debug-stats", "true"},        {NULL, NULL}};

enum { LISTS = 4 };

enum { STILL = 100 }; /* more milliseconds than a run leaves its device alone */

static int64_t delay; /* of the coming runs' copies beside them: see invar_far_delay */

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
    invar_far_delay(delay);
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

/* ---- chains and statistics ------------------------------------------------------------------- */

static invar_status take_stat(void *payload, const char *const *columns,
                              const invar_ledger_value *values, int count)
{
    (void)columns;
    for (int i = 0; values && i < count; i++)
        invar_hasher_update(payload, &values[i].integer, sizeof values[i].integer);
    return INVAR_OK;
}

static invar_digest stats_of(const char *name)
{
    invar_hasher hasher;
    invar_digest all;

    invar_hasher_init(&hasher);
    run_select(name,
               "SELECT step, ord, nans, infs, absmax_bits, l2_bits FROM stat ORDER BY step, ord",
               take_stat, &hasher);
    invar_hasher_final(&all, &hasher);
    return all;
}

static invar_status take_text(void *payload, const char *const *columns,
                              const invar_ledger_value *values, int count)
{
    (void)columns;
    for (int i = 0; values && i < count; i++)
        invar_hasher_update(payload, values[i].data, values[i].bytes);
    return INVAR_OK;
}

/* Names, inputs and digests above level 0: no part of the chain, nor of what was logged. */
static invar_digest points_of(const char *name)
{
    invar_hasher hasher;
    invar_digest all;

    assert_true(run_asked(name, "SELECT count(*) FROM digests WHERE level > 0") > 0.0);
    invar_hasher_init(&hasher);
    run_select(name,
               "SELECT name, cast(inputs AS TEXT), hash FROM digests WHERE level > 0 "
               "ORDER BY step, ord",
               take_text, &hasher);
    invar_hasher_final(&all, &hasher);
    return all;
}

static void check_chain(const char *name, const char *dtype, const run_pair *a, const run_pair *b)
{
    const run_pair *const lists[LISTS] = {wide, a, b, NULL};
    char far_name[80], cpu_name[80];
    invar_digest far_stats, cpu_stats, far_points, cpu_points;
    run_memory cpu, far;

    (void)snprintf(far_name, sizeof far_name, "%s.%s.far", name, dtype);
    far = trained(far_name, "cuda", dtype, lists);
    (void)snprintf(cpu_name, sizeof cpu_name, "%s.%s.cpu", name, dtype);
    cpu = trained(cpu_name, "cpu", dtype, lists);
    far_stats = stats_of(far_name);
    cpu_stats = stats_of(cpu_name);
    assert_true(invar_digest_equal(&far_stats, &cpu_stats));
    // every point but tokens, choices of experts and what is quantized
    assert_true((run_asked(far_name, "SELECT count(*) FROM stat WHERE step = 0") > 40.0) ==
                (run_has(a, "debug-stats") || run_has(b, "debug-stats")));
    far_points = points_of(far_name);
    cpu_points = points_of(cpu_name);
    assert_true(cpu.last >= 1);
    assert_true(invar_digest_equal(&cpu.identity, &far.identity)); // where it runs is free
    if (!run_same(&cpu, &far))
        fail_msg("%s in %s: other bits where memory is far", name, dtype);
    if (!invar_digest_equal(&cpu_points, &far_points))
        fail_msg("%s in %s: other digests of points where memory is far", name, dtype);
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

/* How a run that saves after each of its three rollouts goes about it. */
typedef struct way {
    const char *name, *device, *async, *offload;
} way;

/* The state after each step has the bytes of the CPU's. */
static void check_files(const char *name, const char *how, const char *const *files)
{
    for (int step = 0; step < 3; step++)
        for (const char *const *f = files; *f; f++) {
            char a[100], b[100];

            (void)snprintf(a, sizeof a, "%s.cpu.save/iter_%07d/%s", name, step, *f);
            (void)snprintf(b, sizeof b, "%s.%s.save/iter_%07d/%s", name, how, step, *f);
            assert_same_file(run_below(a), run_below(b));
        }
}

/*
 * A checkpoint is copied and written while the run goes on, and has the bytes of one that it waited
 * for. The copies come as late as they may: had something changed what is saved without waiting for
 * them, they would have other bytes.
 */
static void check_saves(const char *name, const run_pair *own, const char *const *files)
{
    static const way ways[] = {{"cpu", "cpu", "true", "false"},
                               {"behind", "cuda", "true", "false"},
                               {"waits", "cuda", "false", "false"},
                               {"offloaded", "cuda", "true", "true"}};
    run_memory first = {0}, memory;

    delay = STILL;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        run_pair places[] = {{"save", NULL},
                             {"save-interval", "1"},
                             {"async-save", ways[i].async},
                             {"optimizer-cpu-offload", ways[i].offload},
                             {"num-rollout", "3"},
                             {NULL, NULL}};
        const run_pair *const lists[LISTS] = {wide, experts, own, places};
        char run[50], save[60];

        (void)snprintf(run, sizeof run, "%s.%s", name, ways[i].name);
        (void)snprintf(save, sizeof save, "%s.save", run);
        places[0].value = run_below(save);
        memory = trained(run, ways[i].device, "bf16", lists);
        if (i == 0)
            first = memory;
        assert_true(run_same(&first, &memory));
        check_files(name, ways[i].name, files);
    }
    delay = 0;
}

static void test_far_runs__a_checkpoint_behind_the_run_is_the_same(void **state)
{
    static const char *const of_critic[] = {"model.safetensors",  "model.exp_avg.safetensors",
                                            "critic.safetensors", "critic.exp_avg_sq.safetensors",
                                            "config.json",        NULL};
    static const char *const of_actor[] = {"model.safetensors", "model.exp_avg.safetensors",
                                           "model.exp_avg_sq.safetensors", "reference.safetensors",
                                           NULL};
    static const char *const of_reset[] = {"model.safetensors", "model.exp_avg.safetensors",
                                           "model.exp_avg_sq.safetensors", NULL};
    static const run_pair moving[] = {{"use-kl-loss", "true"},
                                      {"kl-loss-coef", "0.1"},
                                      {"ref-update-interval", "2"},
                                      {NULL, NULL}};
    static const run_pair reset[] = {{"reset-optimizer-states", "true"}, {NULL, NULL}};

    (void)state;
    check_saves("critic", ppo, of_critic);
    check_saves("actor", moving, of_actor);
    check_saves("reset", reset, of_reset);
}

/* ---- one checkpoint behind the back of a device ---------------------------------------------- */

enum { VALUES = 300 };

typedef struct scene {
    invar_device dev;
    void *values; /* (VALUES) of the device */
    invar_checkpoint_writer *writer;
    const char *save;
    invar_checkpoint_state state;
    invar_checkpoint_tensor tensor;
    invar_checkpoint_content content;
} scene;

static void set_values(scene *s, float value)
{
    float values[VALUES];

    for (int i = 0; i < VALUES; i++)
        values[i] = value + (float)i;
    assert_ok(invar_device_upload(&s->dev, s->values, values, sizeof values));
}

static void scene_begin(scene *s, const char *save)
{
    *s = (scene){.dev = {.backend = invar_far_backend()}, .save = run_below(save)};
    invar_far_begin(0);
    assert_ok(invar_device_open(&s->dev));
    assert_ok(invar_device_alloc(&s->dev, &s->values, VALUES * sizeof(float), "values"));
    s->tensor = (invar_checkpoint_tensor){
        "model", "x", invar_tensor_1d(s->values, INVAR_DTYPE_F32, VALUES), &s->dev};
    s->content =
        (invar_checkpoint_content){.state = &s->state, .tensors = &s->tensor, .n_tensors = 1};
    assert_ok(invar_checkpoint_writer_new(&s->writer, &s->dev));
}

static void scene_end(scene *s)
{
    invar_checkpoint_writer_free(s->writer);
    invar_device_free(&s->dev, s->values);
    invar_device_close(&s->dev);
    assert_int_equal(invar_far_counted().opens, 0);
}

/* What becomes of a state that is changed while it is saved. */
static invar_status save_and_change(scene *s, bool waits)
{
    float loaded[VALUES];
    invar_tensor into = invar_tensor_1d(loaded, INVAR_DTYPE_F32, VALUES);
    invar_checkpoint *c;
    invar_status status;

    set_values(s, 1.0f);
    invar_far_delay(waits ? STILL : INT64_MAX);
    assert_ok(invar_checkpoint_writer_begin(s->writer, s->save, &s->content, NULL));
    if (waits)
        invar_checkpoint_writer_await_copy(s->writer);
    assert_true(invar_checkpoint_writer_copying(s->writer) == !waits);
    set_values(s, 2.0f);
    invar_far_delay(0);
    assert_ok(invar_checkpoint_writer_finish(NULL, s->writer));
    assert_ok(invar_checkpoint_open(&c, s->save, NULL));
    status = invar_checkpoint_load(&into, c, "model", "x");
    invar_checkpoint_close(c);
    if (status == INVAR_OK)
        assert_true(loaded[0] == 1.0f && loaded[VALUES - 1] == (float)VALUES);
    return status;
}

/* The control of the tests above: without a wait the copy has something else. */
static void test_far_runs__a_change_waits_for_the_copy(void **state)
{
    scene s;

    (void)state;
    scene_begin(&s, "changed.save");
    assert_ok(save_and_change(&s, true));
    assert_fails(save_and_change(&s, false), INVAR_E_CORRUPT, "x");
    assert_ok(save_and_change(&s, true));
    scene_end(&s);
}

/* The device is lost while the thread copies: no checkpoint, and the next one is made as ever. */
static void test_far_runs__a_copy_fails_its_checkpoint(void **state)
{
    scene s;

    (void)state;
    scene_begin(&s, "failed.save");
    set_values(&s, 1.0f);
    invar_far_delay(INT64_MAX);
    assert_ok(invar_checkpoint_writer_begin(s.writer, s.save, &s.content, NULL));
    invar_far_lose(1, false);
    invar_far_delay(0);
    invar_checkpoint_writer_await_copy(s.writer);
    invar_far_lose(0, false);
    assert_fails(invar_checkpoint_writer_finish(NULL, s.writer), INVAR_E_CUDA,
                 "the device is lost");
    assert_false(invar_path_exists(s.save));
    assert_ok(save_and_change(&s, true));
    // one that is given up while it is copied
    invar_far_delay(STILL);
    assert_ok(invar_checkpoint_writer_begin(s.writer, s.save, &s.content, NULL));
    scene_end(&s);
}

/* ---- failures behind the run ----------------------------------------------------------------- */

static pthread_t run_thread;

/* No other thread gets a block as large as a state. */
static void *refuse_others(size_t bytes, void *payload)
{
    void *block;

    (void)payload;
    if (bytes > 1 << 16 && !pthread_equal(pthread_self(), run_thread))
        return NULL;
    return posix_memalign(&block, INVAR_ALIGN, bytes) == 0 ? block : NULL;
}

static void free_block(void *block, void *payload)
{
    (void)payload;
    free(block);
}

/* The host has no memory for the copy: the run ends with that, and goes on where there is some. */
static void test_far_runs__a_copy_without_room_ends_the_run(void **state)
{
    const invar_allocator refusing = {refuse_others, free_block, NULL};
    const run_pair places[] = {{"save", run_below("short.save")},
                               {"load", run_below("short.save")},
                               {"save-interval", "1"},
                               {"num-rollout", "3"},
                               {NULL, NULL}};
    const run_pair *const lists[LISTS] = {wide, places, NULL, NULL};
    const run_pair three[] = {{"num-rollout", "3"}, {NULL, NULL}};
    const run_pair *const alone[LISTS] = {wide, three, NULL, NULL};
    run_memory whole = trained("long", "cpu", "bf16", alone), memory;

    (void)state;
    run_thread = pthread_self();
    invar_allocator_set(&refusing);
    assert_fails(train("short", "cuda", "bf16", lists), INVAR_E_NOMEM,
                 "the copy that a checkpoint is written from: no memory for");
    invar_allocator_set(NULL);
    assert_true(run_remember(&memory, run_below("short"))); // a ledger that verifies
    assert_false(invar_path_exists(run_below("short.save/iter_0000000")));
    memory = trained("short", "cuda", "bf16", lists);
    assert_true(run_same(&whole, &memory));
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
        assert_ok(invar_held_folder_remove(save));
        assert_ok(run_train(recipe));
        assert_true(run_remember(&memory, run_below("blocked")));
        assert_int_equal(memory.last, 2);
        invar_recipe_free(recipe);
        assert_ok(invar_held_folder_remove(save));
        assert_ok(invar_held_folder_remove(run_below("blocked")));
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
        cmocka_unit_test(test_far_runs__a_change_waits_for_the_copy),
        cmocka_unit_test(test_far_runs__a_copy_fails_its_checkpoint),
        cmocka_unit_test(test_far_runs__a_copy_without_room_ends_the_run),
        cmocka_unit_test(test_far_runs__offloaded_moments_change_nothing),
        cmocka_unit_test(test_far_runs__a_checkpoint_behind_the_run_fails_like_any),
        cmocka_unit_test(test_far_runs__starts_from_weights),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
