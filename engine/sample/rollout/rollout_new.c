/*
 * rollout_new.c - creates a rollout object, and resolves the defaults of its execution options.
 *
 * Default sizes depend on the device: a GPU needs many rows to be busy, and gives the KV cache a
 * third of its free memory. The cache is kept between runs and replaced if it is too small.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/minmax.h"
#include "engine/sample/rollout/draft/draft_model.h"
#include "engine/sample/rollout/model_runner.h"

#include "base/invar_banned.h"

#define MAX_ROWS ((int64_t)1 << 20) // sanity limit of prefill chunk, page size and concurrency

/* Default values of the options. */
typedef struct defaults {
    int64_t concurrency;
    int64_t chunk;
    int64_t cache_bytes; /* largest size of the cache, exceeded only for a single sequence */
    int64_t head_rows;   /* rows of logits computed at a time when scoring */
} defaults;

/* Defaults for devices that use host memory, and for GPUs, which need many rows to be busy. */
static const defaults host_defaults = {64, 512, (int64_t)1 << 30, 64};
static const defaults gpu_defaults = {512, 4096, INT64_MAX, 512};

#define CACHE_SHARE 3 // a third of the free memory; training needs the rest for activations

static const defaults *defaults_of(const invar_device *dev)
{
    return invar_device_is_local(dev) ? &gpu_defaults : &host_defaults;
}

/* ---- the object ------------------------------------------------------------------------------ */

static invar_status check_limit(const char *name, int64_t value, int64_t most)
{
    if (value < 0 || value > most)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout: %s is %" PRId64 "; expected 0 (automatic) to %" PRId64, name,
                          value, most);
    return INVAR_OK;
}

static invar_status check_draft(const invar_speculation *s, const invar_model *model)
{
    if (!s->model)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "rollout: a draft needs a model");
    if (s->model->spec.vocab != model->spec.vocab)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "speculative-draft-model-path: its vocabulary has %" PRId64
                          " tokens, the model's %" PRId64 ": give a model of the same family",
                          s->model->spec.vocab, model->spec.vocab);
    if (s->model->spec.max_positions < model->spec.max_positions)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "speculative-draft-model-path: it has %" PRId64
                          " positions, the model %" PRId64 ": give one with as many",
                          s->model->spec.max_positions, model->spec.max_positions);
    return INVAR_OK;
}

static invar_status check_speculation(const invar_speculation *s, const invar_model *model)
{
    if (s->algorithm == INVAR_SPECULATIVE_ALGORITHM_NONE)
        return INVAR_OK;
    if (s->tokens < 1 || s->tokens > INVAR_SPECULATION_MAX)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout: %" PRId64 " tokens guessed at a time; expected 1 to %d",
                          s->tokens, INVAR_SPECULATION_MAX);
    if (s->algorithm == INVAR_SPECULATIVE_ALGORITHM_DRAFT)
        return check_draft(s, model);
    if (s->window.min_n < 1 || s->window.max_n < s->window.min_n)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout: windows of %" PRId64 " to %" PRId64
                          " tokens; expected 1 or more, and no fewer at most than at least",
                          s->window.min_n, s->window.max_n);
    return INVAR_OK;
}

invar_status invar_rollout_new(invar_rollout **out, const invar_model *model,
                               const invar_tokenizer *tokenizer, const invar_device *dev,
                               const invar_rollout_exec_options *limits)
{
    const invar_pass_options options = {.head_rows = defaults_of(dev)->head_rows};
    invar_rollout *rollout = NULL;
    invar_status status;

    INVAR_TRY(check_limit("concurrency", limits->concurrency, MAX_ROWS));
    INVAR_TRY(check_limit("chunk", limits->prefill_chunk, MAX_ROWS));
    INVAR_TRY(check_limit("page size", limits->page_size, MAX_ROWS));
    INVAR_TRY(check_limit("number of pages", limits->pages, INT32_MAX));
    INVAR_TRY(check_speculation(&limits->speculation, model));
    INVAR_TRY(INVAR_ALLOC_ZEROED(rollout, 1, "rollout"));
    rollout->model = model;
    rollout->tokenizer = tokenizer;
    rollout->limits = *limits;
    invar_op_runner_init(&rollout->op_runner, dev);
    status = invar_rollout_stages_open(rollout, dev, &options);
    if (status == INVAR_OK && !limits->no_graphs && model->part.stages == 1)
        status = invar_cuda_graph_cache_new(&rollout->graph_cache, dev);
    if (status == INVAR_OK && limits->speculation.algorithm == INVAR_SPECULATIVE_ALGORITHM_DRAFT)
        status = invar_draft_model_new(&rollout->draft, limits->speculation.model, dev, limits);
    if (status != INVAR_OK) {
        invar_rollout_free(rollout);
        return status;
    }
    *out = rollout;
    return INVAR_OK;
}

void invar_rollout_free(invar_rollout *rollout)
{
    if (!rollout)
        return;
    invar_rollout_close(rollout);
    invar_draft_model_free(rollout->draft);
    invar_cuda_graph_cache_free(rollout->graph_cache);
    invar_rollout_stages_close(rollout);
    invar_kv_cache_free(rollout->cache);
    invar_row_ownership_release(&rollout->row_owners);
    invar_op_runner_release(&rollout->op_runner);
    invar_free(rollout);
}

void invar_rollout_set_hooks(invar_rollout *rollout, const invar_rollout_hooks *hooks)
{
    rollout->row_owners.hooks = hooks ? *hooks : (invar_rollout_hooks){.on_pass_end = NULL};
}

void invar_rollout_audit(invar_rollout *rollout, invar_audit *audit)
{
    rollout->audited = audit != NULL;
    for (int i = 0; i < rollout->n_passes; i++)
        invar_pass_audit(rollout->passes[i], audit);
}

void invar_rollout_get_counters(invar_rollout_counters *out, const invar_rollout *rollout)
{
    *out = rollout->counters;
    out->max_pages_used = rollout->cache ? rollout->cache->max_used : 0;
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* Ensures a cache of this shape with at least shape->pages pages: the current one or a new one. */
static invar_status ensure_cache(invar_rollout *r, const invar_kv_cache_shape *shape)
{
    invar_kv_cache_shape have = r->cache ? r->cache->shape : (invar_kv_cache_shape){0};

    // an auto-sized cache may be larger than this run needs
    if (have.page_size == shape->page_size && have.pages >= shape->pages)
        return INVAR_OK;
    invar_kv_cache_free(r->cache);
    r->cache = NULL;
    return invar_kv_cache_new(&r->cache, shape, &r->op_runner.dev);
}

/* Returns the bytes that the cache may use if the number of pages is not set. */
static int64_t cache_bytes(const invar_rollout *r)
{
    const invar_device *dev = &r->op_runner.dev;
    int64_t own =
        r->cache ? invar_kv_cache_page_bytes(&r->cache->shape) * r->cache->shape.pages : 0;

    if (!dev->backend->memory.free_bytes)
        return host_defaults.cache_bytes;
    own += r->draft ? invar_draft_model_cache_bytes(r->draft) : 0;
    return ((int64_t)dev->backend->memory.free_bytes(dev) + own) / CACHE_SHARE;
}

static invar_kv_cache_shape cache_shape(const invar_rollout_exec_options *settled,
                                        const invar_model *model)
{
    const invar_model_spec *spec = &model->spec;

    return (invar_kv_cache_shape){.layers = invar_rollout_stages_layers(model),
                                  .kv_heads = invar_model_kv_heads(model),
                                  .head_dim = spec->attention.head_dim,
                                  .storage = model->storage,
                                  .page_size = settled->page_size,
                                  .pages = settled->pages};
}

int64_t invar_rollout_page_bytes(const invar_rollout_exec_options *resolved,
                                 const invar_model *model)
{
    invar_kv_cache_shape shape = cache_shape(resolved, model);
    int64_t bytes = invar_kv_cache_page_bytes(&shape);

    if (resolved->speculation.algorithm == INVAR_SPECULATIVE_ALGORITHM_DRAFT) {
        shape = cache_shape(resolved, resolved->speculation.model);
        bytes += invar_kv_cache_page_bytes(&shape);
    }
    return bytes;
}

invar_rollout_exec_options invar_rollout_resolve_options(const invar_rollout_exec_options *limits,
                                                         const invar_model *model,
                                                         const invar_device *dev, int64_t samples,
                                                         int64_t rows, int64_t bytes)
{
    const defaults *open = defaults_of(dev);
    invar_rollout_exec_options out = *limits;
    int64_t each, affordable;

    out.concurrency = out.concurrency ? out.concurrency : open->concurrency;
    out.prefill_chunk = out.prefill_chunk ? out.prefill_chunk : open->chunk;
    out.page_size = out.page_size ? out.page_size : INVAR_ROLLOUT_PAGE_SIZE;
    // the extra page is for the copy of a partly filled page of a shared prompt
    each = (rows + out.page_size - 1) / out.page_size + 1;
    affordable = invar_min_i64(bytes, open->cache_bytes) /
                 invar_max_i64(invar_rollout_page_bytes(&out, model), 1);
    if (out.pages == 0)
        out.pages = invar_max_i64(
            invar_min_i64(invar_min_i64(out.concurrency, samples) * each, affordable), each);
    return out;
}

invar_status invar_model_runner_resolve_options(invar_rollout_exec_options *out, invar_rollout *r,
                                                int64_t sequences, int64_t rows)
{
    invar_kv_cache_shape shape;

    memset(&r->counters, 0, sizeof r->counters);
    *out = invar_rollout_resolve_options(&r->limits, r->model, &r->op_runner.dev, sequences, rows,
                                         cache_bytes(r));
    shape = cache_shape(out, r->model);
    return ensure_cache(r, &shape);
}
