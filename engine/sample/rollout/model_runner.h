/*
 * model_runner.h - runs sequences through the model pass by pass: shared by sampling and scoring.
 *
 * The model runner gets slices from the scheduler, packs their rows with positions, cache slots and
 * page tables, and runs the pass on all pipeline stages. The struct invar_rollout lives here,
 * because it owns the parts that outlast a run: passes, CUDA graphs and the KV cache. Private to
 * engine/sample/rollout.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_MODEL_RUNNER_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_MODEL_RUNNER_H

#include "engine/model/graph/cuda_graph_cache.h"
#include "engine/ranks/layout/pipeline.h"
#include "engine/sample/rollout/draft/proposer.h"
#include "engine/sample/rollout/rollout.h"
#include "engine/sample/rollout/rollout_hooks.h"
#include "engine/sample/rollout/scheduler.h"

typedef struct invar_draft_model invar_draft_model;
typedef struct invar_running_batch invar_running_batch;

struct invar_rollout {
    const invar_model *model;
    const invar_tokenizer *tokenizer;
    invar_op_runner op_runner;
    invar_rollout_exec_options limits;
    invar_pass *passes[INVAR_LAYOUT_MAX_CHUNKS]; /* (n_passes) one for each chunk of layers */
    int n_passes;
    invar_pass *pass;                        /* last of passes[]; tokens are sampled from it */
    invar_pipeline_channel pipeline_channel; /* activations between stages */
    invar_cuda_graph_cache *graph_cache;     /* NULL without CUDA graphs */
    invar_kv_cache *cache; /* cache of the last run, reused if it is large enough */
    invar_row_ownership row_owners;
    bool audited;                  /* an audit is active */
    invar_draft_model *draft;      /* owned; NULL unless speculative-algorithm = draft */
    invar_draft_proposer proposer; /* set by tests; replaces the proposer that `limits` selects,
                                      unless `propose` is NULL */
    invar_running_batch *stream;   /* open stream; NULL without one */
    bool suspend_requested;        /* the run suspends all samples after the current pass */
    invar_rollout_counters counters;
};

/* Advice appended to an out-of-memory message of a rollout. */
#define INVAR_MODEL_RUNNER_ADVICE "lower kv-pages, rollout-concurrency or chunked-prefill-size"

typedef struct invar_model_runner {
    invar_rollout *rollout;
    invar_scheduler scheduler;
    const invar_seq_slice *slices; /* (n_slices) slices of the next or current pass; borrowed */
    int64_t n_slices;
    int64_t sequences;         /* sequences of the current pass: slices, then fillers */
    int64_t rows_per_sequence; /* rows of the first slice, and of every filler */
    bool steady;               /* allow fillers and CUDA graphs; see invar_model_runner_pass */
    bool is_draft;             /* another model runner owns the sequences (draft model) */
    invar_row_ownership *row_owners; /* borrowed; receives the owners of rows; NULL without hooks */
    int64_t route;                   /* expert ids per row of routing; 0 for a dense model */
    int64_t width;                   /* largest number of pages of a sequence */
    void *memory;                    /* host memory of the arrays below; owned */
    int32_t *ids;                    /* (rows) token ids */
    int32_t *positions;              /* (rows) positions in the sequence */
    int32_t *slots;                  /* (rows) slots in the KV cache: page * page_size + offset */
    int64_t *start;                  /* (sequences + 1) row offsets of the sequences */
    int64_t *lengths;                /* (sequences) positions in the cache after the pass */
    int32_t *tables;                 /* (sequences, width of the pass) page tables, padded with 0 */
    int32_t *routing; /* (rows, route) out: expert ids; valid after invar_rollout_stages_routing */
    invar_packed_rows rows; /* rows of the last pass */
} invar_model_runner;

/*
 * *out = options of the rollout with every default resolved, for `sequences` sequences of at most
 * `rows` rows. Creates the cache of the rollout, or keeps one that has enough pages of this size,
 * and resets the counters.
 */
invar_status invar_model_runner_resolve_options(invar_rollout_exec_options *out,
                                                invar_rollout *rollout, int64_t sequences,
                                                int64_t rows) INVAR_MUST_USE;

/* Largest sizes of the passes of a model runner. */
typedef struct invar_model_runner_limits {
    int64_t sequences; /* sequences at a time; the concurrency may allow fewer */
    int64_t rows;      /* rows of the longest sequence */
    int64_t ahead;     /* draft rows per sequence */
} invar_model_runner_limits;

/*
 * Initializes a model runner with the resolved options of invar_model_runner_resolve_options.
 * `seqs` is borrowed. Release with invar_model_runner_release, also after a failure.
 */
invar_status invar_model_runner_init(invar_model_runner *runner, invar_rollout *rollout,
                                     const invar_rollout_exec_options *limits,
                                     const invar_model_runner_limits *max_sizes, invar_seq *seqs,
                                     int64_t n_seqs) INVAR_MUST_USE;
void invar_model_runner_release(invar_model_runner *runner);

/*
 * Initializes a model runner that runs the sequences of `first` through the model of `rollout`,
 * with the same page numbers in `cache`. The caller sets `slices` and `n_slices` before each pass:
 * prefill slices, and slices of one or two decode rows. Release also after a failure.
 */
invar_status invar_model_runner_init_draft(invar_model_runner *runner, invar_rollout *rollout,
                                           const invar_model_runner *first,
                                           invar_kv_cache *cache) INVAR_MUST_USE;

/*
 * Sets `slices` to the slices of the next pass, which the caller may shorten with
 * invar_scheduler_truncate. n_slices is 0 if all sequences are over.
 */
invar_status invar_model_runner_next(invar_model_runner *runner) INVAR_MUST_USE;

/*
 * Runs the pass. If `steady` is set and all sequences have one row, or one row and all draft rows,
 * the pass is padded with filler sequences, so that few different sizes occur, and CUDA graph
 * capture is active from here until invar_model_runner_end_capture. Fillers write to free pages.
 */
invar_status invar_model_runner_pass(invar_model_runner *runner) INVAR_MUST_USE;

/*
 * Allocates the arrays of a model runner for the largest pass of its scheduler, as zeros. Runs the
 * rows that they have, with page tables of `width` columns. For dry runs, which set no slices.
 */
invar_status invar_model_runner_alloc(invar_model_runner *runner) INVAR_MUST_USE;
invar_status invar_model_runner_run(invar_model_runner *runner, int64_t width) INVAR_MUST_USE;

/*
 * Ends the capture of a pass and its draws. Call it after every steady pass, also after a failure.
 */
void invar_model_runner_end_capture(invar_model_runner *runner);

/* ---- pipeline_pass.c ------------------------------------------------------------------------- */

/* Creates the passes of the rollout. Call invar_rollout_stages_close also after a failure. */
invar_status invar_rollout_stages_open(invar_rollout *rollout, const invar_device *dev,
                                       const invar_pass_options *options) INVAR_MUST_USE;
void invar_rollout_stages_close(invar_rollout *rollout);

/* Sets the hooks of all layers that this rank holds; NULL removes them. */
void invar_rollout_stages_probe(const invar_rollout *rollout, const invar_forward_hooks *probe);

/* Returns true if this rank samples tokens, which the last stage does. */
bool invar_rollout_stages_samples(const invar_rollout *rollout);

/* Returns the number of layers of a model that this rank holds. */
int64_t invar_rollout_stages_layers(const invar_model *model);

/*
 * Runs rows through all stages; rows->cache has the layers of this rank. Collective: all stages
 * must call it.
 */
invar_status invar_rollout_stages_run(invar_rollout *rollout,
                                      const invar_packed_rows *rows) INVAR_MUST_USE;

/*
 * Gathers the routing of all stages in the last run into rows->routing. Collective on a pipeline.
 */
invar_status invar_rollout_stages_routing(invar_rollout *rollout,
                                          const invar_packed_rows *rows) INVAR_MUST_USE;

/*
 * Broadcasts `data` from the stage that samples to all stages. `phase` names the transfer in
 * messages. Collective on a pipeline.
 */
invar_status invar_rollout_stages_broadcast(const invar_rollout *rollout, const char *phase,
                                            void *data, size_t bytes) INVAR_MUST_USE;

#endif
