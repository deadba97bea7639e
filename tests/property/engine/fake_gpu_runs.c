/*
 * fake_gpu_runs.c - complete runs on memory that the host cannot access have the bits of the CPU.
 *
 * The fake GPU (tests/device/fake_gpu.h) stands in for CUDA: the recipes say device = cuda. An
 * access of the engine to device memory other than by an op or a copy ends the program. Chains,
 * points, statistics, dumps, checkpoints and restarts on another device are compared with runs on
 * the CPU. Control of the asynchronous checkpoints: a tensor that is changed before it was copied
 * makes the checkpoint unreadable.
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
#include "tests/unit/engine/config/config_of.h"

const invar_backend *invar_backend_cuda(void)
{
    return invar_fake_gpu_backend();
}

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/far_runs");
}

/* Sizes that every format supports. */
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

/* Longest time in milliseconds that a run makes no call to its device. */
enum { MAX_IDLE_MS = 100 };

static int64_t delay; /* delay of the next runs' copies in milliseconds, see invar_fake_gpu_delay */

/* Trains the run `name` on a device. The pairs of later lists override those of earlier ones. */
static invar_status train_run(const char *name, const char *device, const char *dtype,
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
    recipe = run_recipe(run_path(name), all, NULL);
    invar_fake_gpu_begin(0);
    invar_fake_gpu_delay(delay);
    status = run_train(recipe);
    assert_int_equal(invar_fake_gpu_counted().live, 0); // all device memory was freed
    assert_int_equal(invar_fake_gpu_counted().opens, 0);
    assert_true((invar_fake_gpu_counted().ops > 0) == (strcmp(device, "cuda") == 0));
    invar_recipe_free(recipe);
    return status;
}

static run_digests train_ok(const char *name, const char *device, const char *dtype,
                            const run_pair *const lists[LISTS])
{
    if (train_run(name, device, dtype, lists) != INVAR_OK)
        fail_msg("%s: %s", name, invar_error_last()->message);
    return run_digests_of(name);
}

/* ---- chains and statistics ------------------------------------------------------------------- */

static invar_status hash_integers(void *payload, const char *const *columns,
                                  const invar_ledger_value *values, int count)
{
    (void)columns;
    for (int i = 0; values && i < count; i++)
        invar_hasher_update(payload, &values[i].integer, sizeof values[i].integer);
    return INVAR_OK;
}

static invar_digest hash_stats(const char *name)
{
    invar_hasher hasher;
    invar_digest all;

    invar_hasher_init(&hasher);
    run_select(name,
               "SELECT step, ord, nans, infs, absmax_bits, l2_bits FROM stat ORDER BY step, ord",
               hash_integers, &hasher);
    invar_hasher_final(&all, &hasher);
    return all;
}

static invar_status hash_texts(void *payload, const char *const *columns,
                               const invar_ledger_value *values, int count)
{
    (void)columns;
    for (int i = 0; values && i < count; i++)
        invar_hasher_update(payload, values[i].data, values[i].bytes);
    return INVAR_OK;
}

/*
 * Returns a digest of names, inputs and digests of the points above level 0, which belong neither
 * to the chain nor to the content.
 */
static invar_digest hash_points(const char *name)
{
    invar_hasher hasher;
    invar_digest all;

    assert_true(run_query_number(name, "SELECT count(*) FROM digests WHERE level > 0") > 0.0);
    invar_hasher_init(&hasher);
    run_select(name,
               "SELECT name, cast(inputs AS TEXT), hash FROM digests WHERE level > 0 "
               "ORDER BY step, ord",
               hash_texts, &hasher);
    invar_hasher_final(&all, &hasher);
    return all;
}

static void check_chain(const char *name, const char *dtype, const run_pair *a, const run_pair *b)
{
    const run_pair *const lists[LISTS] = {wide, a, b, NULL};
    char far_name[80], cpu_name[80];
    invar_digest far_stats, cpu_stats, far_points, cpu_points;
    run_digests cpu, far;

    (void)snprintf(far_name, sizeof far_name, "%s.%s.far", name, dtype);
    far = train_ok(far_name, "cuda", dtype, lists);
    (void)snprintf(cpu_name, sizeof cpu_name, "%s.%s.cpu", name, dtype);
    cpu = train_ok(cpu_name, "cpu", dtype, lists);
    far_stats = hash_stats(far_name);
    cpu_stats = hash_stats(cpu_name);
    assert_true(invar_digest_equal(&far_stats, &cpu_stats));
    // every point except tokens, expert choices and quantized values
    assert_true((run_query_number(far_name, "SELECT count(*) FROM stat WHERE step = 0") > 40.0) ==
                (run_has(a, "debug-stats") || run_has(b, "debug-stats")));
    far_points = hash_points(far_name);
    cpu_points = hash_points(cpu_name);
    assert_true(cpu.last >= 1);
    assert_true(invar_digest_equal(&cpu.identity, &far.identity)); // the device is a free choice
    if (!run_same(&cpu, &far))
        fail_msg("%s in %s: other bits where memory is far", name, dtype);
    if (!invar_digest_equal(&cpu_points, &far_points))
        fail_msg("%s in %s: other digests of points where memory is far", name, dtype);
}

/* By default the dense model and the one with experts share the formats. */
static void test_fake_gpu_runs__dense_has_the_chain_of_the_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_FORMAT_COUNT; i += (int)invar_test_count(2, 1))
        check_chain("grpo", invar_format_name((invar_format)i), grpo, NULL);
}

static void test_fake_gpu_runs__experts_have_the_chain_of_the_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_FORMAT_COUNT; i++)
        if (invar_test_full() || i % 2)
            check_chain("experts", invar_format_name((invar_format)i), experts, i % 2 ? ppo : grpo);
}

static void test_fake_gpu_runs__a_critic_has_the_chain_of_the_cpu(void **state)
{
    (void)state;
    check_chain("ppo", "fp32", ppo, NULL);
    if (invar_test_full()) // else with experts
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

static void test_fake_gpu_runs__dumps_what_the_cpu_dumps(void **state)
{
    static const char *const points[] = {
        "layer.1.expert.x",    "layer.0.route",           "layer.0.q", "head.dlogp", "train.logp",
        "grad.lm_head.weight", "weight.model.norm.weight"};
    const run_pair dump[] = {{"debug-dump", "*"}, {NULL, NULL}};
    const run_pair *const lists[LISTS] = {wide, experts, dump, NULL};

    (void)state;
    (void)train_ok("dump.cpu", "cpu", "bf16", lists);
    (void)train_ok("dump.far", "cuda", "bf16", lists);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        char a[100], b[100];

        (void)snprintf(a, sizeof a, "dump.cpu/dump/step_1/%s.npy", points[i]);
        (void)snprintf(b, sizeof b, "dump.far/dump/step_1/%s.npy", points[i]);
        assert_same_file(run_path(a), run_path(b));
    }
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/*
 * A run that moves between devices has the chain of one that stays on the CPU. Its optimizer
 * moments are offloaded at first, and no longer when it resumes.
 */
static void test_fake_gpu_runs__resume_on_another_device(void **state)
{
    static const char *const devices[] = {"cuda", "cpu", "cuda"};
    const run_pair checkpoint_pairs[] = {{"save", run_path("moving.ckpt")},
                                         {"load", run_path("moving.ckpt")},
                                         {"save-interval", "1"},
                                         {"num-rollout", "3"},
                                         {"save-hf", run_path("moving.hf/{rollout_id}")},
                                         {NULL, NULL}};
    const run_pair uninterrupted_pairs[] = {{"num-rollout", "3"}, {NULL, NULL}};
    const run_pair *const uninterrupted_lists[LISTS] = {wide, experts, ppo, uninterrupted_pairs};
    run_digests uninterrupted = train_ok("staying", "cpu", "bf16", uninterrupted_lists), moved;

    (void)state;
    for (int i = 0; i < 3; i++) {
        run_pair part[9];
        const run_pair *const lists[LISTS] = {wide, experts, ppo, part};

        memcpy(part, checkpoint_pairs, sizeof checkpoint_pairs);
        part[5] = (run_pair){"debug-exit-after-rollout", "1"};
        part[6] = (run_pair){"optimizer-cpu-offload", i == 0 ? "true" : "false"};
        part[7] = (run_pair){NULL, NULL};
        moved = train_ok("moving", devices[i], "bf16", lists);
        assert_int_equal(moved.last, i);
    }
    assert_true(run_same(&uninterrupted, &moved));
    assert_true(invar_path_exists(run_path("moving.hf/2/model.safetensors")));
}

/* Options of a run that saves after each of its three rollouts. */
typedef struct save_variant {
    const char *name, *device, *async, *offload;
} save_variant;

/* Asserts that the checkpoint of each step has the same bytes as the one of the CPU run. */
static void check_files(const char *name, const char *variant, const char *const *files)
{
    for (int step = 0; step < 3; step++)
        for (const char *const *f = files; *f; f++) {
            char a[100], b[100];

            (void)snprintf(a, sizeof a, "%s.cpu.save/iter_%07d/%s", name, step, *f);
            (void)snprintf(b, sizeof b, "%s.%s.save/iter_%07d/%s", name, variant, step, *f);
            assert_same_file(run_path(a), run_path(b));
        }
}

/*
 * A checkpoint is copied and written while the run continues, and must have the bytes of one that
 * the run waited for. Copies are delayed as long as possible: if the run changed saved tensors
 * without waiting for their copy, the bytes would differ. By default the runs that wait are left
 * out, and the moments are offloaded only if `offload` is set.
 */
static void check_saves(const char *name, const run_pair *own, bool offload,
                        const char *const *files)
{
    static const save_variant variants[] = {{"cpu", "cpu", "true", "false"},
                                            {"behind", "cuda", "true", "false"},
                                            {"waits", "cuda", "false", "false"},
                                            {"offloaded", "cuda", "true", "true"}};
    run_digests first = {0}, memory;

    delay = MAX_IDLE_MS;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        if (!invar_test_full() && (i == 2 || (i == 3 && !offload)))
            continue;
        run_pair checkpoint_pairs[] = {{"save", NULL},
                                       {"save-interval", "1"},
                                       {"async-save", variants[i].async},
                                       {"optimizer-cpu-offload", variants[i].offload},
                                       {"num-rollout", "3"},
                                       {NULL, NULL}};
        const run_pair *const lists[LISTS] = {wide, experts, own, checkpoint_pairs};
        char run[50], save[60];

        (void)snprintf(run, sizeof run, "%s.%s", name, variants[i].name);
        (void)snprintf(save, sizeof save, "%s.save", run);
        checkpoint_pairs[0].value = run_path(save);
        memory = train_ok(run, variants[i].device, "bf16", lists);
        if (i == 0)
            first = memory;
        assert_true(run_same(&first, &memory));
        check_files(name, variants[i].name, files);
    }
    delay = 0;
}

static void test_fake_gpu_runs__async_checkpoints_have_the_same_bytes(void **state)
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
    static const run_pair moving_reset[] = {{"use-kl-loss", "true"},
                                            {"kl-loss-coef", "0.1"},
                                            {"ref-update-interval", "2"},
                                            {"reset-optimizer-states", "true"},
                                            {NULL, NULL}};

    (void)state;
    check_saves("critic", ppo, false, of_critic);
    if (!invar_test_full()) {
        check_saves("actor", moving_reset, true, of_actor);
        return;
    }
    check_saves("actor", moving, true, of_actor);
    check_saves("reset", reset, false, of_reset);
}

/* ---- one asynchronous checkpoint ------------------------------------------------------------- */

enum { VALUES = 300 };

typedef struct writer_fixture {
    invar_device dev;
    void *values; /* (VALUES) in device memory */
    invar_checkpoint_writer *writer;
    const char *save;
    invar_checkpoint_state state;
    invar_checkpoint_tensor tensor;
    invar_checkpoint_content content;
} writer_fixture;

static void set_values(writer_fixture *s, float value)
{
    float values[VALUES];

    for (int i = 0; i < VALUES; i++)
        values[i] = value + (float)i;
    assert_ok(invar_device_upload(&s->dev, s->values, values, sizeof values));
}

static void writer_fixture_init(writer_fixture *s, const char *save)
{
    *s = (writer_fixture){.dev = {.backend = invar_fake_gpu_backend()}, .save = run_path(save)};
    invar_fake_gpu_begin(0);
    assert_ok(invar_device_open(&s->dev));
    assert_ok(invar_device_alloc(&s->dev, &s->values, VALUES * sizeof(float), "values"));
    s->tensor = (invar_checkpoint_tensor){
        "model", "x", invar_tensor_1d(s->values, INVAR_DTYPE_F32, VALUES), &s->dev};
    s->content =
        (invar_checkpoint_content){.state = &s->state, .tensors = &s->tensor, .n_tensors = 1};
    assert_ok(invar_checkpoint_writer_new(&s->writer, &s->dev));
}

static void writer_fixture_release(writer_fixture *s)
{
    invar_checkpoint_writer_free(s->writer);
    invar_device_free(&s->dev, s->values);
    invar_device_close(&s->dev);
    assert_int_equal(invar_fake_gpu_counted().opens, 0);
}

/* Saves values and changes them, after the copy if `waits`. Returns the status of loading them. */
static invar_status save_and_change(writer_fixture *s, bool waits)
{
    float loaded[VALUES];
    invar_tensor into = invar_tensor_1d(loaded, INVAR_DTYPE_F32, VALUES);
    invar_checkpoint *c;
    invar_status status;

    set_values(s, 1.0f);
    invar_fake_gpu_delay(waits ? MAX_IDLE_MS : INT64_MAX);
    assert_ok(invar_checkpoint_writer_begin(s->writer, s->save, &s->content, NULL));
    if (waits)
        invar_checkpoint_writer_await_copy(s->writer);
    assert_true(invar_checkpoint_writer_copying(s->writer) == !waits);
    set_values(s, 2.0f);
    invar_fake_gpu_delay(0);
    assert_ok(invar_checkpoint_writer_finish(NULL, s->writer));
    assert_ok(invar_checkpoint_open(&c, s->save, NULL));
    status = invar_checkpoint_load(&into, c, "model", "x");
    invar_checkpoint_close(c);
    if (status == INVAR_OK)
        assert_true(loaded[0] == 1.0f && loaded[VALUES - 1] == (float)VALUES);
    return status;
}

/* Control: values that are changed before their copy do not load. */
static void test_fake_gpu_runs__a_change_waits_for_the_copy(void **state)
{
    writer_fixture s;

    (void)state;
    writer_fixture_init(&s, "changed.save");
    assert_ok(save_and_change(&s, true));
    assert_fails(save_and_change(&s, false), INVAR_E_CORRUPT, "x");
    assert_ok(save_and_change(&s, true));
    writer_fixture_release(&s);
}

/*
 * The device is lost while a checkpoint is copied: the checkpoint fails, and the next one succeeds.
 */
static void test_fake_gpu_runs__a_failed_copy_fails_its_checkpoint(void **state)
{
    writer_fixture s;

    (void)state;
    writer_fixture_init(&s, "failed.save");
    set_values(&s, 1.0f);
    invar_fake_gpu_delay(INT64_MAX);
    assert_ok(invar_checkpoint_writer_begin(s.writer, s.save, &s.content, NULL));
    invar_fake_gpu_lose(1, false);
    invar_fake_gpu_delay(0);
    invar_checkpoint_writer_await_copy(s.writer);
    invar_fake_gpu_lose(0, false);
    assert_fails(invar_checkpoint_writer_finish(NULL, s.writer), INVAR_E_CUDA,
                 "the device is lost");
    assert_false(invar_path_exists(s.save));
    assert_ok(save_and_change(&s, true));
    // the writer is freed during a copy
    invar_fake_gpu_delay(MAX_IDLE_MS);
    assert_ok(invar_checkpoint_writer_begin(s.writer, s.save, &s.content, NULL));
    writer_fixture_release(&s);
}

/* ---- failures of asynchronous checkpoints ---------------------------------------------------- */

static pthread_t run_thread;

/* Fails for blocks as large as a state in threads other than the run's. */
static void *fail_in_other_threads(size_t bytes, void *payload)
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

/* Without host memory for the copy, the run fails; with enough memory it resumes. */
static void test_fake_gpu_runs__no_memory_for_the_copy_ends_the_run(void **state)
{
    const invar_allocator failing_allocator = {fail_in_other_threads, free_block, NULL};
    const run_pair checkpoint_pairs[] = {{"save", run_path("short.save")},
                                         {"load", run_path("short.save")},
                                         {"save-interval", "1"},
                                         {"num-rollout", "3"},
                                         {NULL, NULL}};
    const run_pair *const lists[LISTS] = {wide, checkpoint_pairs, NULL, NULL};
    const run_pair three_rollouts[] = {{"num-rollout", "3"}, {NULL, NULL}};
    const run_pair *const three_rollout_lists[LISTS] = {wide, three_rollouts, NULL, NULL};
    run_digests uninterrupted = train_ok("long", "cpu", "bf16", three_rollout_lists), memory;

    (void)state;
    run_thread = pthread_self();
    invar_allocator_set(&failing_allocator);
    assert_fails(train_run("short", "cuda", "bf16", lists), INVAR_E_NOMEM,
                 "the copy that a checkpoint is written from: no memory for");
    invar_allocator_set(NULL);
    assert_true(run_read_digests(&memory, run_path("short"))); // a ledger that verifies
    assert_false(invar_path_exists(run_path("short.save/iter_0000000")));
    memory = train_ok("short", "cuda", "bf16", lists);
    assert_true(run_same(&uninterrupted, &memory));
}

/*
 * Optimizer moments may be in host memory. This is a free choice, which may change when a run
 * resumes.
 */
static void test_fake_gpu_runs__offloaded_moments_change_nothing(void **state)
{
    static const char *const offload[] = {"true", "false", "true"};
    const run_pair uninterrupted_pairs[] = {{"num-rollout", "3"}, {NULL, NULL}};
    const run_pair *const uninterrupted_lists[LISTS] = {wide, experts, ppo, uninterrupted_pairs};
    const run_pair offloaded_pairs[] = {
        {"num-rollout", "3"}, {"optimizer-cpu-offload", "true"}, {NULL, NULL}};
    const run_pair *const offloaded_lists[LISTS] = {wide, experts, ppo, offloaded_pairs};
    run_digests uninterrupted = train_ok("resident", "cuda", "mxfp8", uninterrupted_lists), moved;

    (void)state;
    moved = train_ok("offloaded", "cuda", "mxfp8", offloaded_lists);
    assert_true(run_same(&uninterrupted, &moved));
    for (int i = 0; invar_test_full() && i < 3; i++) { // else resume_on_another_device

        const run_pair part[] = {{"save", run_path("offload.ckpt")},
                                 {"load", run_path("offload.ckpt")},
                                 {"save-interval", "1"},
                                 {"num-rollout", "3"},
                                 {"debug-exit-after-rollout", "1"},
                                 {"optimizer-cpu-offload", offload[i]},
                                 {NULL, NULL}};
        const run_pair *const lists[LISTS] = {wide, experts, ppo, part};

        moved = train_ok("changing", "cuda", "mxfp8", lists);
        assert_int_equal(moved.last, i);
    }
    assert_true(run_same(&uninterrupted, &moved));
}

/* Creates a file, in the middle of the run, where its first checkpoint is written. */
static void block_save(void *payload, const invar_train_progress *progress)
{
    char path[500];

    (void)snprintf(path, sizeof path, "%s/iter_0000000.tmp", *(const char **)payload);
    if (progress->measured && progress->step == 1)
        assert_ok(invar_file_write(path, "", 0));
}

static void test_fake_gpu_runs__async_checkpoints_fail_like_others(void **state)
{
    static const char *const variants[] = {"false", "true"};
    invar_error errors[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *save = run_path("blocked.ckpt");
        const run_pair own[] = {
            {"device", "cuda"},          {"save", save},       {"load", save},
            {"save-interval", "1"},      {"num-rollout", "3"}, {"num-steps-per-rollout", "1"},
            {"async-save", variants[i]}, {NULL, NULL}};
        invar_recipe *recipe = run_recipe(run_path("blocked"), own, NULL);
        invar_train_options options = {.until = -1, .progress = block_save, .payload = &save};
        invar_train_summary summary;
        invar_status status;
        run_digests memory;

        invar_fake_gpu_begin(0);
        status = invar_train(&summary, config_of(recipe), &options);
        assert_int_equal(status, INVAR_E_INVALID);
        invar_error_take(&errors[i]);
        assert_int_equal(invar_fake_gpu_counted().live, 0);
        assert_true(run_read_digests(&memory, run_path("blocked"))); // a ledger that verifies
        // without the obstacle the run starts over, since there was no checkpoint, and completes
        assert_ok(invar_held_folder_remove(save));
        assert_ok(run_train(recipe));
        assert_true(run_read_digests(&memory, run_path("blocked")));
        assert_int_equal(memory.last, 2);
        invar_recipe_free(recipe);
        assert_ok(invar_held_folder_remove(save));
        assert_ok(invar_held_folder_remove(run_path("blocked")));
    }
    assert_string_equal(errors[0].message, errors[1].message);
    assert_int_equal(errors[0].status, errors[1].status);
    assert_int_equal(errors[0].native, errors[1].native);
}

/* Starts from the weights of a checkpoint and of a Hugging Face folder. */
static void test_fake_gpu_runs__start_from_other_weights(void **state)
{
    const run_pair save[] = {{"save", run_path("teacher.ckpt")},
                             {"save-hf", run_path("teacher.hf/{rollout_id}")},
                             {NULL, NULL}};
    const run_pair *const first[LISTS] = {wide, experts, save, NULL};
    const run_pair from[2][2] = {{{"ref-load", run_path("teacher.ckpt")}, {NULL, NULL}},
                                 {{"ref-load", run_path("teacher.hf/1")}, {NULL, NULL}}};

    (void)state;
    (void)train_ok("teacher", "cuda", "fp32", first);
    for (int i = 0; i < 2; i++) {
        const run_pair *const lists[LISTS] = {wide, experts, from[i], NULL};
        char name[2][32];
        run_digests cpu, far;

        (void)snprintf(name[0], sizeof name[0], "from.%d.cpu", i);
        (void)snprintf(name[1], sizeof name[1], "from.%d.far", i);
        cpu = train_ok(name[0], "cpu", "mxfp8", lists);
        far = train_ok(name[1], "cuda", "mxfp8", lists);
        assert_true(run_same(&cpu, &far));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fake_gpu_runs__dense_has_the_chain_of_the_cpu),
        cmocka_unit_test(test_fake_gpu_runs__experts_have_the_chain_of_the_cpu),
        cmocka_unit_test(test_fake_gpu_runs__a_critic_has_the_chain_of_the_cpu),
        cmocka_unit_test(test_fake_gpu_runs__dumps_what_the_cpu_dumps),
        cmocka_unit_test(test_fake_gpu_runs__resume_on_another_device),
        cmocka_unit_test(test_fake_gpu_runs__async_checkpoints_have_the_same_bytes),
        cmocka_unit_test(test_fake_gpu_runs__a_change_waits_for_the_copy),
        cmocka_unit_test(test_fake_gpu_runs__a_failed_copy_fails_its_checkpoint),
        cmocka_unit_test(test_fake_gpu_runs__no_memory_for_the_copy_ends_the_run),
        cmocka_unit_test(test_fake_gpu_runs__offloaded_moments_change_nothing),
        cmocka_unit_test(test_fake_gpu_runs__async_checkpoints_fail_like_others),
        cmocka_unit_test(test_fake_gpu_runs__start_from_other_weights),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
