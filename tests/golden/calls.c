/*
 * calls.c - the engine calls the recorded ops, in the recorded order, with the recorded arguments.
 *
 * All test models run in all formats and in several modes. Each line of calls.txt is one of these
 * configurations: the number of calls, the digest of their log (tests/op_call_log.h), and the peak
 * bytes of activations, gradients and arrays. If a line differs, the test writes the log to the
 * work folder; compare it with the log of a build of another commit to see which call changed.
 * INVAR_TEST_RECORD=1 records the file again. The file must have no other lines. Negative control:
 * two swapped weights give another log.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "engine/sample/rollout/kv_cache.h"
#include "engine/train/micro_batch.h"
#include "tests/model.h"
#include "tests/op_call_log.h"

#define SAMPLES 4
#define MAX_ROWS 256
#define LINES INVAR_TEST_DATA "/golden/calls.txt"

typedef enum run_mode {
    SCORE,
    TRAIN,
    RECOMPUTE,
    HEAD_CHUNKS,
    REPLAY,
    CRITIC,
    PAGED,
    LOGICAL_SHARDS,
    MODES
} run_mode;

static const char *const names[MODES] = {"score",  "train",  "recompute", "pieces",
                                         "replay", "critic", "paged",     "cut"};

/* ---- running --------------------------------------------------------------------------------- */

static void name_params(const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        invar_op_call_log_name(&p->weight, "w", p->name);
    }
    invar_op_call_log_name(&model->rope.cosine, "w", "cosine");
    invar_op_call_log_name(&model->rope.sine, "w", "sine");
}

static void name_grads(const invar_model *model, const invar_grads *grads)
{
    for (int64_t i = 0; i < model->n_params; i++)
        invar_op_call_log_name(&grads->tensors[i], "g", model->params[i].name);
    if (invar_tensor_present(&grads->tied_head))
        invar_op_call_log_name(&grads->tied_head, "g", "head");
}

/* Sets the routing that a rollout would have recorded: every token goes to the first experts. */
static void route(invar_rl_samples *samples, int64_t slots)
{
    for (int64_t i = 0; i < samples->count; i++) {
        invar_rl_sample *s = &samples->items[i];
        int64_t rows = invar_micro_batch_rows(s);
        assert_ok(INVAR_ALLOC(s->routing, (size_t)(rows * slots), "routing"));
        for (int64_t n = 0; n < rows * slots; n++)
            s->routing[n] = (int32_t)(n % 2); // two experts per token
        s->route_size = slots;
    }
}

static void backward_values(invar_pass *pass, const invar_micro_batch *batch, const float *d,
                            invar_grads *grads)
{
    invar_tensor values;

    assert_ok(invar_pass_logits(&values, pass, batch->head.row, batch->head.count));
    assert_ok(invar_head_backward_values(pass, d, &batch->head.units, grads));
    assert_ok(invar_pass_backward(pass, grads));
}

/* Runs two micro-batches, so that the second adds to the gradients, and finalizes the gradients. */
static void run_packed(const invar_model *model, const invar_device *dev, run_mode mode)
{
    invar_pass_options options = {.train = mode != SCORE,
                                  .recompute = mode == RECOMPUTE,
                                  .head_rows = mode == HEAD_CHUNKS ? 3 : 0};
    int64_t slots = invar_model_sparse_layers(model) * model->spec.experts.per_token;
    // units of the first micro-batch, then of the second
    static const int64_t units[] = {0, 2, 3, 4};
    float d[MAX_ROWS] = {0}, logp[MAX_ROWS], entropy[MAX_ROWS];
    invar_micro_batch batch = {0};
    invar_rl_samples samples;
    invar_grads *grads = NULL;
    invar_pass *pass = NULL;

    invar_test_samples(&samples, SAMPLES, 6, model->spec.vocab, 5);
    if (mode == REPLAY)
        route(&samples, slots);
    assert_ok(invar_pass_new(&pass, dev, &options));
    if (mode != SCORE) {
        assert_ok(invar_grads_new(&grads, model));
        name_grads(model, grads);
    }
    for (int micro_batch = 0; micro_batch < 2; micro_batch++) {
        invar_micro_batch_plan plan = {.first = micro_batch ? 3 : 0,
                                       .count = micro_batch ? 1 : 3,
                                       .unit_start = units + 2 * micro_batch,
                                       .units = micro_batch ? 1 : 2,
                                       .temperature = 0.7f,
                                       .route = slots,
                                       .replay = mode == REPLAY};
        assert_ok(invar_micro_batch_fill(&batch, samples.items, &plan));
        assert_true(batch.head.count <= MAX_ROWS);
        assert_ok(invar_pass_run(pass, model, &batch.rows));
        if (mode == CRITIC) {
            backward_values(pass, &batch, d, grads);
            continue;
        }
        assert_ok(invar_pass_head(pass, &batch.head, logp, entropy));
        if (grads) {
            assert_ok(invar_head_backward(pass, d, micro_batch ? d : NULL, grads));
            assert_ok(invar_pass_backward(pass, grads));
        }
    }
    if (grads)
        assert_ok(invar_grads_finalize(grads, model, dev));
    invar_micro_batch_release(&batch);
    invar_rl_samples_reset(&samples);
    invar_grads_free(grads);
    invar_pass_free(pass);
}

/* Prefills prompts of 5 and 3 tokens, then decodes one token of each. */
static void run_paged(const invar_model *model, const invar_device *dev)
{
    const invar_kv_cache_shape shape = {model->spec.layers,
                                        model->spec.attention.kv_heads,
                                        model->spec.attention.head_dim,
                                        model->storage,
                                        4,
                                        8};
    static const int64_t prompts[] = {0, 5, 8}, tokens[] = {0, 1, 2}, last[] = {4, 7};
    static const int64_t lengths_prefill[] = {5, 3}, lengths_decode[] = {6, 4},
                         rows_decode[] = {0, 1};
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8},
                         positions_prefill[] = {0, 1, 2, 3, 4, 0, 1, 2};
    static const int32_t positions_decode[] = {5, 3};
    int32_t pages[4] = {0, 1, 2, 3};
    invar_kv_cache *cache = NULL;
    invar_pass *pass = NULL;
    invar_tensor logits;

    assert_ok(invar_kv_cache_new(&cache, &shape, dev));
    assert_ok(invar_pass_new(&pass, dev, &(invar_pass_options){0}));
    for (int64_t i = 0; i < model->spec.layers; i++)
        cache->layers[i].pages = invar_tensor_2d(pages, INVAR_DTYPE_I32, 2, 2);
    assert_ok(invar_pass_run(pass, model,
                             &(invar_packed_rows){.count = 8,
                                                  .ids = ids,
                                                  .positions = positions_prefill,
                                                  .samples = {prompts, 2},
                                                  .cache = cache->layers,
                                                  .lengths = lengths_prefill}));
    assert_ok(invar_pass_logits(&logits, pass, last, 2));
    assert_ok(invar_pass_run(pass, model,
                             &(invar_packed_rows){.count = 2,
                                                  .ids = ids,
                                                  .positions = positions_decode,
                                                  .samples = {tokens, 2},
                                                  .cache = cache->layers,
                                                  .lengths = lengths_decode}));
    assert_ok(invar_pass_logits(&logits, pass, rows_decode, 2));
    invar_pass_free(pass);
    invar_kv_cache_free(cache);
}

/* ---- recording ------------------------------------------------------------------------------- */

/* Runs one configuration and returns its log, which the caller frees. */
static char *run_configuration(invar_test_model kind, invar_format format, run_mode mode,
                               bool swapped)
{
    bool wide = format != INVAR_FORMAT_FP32 && format != INVAR_FORMAT_BF16;
    invar_model_spec spec = invar_test_spec(kind, wide);
    invar_device dev;
    invar_model *model;

    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    dev.backend = invar_op_call_log_backend();
    spec.value_head = mode == CRITIC;
    spec.tied = spec.tied && mode != CRITIC;
    if (mode == LOGICAL_SHARDS) {
        spec.logical_tp = 8;
        spec.logical_etp = 4;
    }
    invar_op_call_log_begin();
    assert_ok(invar_model_new(&model, &spec, format, NULL, &dev));
    assert_ok(invar_model_init(model, 11, &dev));
    invar_op_call_log_begin();
    name_params(model);
    if (swapped) { // Control: a plausible mistake, up_proj and gate_proj exchanged.
        invar_param *up = invar_model_find(model, "model.layers.1.mlp.up_proj.weight");
        invar_param *gate = invar_model_find(model, "model.layers.1.mlp.gate_proj.weight");
        invar_tensor weight = up->weight;
        up->weight = gate->weight;
        gate->weight = weight;
    }
    if (mode == PAGED)
        run_paged(model, &dev);
    else
        run_packed(model, &dev, mode);
    invar_model_free(model);
    invar_test_device_release(&dev);
    return invar_op_call_log_text();
}

static void format_line(char line[160], const char *log, invar_test_model kind, invar_format format,
                        run_mode mode)
{
    char hex[INVAR_DIGEST_HEX_SIZE];
    invar_digest digest;

    invar_hash_bytes(&digest, log, strlen(log));
    invar_digest_format(hex, &digest);
    snprintf(line, 160, "%s %s %s %d calls %s %zu bytes\n", invar_test_model_name(kind),
             invar_format_name(format), names[mode], invar_op_call_log_count(), hex,
             invar_op_call_log_bytes());
}

static void fail_with_log(const char *log, const char *line)
{
    char path[256];
    FILE *file;

    snprintf(path, sizeof path, "%s/calls.txt", INVAR_TEST_WORK);
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%s%s", line, log);
    fclose(file);
    fail_msg("not as recorded: %s  the calls are in %s", line, path);
}

static char *read_lines(void)
{
    static char text[1 << 16];
    FILE *file = fopen(LINES, "r");

    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    assert_true(feof(file));
    fclose(file);
    return text;
}

static bool is_applicable(invar_test_model kind, run_mode mode)
{
    return mode != REPLAY || kind == INVAR_TEST_MODEL_EXPERTS;
}

static void test_calls__are_those_recorded(void **state)
{
    FILE *record = getenv("INVAR_TEST_RECORD") ? fopen(LINES, "w") : NULL;
    const char *next = record ? "" : read_lines(); // lines are in the order of the loops

    (void)state;
    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++)
        for (int format = 0; format < INVAR_FORMAT_COUNT; format++)
            for (int mode = 0; mode < MODES; mode++) {
                char line[160], *log;
                if (!is_applicable((invar_test_model)kind, (run_mode)mode))
                    continue;
                log = run_configuration((invar_test_model)kind, (invar_format)format,
                                        (run_mode)mode, false);
                format_line(line, log, (invar_test_model)kind, (invar_format)format,
                            (run_mode)mode);
                if (record)
                    fputs(line, record);
                else if (strncmp(next, line, strlen(line)) != 0)
                    fail_with_log(log, line);
                else
                    next += strlen(line);
                free(log);
            }
    if (record)
        fclose(record);
    else if (*next)
        fail_msg("calls.txt has lines of no configuration, from: %.100s", next);
}

/* Negative control: a model that reads two weights exchanged has another log. */
static void test_calls__a_swap_is_seen(void **state)
{
    char *right = run_configuration(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, TRAIN, false);
    char *again = run_configuration(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, TRAIN, false);
    char *swapped = run_configuration(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, TRAIN, true);

    (void)state;
    assert_string_equal(right, again);
    assert_string_not_equal(right, swapped);
    free(right);
    free(again);
    free(swapped);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls__are_those_recorded),
        cmocka_unit_test(test_calls__a_swap_is_seen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
