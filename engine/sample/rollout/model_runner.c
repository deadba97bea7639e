/*
 * model_runner.c - packs the slices that the scheduler has selected into the rows of one pass.
 *
 * Decode passes are padded: page tables to a power of two of columns, and sequences with fillers to
 * one of four sizes per power of two. Otherwise nearly every pass would have a new shape, and CUDA
 * graphs could not be reused. Padding must never be visible: fillers write to free pages only and
 * are owned by no sample.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/model_runner.h"

#include <string.h>

#include "base/alloc.h"
#include "base/block_carver.h"
#include "base/minmax.h"

#include "base/invar_banned.h"

/* ---- a run through the cache ----------------------------------------------------------------- */

static void carve_arrays(invar_model_runner *runner, invar_carver *c)
{
    size_t sequences = (size_t)runner->scheduler.concurrency;
    size_t rows =
        sequences * (size_t)(1 + runner->scheduler.lookahead) + (size_t)runner->scheduler.chunk;

    runner->ids = invar_carve(c, rows * sizeof *runner->ids);
    runner->positions = invar_carve(c, rows * sizeof *runner->positions);
    runner->slots = invar_carve(c, rows * sizeof *runner->slots);
    runner->start = invar_carve(c, (sequences + 1) * sizeof *runner->start);
    runner->lengths = invar_carve(c, sequences * sizeof *runner->lengths);
    runner->tables = invar_carve(c, sequences * (size_t)runner->width * sizeof *runner->tables);
    runner->routing = invar_carve(c, rows * (size_t)runner->route * sizeof *runner->routing);
}

invar_status invar_model_runner_alloc(invar_model_runner *runner)
{
    invar_carver c = {NULL, 0};

    carve_arrays(runner, &c);
    INVAR_TRY(invar_alloc(&runner->memory, c.used, 1, "the rows of a rollout"));
    memset(runner->memory, 0, c.used);
    c = (invar_carver){runner->memory, 0};
    carve_arrays(runner, &c);
    return INVAR_OK;
}

invar_status invar_model_runner_init(invar_model_runner *runner, invar_rollout *r,
                                     const invar_rollout_exec_options *limits,
                                     const invar_model_runner_limits *max_sizes, invar_seq *seqs,
                                     int64_t n_seqs)
{
    const invar_model_spec *spec = &r->model->spec;

    memset(runner, 0, sizeof *runner);
    runner->rollout = r;
    runner->route = invar_model_sparse_layers(r->model) * spec->experts.per_token;
    INVAR_TRY(invar_scheduler_init(
        &runner->scheduler, r->cache, seqs, n_seqs,
        invar_max_i64(invar_min_i64(limits->concurrency, max_sizes->sequences), 1),
        limits->prefill_chunk));
    // GPU kernels are specialized for many rows per sequence or for few
    runner->scheduler.separate_prefill = invar_device_is_local(&r->op_runner.dev);
    runner->scheduler.lookahead = max_sizes->ahead;
    runner->width = invar_max_i64(invar_kv_cache_pages_for(r->cache, max_sizes->rows), 1);
    return invar_model_runner_alloc(runner);
}

invar_status invar_model_runner_init_draft(invar_model_runner *runner, invar_rollout *r,
                                           const invar_model_runner *first, invar_kv_cache *cache)
{
    const invar_scheduler *s = &first->scheduler;

    *runner = (invar_model_runner){.rollout = r,
                                   .scheduler = {.cache = cache,
                                                 .seqs = s->seqs,
                                                 .n_seqs = s->n_seqs,
                                                 .concurrency = s->concurrency,
                                                 .chunk = s->chunk,
                                                 .lookahead = 1},
                                   .steady = true,
                                   .is_draft = true,
                                   .width = first->width};
    return invar_model_runner_alloc(runner);
}

void invar_model_runner_release(invar_model_runner *runner)
{
    if (!runner->is_draft)
        invar_scheduler_release(&runner->scheduler);
    invar_free(runner->memory);
    memset(runner, 0, sizeof *runner);
}

static int64_t pages_of_slice(const invar_model_runner *runner, const invar_seq_slice *turn)
{
    return invar_kv_cache_pages_for(runner->scheduler.cache, turn->first + turn->count);
}

/* Adds the rows of slice i and the page table of its sequence. */
static void add_slice(invar_model_runner *runner, int64_t i, int64_t width)
{
    const invar_seq_slice *turn = &runner->slices[i];
    const invar_seq *seq = &runner->scheduler.seqs[turn->seq];
    int64_t row = runner->start[i], length = turn->first + turn->count;
    int64_t pages = pages_of_slice(runner, turn), size = runner->scheduler.cache->shape.page_size;

    memcpy(runner->ids + row, seq->tokens + turn->first, (size_t)turn->count * sizeof *runner->ids);
    for (int64_t n = 0; n < turn->count; n++) {
        int64_t at = turn->first + n;
        runner->positions[row + n] = (int32_t)at;
        runner->slots[row + n] = (int32_t)(seq->pages[at / size] * size + at % size);
    }
    memcpy(runner->tables + i * width, seq->pages, (size_t)pages * sizeof *runner->tables);
    memset(runner->tables + i * width + pages, 0, (size_t)(width - pages) * sizeof *runner->tables);
    runner->lengths[i] = length;
    runner->start[i + 1] = row + turn->count;
}

static void count_slice_rows(invar_rollout_counters *c, const invar_seq_slice *turn,
                             const invar_seq *seq)
{
    int64_t again = seq->n_recompute > turn->first
                        ? invar_min_i64(seq->n_recompute - turn->first, turn->count)
                        : 0;

    c->recomputed += again;
    if (turn->first < seq->prefill)
        c->prefilled += turn->count - again;
    else
        c->decoded += turn->count;
}

/* Adds filler sequence i. Its rows write to the first positions of a page that stays free. */
static void add_filler(invar_model_runner *runner, int64_t i, int64_t width)
{
    const invar_kv_cache *cache = runner->scheduler.cache;
    int64_t row = runner->start[i];

    memset(runner->tables + i * width, 0, (size_t)width * sizeof *runner->tables);
    runner->tables[i * width] = cache->free_pages[i - runner->n_slices];
    for (int64_t n = 0; n < runner->rows_per_sequence; n++) {
        runner->ids[row + n] = 0;
        runner->positions[row + n] = (int32_t)n;
        runner->slots[row + n] = (int32_t)(runner->tables[i * width] * cache->shape.page_size + n);
    }
    runner->lengths[i] = runner->rows_per_sequence;
    runner->start[i + 1] = row + runner->rows_per_sequence;
}

/* Rounds n up to one of four sizes between two powers of two. */
static int64_t round_up_sequences(int64_t n)
{
    int64_t step = 1;

    while (8 * step <= n)
        step *= 2;
    return (n + step - 1) / step * step;
}

/* Returns the number of sequences with fillers; without, if a filler would lack a free page. */
static int64_t padded_sequences(const invar_model_runner *runner)
{
    const invar_kv_cache *cache = runner->scheduler.cache;
    int64_t size =
        invar_min_i64(round_up_sequences(runner->n_slices), runner->scheduler.concurrency);
    bool fits = size - runner->n_slices <= cache->n_free &&
                runner->rows_per_sequence <= cache->shape.page_size;

    return fits ? size : runner->n_slices;
}

/* Returns true if all slices have one row, or all have one row and every draft row. */
static bool has_uniform_slices(const invar_model_runner *runner)
{
    for (int64_t i = 0; i < runner->n_slices; i++)
        if (runner->slices[i].count != runner->rows_per_sequence)
            return false;
    return runner->rows_per_sequence == 1 ||
           runner->rows_per_sequence == 1 + runner->scheduler.lookahead;
}

/* Starts graph capture and adds fillers, if the pass is steady and its shape allows both. */
static void begin_capture(invar_model_runner *runner, int64_t width)
{
    invar_rollout *r = runner->rollout;

    if (!r->graph_cache || !runner->steady || !has_uniform_slices(runner) ||
        !invar_pass_tape(r->pass, r->graph_cache))
        return;
    r->op_runner.graph_cache = r->graph_cache;
    runner->sequences = padded_sequences(runner);
    invar_cuda_graph_cache_begin(
        r->graph_cache, &(invar_cuda_graph_key){runner->sequences * runner->rows_per_sequence,
                                                runner->sequences, width});
}

void invar_model_runner_end_capture(invar_model_runner *runner)
{
    if (runner->rollout->graph_cache)
        invar_cuda_graph_cache_end(runner->rollout->graph_cache);
}

/*
 * Sets the owners of the rows: the sample of a sequence, or all samples that share a prompt. Rows
 * of fillers have no owner, nor have recomputed rows, which hooks have seen before.
 */
static void set_row_owners(const invar_model_runner *runner)
{
    invar_row_samples *owners =
        invar_row_ownership_owners(runner->row_owners, runner->start[runner->sequences]);

    memset(owners, 0, (size_t)runner->start[runner->sequences] * sizeof *owners);
    for (int64_t i = 0; i < runner->n_slices; i++) {
        const invar_seq_slice *turn = &runner->slices[i];
        const invar_seq *seq = &runner->scheduler.seqs[turn->seq];
        for (int64_t n = invar_max_i64(seq->n_recompute - turn->first, 0); n < turn->count; n++)
            owners[runner->start[i] + n] = (invar_row_samples){
                runner->row_owners->draws + seq->sample, invar_seq_samples(seq)};
    }
}

/* Returns the width of the page tables of the pass, rounded up to a power of two. */
static int64_t table_width(const invar_model_runner *runner)
{
    int64_t need = 1, width = 1;

    for (int64_t i = 0; i < runner->n_slices; i++)
        need = invar_max_i64(need, pages_of_slice(runner, &runner->slices[i]));
    while (width < need)
        width *= 2;
    return invar_min_i64(width, runner->width);
}

invar_status invar_model_runner_run(invar_model_runner *runner, int64_t width)
{
    invar_kv_cache *cache = runner->scheduler.cache;

    for (int64_t i = 0; i < cache->shape.layers; i++)
        cache->layers[i].pages =
            invar_tensor_2d(runner->tables, INVAR_DTYPE_I32, runner->sequences, width);
    runner->rows = (invar_packed_rows){.count = runner->start[runner->sequences],
                                       .ids = runner->ids,
                                       .positions = runner->positions,
                                       .samples = {runner->start, runner->sequences},
                                       .cache = cache->layers,
                                       .lengths = runner->lengths,
                                       .kv_slots = runner->slots,
                                       .routing = runner->route > 0 ? runner->routing : NULL};
    return invar_rollout_stages_run(runner->rollout, &runner->rows);
}

invar_status invar_model_runner_next(invar_model_runner *runner)
{
    return invar_scheduler_next(&runner->slices, &runner->n_slices, &runner->scheduler);
}

invar_status invar_model_runner_pass(invar_model_runner *runner)
{
    invar_rollout *r = runner->rollout;
    int64_t width = table_width(runner);

    runner->sequences = runner->n_slices;
    runner->rows_per_sequence = runner->slices[0].count;
    begin_capture(runner, width);
    runner->start[0] = 0;
    for (int64_t i = 0; i < runner->n_slices; i++) {
        add_slice(runner, i, width);
        count_slice_rows(&r->counters, &runner->slices[i],
                         &runner->scheduler.seqs[runner->slices[i].seq]);
    }
    for (int64_t i = runner->n_slices; i < runner->sequences; i++)
        add_filler(runner, i, width);
    r->counters.passes++;
    if (runner->row_owners)
        set_row_owners(runner);
    return invar_model_runner_run(runner, width);
}
