/*
 * calls.c - which ops the engine calls, in which order, on what: the same as recorded.
 *
 * Kinds of models x formats x ways to run them. A line of calls.txt is one of these: how many
 * calls, the digest of their log (tests/op_call_log.h), and the most bytes that activations,
 * gradients and arrays took. Where a line differs, the log is in the work folder; that of a build
 * of another commit shows which call moved. INVAR_TEST_RECORD=1 writes the file anew.
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
#define MOST_ROWS 256
#define LINES INVAR_TEST_DATA "/golden/calls.txt"

typedef enum way { SCORE, TRAIN, RECOMPUTE, PIECES, REPLAY, CRITIC, PAGED, CUT, WAYS } way;

static const char *const names[WAYS] = {"score",  "train",  "recompute", "pieces",
                                        "replay", "critic", "paged",     "cut"};

/* ---- running --------------------------------------------------------------------------------- */

static void name_params(const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        invar_op_call_log_name(&p->weight, "w", p->name);
    }
    invar_op_call_log_name(&model->cosine, "w", "cosine");
    invar_op_call_log_name(&model->sine, "w", "sine");
}

static void name_grads(const invar_model *model, const invar_grads *grads)
{
    for (int64_t i = 0; i < model->n_params; i++)
        invar_op_call_log_name(&grads->tensors[i], "g", model->params[i].name);
    if (invar_tensor_present(&grads->tied_head))
        invar_op_call_log_name(&grads->tied_head, "g", "head");
}

/* Routing as a rollout would have recorded it: of each token the first experts. */
static void route(invar_rl_samples *samples, int64_t slots)
{
    for (int64_t i = 0; i < samples->count; i++) {
        invar_rl_sample *s = &samples->items[i];
        int64_t rows = invar_micro_batch_rows(s);
        assert_ok(invar_alloc((void **)&s->routing, (size_t)(rows * slots), sizeof *s->routing,
                              "routing"));
        for (int64_t n = 0; n < rows * slots; n++)
            s->routing[n] = (int32_t)(n % 2); // two experts a token
        s->route_size = slots;
    }
}

static void values_back(invar_pass *pass, const invar_micro_batch *batch, const float *d,
                        invar_grads *grads)
{
    invar_tensor values;

    assert_ok(invar_pass_logits(&values, pass, batch->head.row, batch->head.count));
    assert_ok(invar_pass_backward_values(pass, d, &batch->head.units, grads));
}

/* Two micro-batches, so that the second one adds to gradients; then the join. */
static void run_packed(const invar_model *model, const invar_device *dev, way how)
{
    invar_pass_options options = {
        .train = how != SCORE, .recompute = how == RECOMPUTE, .head_rows = how == PIECES ? 3 : 0};
    int64_t slots = invar_model_sparse_layers(model) * model->spec.experts_per_token;
    static const int64_t units[] = {0, 2, 3, 4}; // the last one is the second micro-batch
    float d[MOST_ROWS] = {0}, logp[MOST_ROWS], entropy[MOST_ROWS];
    invar_micro_batch batch = {0};
    invar_rl_samples samples;
    invar_grads *grads = NULL;
    invar_pass *pass = NULL;

    invar_test_samples(&samples, SAMPLES, 6, model->spec.vocab, 5);
    if (how == REPLAY)
        route(&samples, slots);
    assert_ok(invar_pass_new(&pass, dev, &options));
    if (how != SCORE) {
        assert_ok(invar_grads_new(&grads, model));
        name_grads(model, grads);
    }
    for (int part = 0; part < 2; part++) {
        invar_micro_batch_plan plan = {.first = part ? 3 : 0,
                                       .count = part ? 1 : 3,
                                       .unit_start = units + 2 * part,
                                       .units = part ? 1 : 2,
                                       .temperature = 0.7f,
                                       .route = slots,
                                       .replay = how == REPLAY};
        assert_ok(invar_micro_batch_fill(&batch, samples.items, &plan));
        assert_true(batch.head.count <= MOST_ROWS);
        assert_ok(invar_pass_run(pass, model, &batch.rows));
        if (how == CRITIC) {
            values_back(pass, &batch, d, grads);
            continue;
        }
        assert_ok(invar_pass_head(pass, &batch.head, logp, entropy));
        if (grads)
            assert_ok(invar_pass_backward(pass, d, part ? d : NULL, grads));
    }
    if (grads)
        assert_ok(invar_grads_finalize(grads, model, dev));
    invar_micro_batch_release(&batch);
    invar_rl_samples_reset(&samples);
    invar_grads_free(grads);
    invar_pass_free(pass);
}

/* Prompts of 5 and 3 tokens, then a token of each. */
static void run_paged(const invar_model *model, const invar_device *dev)
{
    const invar_kv_cache_shape shape = {
        model->spec.layers, model->spec.kv_heads, model->spec.head_dim, model->storage, 4, 8};
    static const int64_t prompts[] = {0, 5, 8}, tokens[] = {0, 1, 2}, last[] = {4, 7};
    static const int64_t before[] = {5, 3}, after[] = {6, 4}, both[] = {0, 1};
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8}, at[] = {0, 1, 2, 3, 4, 0, 1, 2};
    static const int32_t next[] = {5, 3};
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
                                                  .positions = at,
                                                  .samples = {prompts, 2},
                                                  .cache = cache->layers,
                                                  .lengths = before}));
    assert_ok(invar_pass_logits(&logits, pass, last, 2));
    assert_ok(invar_pass_run(pass, model,
                             &(invar_packed_rows){.count = 2,
                                                  .ids = ids,
                                                  .positions = next,
                                                  .samples = {tokens, 2},
                                                  .cache = cache->layers,
                                                  .lengths = after}));
    assert_ok(invar_pass_logits(&logits, pass, both, 2));
    invar_pass_free(pass);
    invar_kv_cache_free(cache);
}

/* ---- recording ------------------------------------------------------------------------------- */

/* The log of one configuration; the caller frees it. */
static char *log_of(invar_test_model kind, invar_format format, way how, bool swapped)
{
    bool wide = format != INVAR_FORMAT_FP32 && format != INVAR_FORMAT_BF16;
    invar_model_spec spec = invar_test_spec(kind, wide);
    invar_device dev;
    invar_model *model;

    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    dev.backend = invar_op_call_log_backend();
    spec.value_head = how == CRITIC;
    spec.tied = spec.tied && how != CRITIC;
    if (how == CUT) {
        spec.logical_tp = 8;
        spec.logical_etp = 4;
    }
    invar_op_call_log_begin();
    assert_ok(invar_model_new(&model, &spec, format, NULL, &dev));
    assert_ok(invar_model_init(model, 11, &dev));
    invar_op_call_log_begin();
    name_params(model);
    if (swapped) { // what a slip of the hand would do
        invar_param *up = invar_model_find(model, "model.layers.1.mlp.up_proj.weight");
        invar_param *gate = invar_model_find(model, "model.layers.1.mlp.gate_proj.weight");
        invar_tensor weight = up->weight;
        up->weight = gate->weight;
        gate->weight = weight;
    }
    if (how == PAGED)
        run_paged(model, &dev);
    else
        run_packed(model, &dev, how);
    invar_model_free(model);
    invar_test_device_release(&dev);
    return invar_op_call_log_text();
}

static void line_of(char line[160], const char *log, invar_test_model kind, invar_format format,
                    way how)
{
    char hex[INVAR_DIGEST_HEX_SIZE];
    invar_digest digest;

    invar_hash_bytes(&digest, log, strlen(log));
    invar_digest_format(hex, &digest);
    snprintf(line, 160, "%s %s %s %d calls %s %zu bytes\n", invar_test_model_name(kind),
             invar_format_name(format), names[how], invar_op_call_log_count(), hex,
             invar_op_call_log_bytes());
}

static void keep(const char *log, const char *line)
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

static bool recorded(const char *all, const char *line)
{
    const char *found = strstr(all, line);

    return found && (found == all || found[-1] == '\n');
}

static char *read_lines(void)
{
    static char text[1 << 16];
    FILE *file = fopen(LINES, "r");

    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

static bool exists(invar_test_model kind, way how)
{
    return how != REPLAY || kind == INVAR_TEST_MODEL_EXPERTS;
}

static void test_calls__are_those_recorded(void **state)
{
    FILE *record = getenv("INVAR_TEST_RECORD") ? fopen(LINES, "w") : NULL;
    const char *all = record ? "" : read_lines();

    (void)state;
    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++)
        for (int format = 0; format < INVAR_FORMAT_COUNT; format++)
            for (int how = 0; how < WAYS; how++) {
                char line[160], *log;
                if (!exists((invar_test_model)kind, (way)how))
                    continue;
                log = log_of((invar_test_model)kind, (invar_format)format, (way)how, false);
                line_of(line, log, (invar_test_model)kind, (invar_format)format, (way)how);
                if (record)
                    fputs(line, record);
                else if (!recorded(all, line))
                    keep(log, line);
                free(log);
            }
    if (record)
        fclose(record);
}

/* Two calls that read each other's weights are another log. */
static void test_calls__a_swap_is_seen(void **state)
{
    char *right = log_of(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, TRAIN, false);
    char *again = log_of(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, TRAIN, false);
    char *swapped = log_of(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, TRAIN, true);

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
